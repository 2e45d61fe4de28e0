"""The simulations behind the choices of docs/concepts/how-the-gate-decides.md, as Markdown tables.

    python benchmarks/gate_choices.py [--runs 20000] [--seed 1] [--only grid]

``grid``: what the gate fails and spends by stored launches, launch spread and loss. ``screen``: level of the first
stage. ``each``: what every confirming launch is held to. ``detectable``: losses seen four times in
five. ``cap``: most that a fitted prior may weigh. ``wander``: launches whose repetitions are not independent.
``groups``: when launches make two groups.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from gate_launches import Array, heavy, normal, repeated

from pytest_llmperf.stats import Prior, fit_prior
from pytest_llmperf.stats import levels as gate_levels
from pytest_llmperf.stats import prior_fit as gate_prior
from pytest_llmperf.stats.levels import Design, quantile
from pytest_llmperf.stats.location import log_location, squared_error
from pytest_llmperf.stats.reference import Reference, reference
from pytest_llmperf.stats.stability import modes
from pytest_llmperf.stats.verdict import REGRESSED, SUSPECT, both_stages

ALPHA, CONFIRM = 0.001, 2
LEAST = float(-np.log1p(-0.01))


def judged(ref: Reference, fresh: Array, *, each: float | None = None) -> tuple[float, float]:
    """Share failed and mean launches, ``fresh`` of shape ``(n, 1 + CONFIRM)``; with ``each`` that share of the screen's
    limit for every confirming launch instead of the gate's own."""
    with held_to(each):
        first, last = both_stages(ref, fresh, alpha=ALPHA, least=LEAST)
    suspect = first == SUSPECT
    return float(np.mean(suspect & (last == REGRESSED))), 1 + CONFIRM * float(np.mean(suspect))


@contextmanager
def held_to(each: float | None) -> Iterator[None]:
    if each is None:
        yield
        return
    kept, gate_levels.EACH = gate_levels.EACH, (each,)
    gate_levels._limits.cache_clear()
    yield
    gate_levels.EACH = kept
    gate_levels._limits.cache_clear()


def launches(rng: np.random.Generator, n: int, count: int, cv: float, tails: bool) -> Array:
    if cv == 0.01:
        return log_location((heavy if tails else normal)(rng, n, count))
    unit = rng.standard_t(4, (n, count)) / np.sqrt(2) if tails else rng.normal(0, 1, (n, count))
    return log_location(repeated(rng, cv * unit))


def grid(runs: int, seed: int) -> Iterator[str]:
    yield "| stored, launch spread | unchanged | -3 % | -5 % | -10 % |\n|---|---|---|---|---|"
    for k, cv in ((1, 0.01), (3, 0.01), (5, 0.01), (10, 0.01), (5, 0.004), (5, 0.02), (10, 0.02)):
        cells = []
        for drop in (0.0, 0.03, 0.05, 0.10):
            both = []
            for tails in (False, True):
                logs = launches(np.random.default_rng([seed, k]), runs, k + 1 + CONFIRM, cv, tails)
                failed, used = judged(reference(logs[:, :k], Prior()), logs[:, k:] + np.log1p(-drop))
                both.append(f"{failed:.4f} {used:.2f}" if drop == 0 else f"{failed:.3f} {used:.1f}")
            cells.append(" / ".join(both))
        yield f"| {k}, {cv:.1%} | " + " | ".join(cells) + " |"


def screen(runs: int, seed: int) -> Iterator[str]:
    yield "| stored | screen's level | unchanged | -3 % | -5 % |\n|---|---|---|---|---|"
    kept = gate_levels.SCREEN_LEVEL
    for k in (3, 5, 10):
        logs = launches(np.random.default_rng([seed, k]), runs, k + 1 + CONFIRM, 0.01, False)
        for level in (0.03, kept, 0.08):
            gate_levels.SCREEN_LEVEL = level
            gate_levels._limits.cache_clear()
            yield f"| {k} | {level:.0%} | " + " | ".join(_drops(logs, k, (0.0, 0.03, 0.05))) + " |"
    gate_levels.SCREEN_LEVEL = kept
    gate_levels._limits.cache_clear()


def each(runs: int, seed: int) -> Iterator[str]:
    """One launch in twenty 5 % slow, SGLang's and vLLM's priors."""
    yield "| prior, stored | each launch held to | sessions of ten red | with outliers | -3 % | -5 % |"
    yield "|---|---|---|---|---|---|"
    for spread in (0.006, 0.015):
        for k in (5, 10):
            rng = np.random.default_rng([seed, k])
            logs = rng.normal(0, spread, (runs, k + 1 + CONFIRM))
            odd = logs + np.log(0.95) * (rng.random(logs.shape) < 0.05)
            for share in (0.0, 0.5, 1.0):
                ref, spoilt = (reference(x[:, :k], Prior(s0=spread)) for x in (logs, odd))
                none, wild = judged(ref, logs[:, k:], each=share)[0], judged(spoilt, odd[:, k:], each=share)[0]
                red = " | ".join(f"{1 - (1 - x) ** 10:.4f}" for x in (none, wild))
                caught = (judged(ref, logs[:, k:] + np.log1p(-d), each=share)[0] for d in (0.03, 0.05))
                held = f"{share:.0%} of the screen's limit" if share else "the practical minimum"
                yield f"| {spread:.1%}, {k} | {held} | {red} | " + " | ".join(f"{x:.2f}" for x in caught) + " |"


