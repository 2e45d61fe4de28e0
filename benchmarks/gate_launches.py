"""Series of launches to judge: drawn from models, or resampled from launches measured on an H200."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

#: Log values of ``launches`` successive launches of ``n`` series, shape ``(n, launches, repetitions)``.
Draw = Callable[[np.random.Generator, int, int], Array]

WITHIN, REPETITIONS = 0.004, 10
#: Fresh launches at a gate's disposal; one that needs fewer uses the first ones.
FRESH = 3
DATA = Path(__file__).parent / "data" / "h200-launches.json"


@dataclass(frozen=True)
class Scenario:
    """``hosts`` gives the host of each stored launch by turns, ``host`` the one of the fresh launches."""

    name: str
    what: str
    draw: Draw
    hosts: Sequence[str] = ()
    host: str = ""


@dataclass(frozen=True)
class Case:
    """``stored`` has shape ``(n, k, repetitions)``, ``fresh`` ``(n, FRESH, repetitions)``: logs, higher is better."""

    stored: Array
    fresh: Array
    hosts: tuple[str, ...] = ()
    host: str = ""

    def dropped(self, drop: float) -> Case:
        return Case(self.stored, self.fresh + np.log1p(-drop), self.hosts, self.host)


def case(scenario: Scenario, rng: np.random.Generator, n: int, k: int) -> Case:
    """``k`` stored launches and the fresh ones after them."""
    logs = scenario.draw(rng, n, k + FRESH)
    if not scenario.hosts:
        return Case(logs[:, :k], logs[:, k:])
    hosts = tuple(scenario.hosts[i % len(scenario.hosts)] for i in range(k))
    names = sorted({*scenario.hosts, scenario.host})
    level = rng.normal(0, HOST_CV, (n, len(names)))
    logs = logs + level[:, [names.index(h) for h in (*hosts, *[scenario.host] * FRESH)]][..., None]
    return Case(logs[:, :k], logs[:, k:], hosts, scenario.host)


def repeated(rng: np.random.Generator, effect: Array) -> Array:
    return effect[..., None] + rng.normal(0, WITHIN, (*effect.shape, REPETITIONS))


def normal(rng: np.random.Generator, n: int, launches: int) -> Array:
    return repeated(rng, rng.normal(0, 0.01, (n, launches)))


def heavy(rng: np.random.Generator, n: int, launches: int) -> Array:
    return repeated(rng, 0.01 * rng.standard_t(4, (n, launches)) / np.sqrt(2))


def bimodal(rng: np.random.Generator, n: int, launches: int) -> Array:
    slow = rng.random((n, launches)) < 0.3
    return repeated(rng, rng.normal(0, 0.003, (n, launches)) - 0.04 * slow)


def drifting(rng: np.random.Generator, n: int, launches: int) -> Array:
    effect = rng.normal(0, 0.01, (n, launches))
    for i in range(1, launches):
        effect[:, i] = 0.8 * effect[:, i - 1] + 0.6 * effect[:, i]
    return repeated(rng, effect)


HOST_CV = 0.015


def resampled(engine: str, model: str) -> Draw:
    """Launches like the measured ones: a launch effect by smoothed bootstrap (Silverman 1986, section 6.4) of the
    deviations from each host's mean, repetitions as a measured stretch of them, read in a circle from anywhere."""
    found = [x for x in json.loads(DATA.read_text())["launches"] if (x["engine"], x["model"]) == (engine, model)]
    length = min(len(block) for x in found for block in x["blocks"])
    effects, paths = [], []
    for host in sorted({x["host"] for x in found}):
        blocks = [np.log(b) for x in found if x["host"] == host for b in x["blocks"]]
        means = np.array([np.mean(b) for b in blocks])
        effects += list((means - means.mean()) * np.sqrt(len(means) / (len(means) - 1)))
        paths += [b - b.mean() for b in blocks]
    pool, spread, smooth = np.array(effects), float(np.sqrt(np.mean(np.square(effects)))), 0.5

    def draw(rng: np.random.Generator, n: int, launches: int) -> Array:
        effect = rng.choice(pool, (n, launches)) + smooth * spread * rng.normal(0, 1, (n, launches))
        effect /= np.sqrt(1 + smooth**2)
        which, start = rng.integers(0, len(paths), (n, launches)), rng.integers(0, 1000, (n, launches))
        table = np.stack([np.take(p, np.arange(1000 + length), mode="wrap") for p in paths])
        stretch = table[which[..., None], start[..., None] + np.arange(length)]
        return np.asarray(effect[..., None] + stretch)

    return draw


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("normal launches", "launch effects N(0, 1 %)", normal),
    Scenario("heavy-tailed launches", "launch effects t with 4 degrees of freedom, standard deviation 1 %", heavy),
    Scenario("bimodal launches", "three launches in ten are 4 % slower, jitter 0.3 %", bimodal),
    Scenario("drifting launches", "launch effects of 1 %, each like the one before (autoregressive, 0.8)", drifting),
    Scenario(
        "two hosts, fresh launches on one of them",
        "normal launches; hosts differ by N(0, 1.5 %); launches stored by turns on A and B, fresh ones on A",
        normal,
        ("A", "B"),
        "A",
    ),
    Scenario(
        "two hosts, fresh launches on a third",
        "normal launches; hosts differ by N(0, 1.5 %); launches stored by turns on A and B, fresh ones on C",
        normal,
        ("A", "B"),
        "C",
    ),
    Scenario(
        "real launches: SGLang 0.5.17, 3B",
        "resampled; launches agree to 0.1 %, repetitions to 0.2 %",
        resampled("sglang", "3b"),
    ),
    Scenario(
        "real launches: vLLM 0.26.0, 8B",
        "resampled; launches differ by 0.9 % (the first one compiled), repetitions by 0.05 %",
        resampled("vllm", "8b"),
    ),
    Scenario(
        "real launches: vLLM 0.26.0, 3B",
        "resampled; repetitions wander by 3-7 % inside a launch",
        resampled("vllm", "3b"),
    ),
)