def _drops(logs: Array, k: int, drops: tuple[float, ...]) -> list[str]:
    ref = reference(logs[:, :k], Prior())
    found = [judged(ref, logs[:, k:] + np.log1p(-d)) for d in drops]
    return [f"{f:.4f} {u:.2f}" if d == 0 else f"{f:.3f} {u:.1f}" for d, (f, u) in zip(drops, found, strict=True)]


def detectable(runs: int, seed: int) -> Iterator[str]:
    yield "| stored | sum of two quantiles, power | loss of 80 % power |\n|---|---|---|"
    for k in (1, 3, 5, 10, 30):
        design = Design(1 / k, 1, CONFIRM, Prior().d0 + k - 1, ALPHA)
        stages = ((design.screen, 1), (design.confirm, CONFIRM))
        loss = max((t + quantile(0.2, design.nu)) * np.sqrt(design.share + 1 / r) for t, r in stages)
        seen = gate_levels.failing(design, design.confirm, design.each, loss)
        yield f"| {k} | {loss:.2f} sd, {seen:.0%} | {design.detectable():.2f} sd |"


def cap(runs: int, seed: int) -> Iterator[str]:
    yield "| series differ by | most worth | unchanged failed | most spread quarter | -5 % |\n|---|---|---|---|---|"
    kept, count, k = gate_prior.MOST_D0, 20, 3
    for differ in (0.0, 0.35, 0.7):
        for most in (2.0, kept, 8.0, 16.0):
            gate_prior.MOST_D0 = most
            rng = np.random.default_rng(seed)
            rows = []
            for _ in range(max(runs // count, 1)):
                sigma = 0.01 * np.exp(rng.normal(0, differ, count))
                logs = rng.normal(0, 1, (count, k + 1 + CONFIRM)) * sigma[:, None]
                ref = reference(logs[:, :k], fit_prior([list(np.exp(x)) for x in logs[:, :k]]) or Prior())
                wide = sigma >= np.quantile(sigma, 0.75)
                every = [judged(_part(ref, m), logs[m, k:] + np.log1p(-d))[0] for m, d in
                         ((slice(None), 0.0), (wide, 0.0), (slice(None), 0.05))]  # fmt: skip
                rows.append(every)
            none, worst, five = np.mean(rows, axis=0)
            yield f"| {differ:.0%} | {most:g} | {none:.4f} | {worst:.4f} | {five:.3f} |"
    gate_prior.MOST_D0 = kept


def _part(ref: Reference, which: slice | Array) -> Reference:
    arrays = ("center", "spread", "nu", "share", "expected", "residuals", "shown")
    return replace(ref, **{name: getattr(ref, name)[which] for name in arrays})


def wander(runs: int, seed: int) -> Iterator[str]:
    yield "| stored | repetitions | expected spread | unchanged | -10 % | -20 % |\n|---|---|---|---|---|---|"
    for k in (1, 3, 5):
        for rho, cv in ((0.0, 0.01), (0.5, 0.04), (0.8, 0.04)):
            rng = np.random.default_rng([seed, k])
            reps = rng.normal(0, 1, (runs, k + 1 + CONFIRM, 10))
            for i in range(1, 10):
                reps[..., i] = rho * reps[..., i - 1] + np.sqrt(1 - rho**2) * reps[..., i]
            reps = cv * reps + rng.normal(0, 0.005, (*reps.shape[:2], 1))
            logs = log_location(reps)
            for raised in (False, True):
                least = np.mean(squared_error(reps[:, :k]), axis=-1) if raised else 0.0
                ref = reference(logs[:, :k], Prior(), wander=least)
                found = [judged(ref, logs[:, k:] + np.log1p(-d)) for d in (0.0, 0.10, 0.20)]
                none, ten, twenty = (f for f, _ in found)
                said = "raised to their error" if raised else "the prior's"
                yield f"| {k} | {cv:.0%}, correlated {rho:g} | {said} | {none:.4f} | {ten:.3f} | {twenty:.3f} |"


def groups(runs: int, seed: int) -> Iterator[str]:
    sizes = (3.0, 4.0, 5.0)
    yield "| stored | launches | " + " | ".join(f"gap > {c:g} sd" for c in sizes) + " |\n|---|---|---|---|---|"
    for k in (5, 10):
        for what, cv, gap in (("1 %", 0.01, 0.0), ("2 %", 0.02, 0.0), ("0.3 %, half of them 6 % slower", 0.003, 0.06)):
            rng = np.random.default_rng([seed, k])
            logs = rng.normal(0, cv, (runs, k)) - gap * (rng.random((runs, k)) < 0.5)
            width, apart = modes(logs, Prior().d0, Prior().s0)
            shares = " | ".join(f"{np.mean((apart > c) & (width > LEAST)):.4f}" for c in sizes)
            yield f"| {k} | {what} | {shares} |"


TABLES: dict[str, Callable[[int, int], Iterator[str]]] = {
    f.__name__: f for f in (grid, screen, each, detectable, cap, wander, groups)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=TABLES)
    args = parser.parse_args()
    for name, table in TABLES.items():
        if args.only in (None, name):
            print(f"\n### {name}\n")
            for line in table(args.runs, args.seed):
                print(line, flush=True)


if __name__ == "__main__":
    main()
