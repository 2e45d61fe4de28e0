"""Which results of a session make a gap, on which launches it rests, and what is said with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_llmperf.records.results import LaunchValues, Result
from pytest_llmperf.stats import Prior, location
from pytest_llmperf.tuning.gaps import ASSUMED, gaps

ENGINES = ("sglang", "vllm", "llamacpp")
DEFAULT = Prior()


def result(engine: str, *launches: float, confirm: int = 0, **more: Any) -> Result:
    roles = ["screen"] * (len(launches) - confirm) + ["confirm"] * confirm
    values = [(v * 0.999, v, v * 1.001) for v in launches]
    made = Result(
        nodeid=f"t.py::test[{engine}]", test="t.py::test", engine=engine, server=f"{engine}-key",
        metric="decode_tok_s", unit="tok/s", higher_is_better=True, verdict="passed",
        launches=tuple(LaunchValues(f"{engine}{i}", v, location(v), r)
                       for i, (v, r) in enumerate(zip(values, roles, strict=True))),
        workload={"output_tokens": 256},
    )  # fmt: skip
    return replace(made, **more)


def found(*results: Result) -> list[tuple[str, str, float]]:
    return [(g.engine, g.reference, round(g.ratio, 3)) for g in gaps(results, ENGINES, lambda r: DEFAULT)]


def test_the_engine_named_first_is_over_every_other() -> None:
    assert found(result("vllm", 80.0), result("sglang", 60.0)) == [("sglang", "vllm", 0.75)]
    three = found(result("llamacpp", 30.0), result("vllm", 80.0), result("sglang", 60.0))
    assert three == [("sglang", "vllm", 0.75), ("sglang", "llamacpp", 2.0)]


def test_tests_and_metrics_are_kept_apart() -> None:
    others = [replace(result(e, 5.0), metric="ttft_ms", unit="ms", higher_is_better=False) for e in ENGINES[:2]]
    rows = gaps([result("sglang", 60.0), result("vllm", 80.0), *others], ENGINES, lambda r: DEFAULT)
    assert [(g.metric, g.unit, g.higher_is_better) for g in rows] == [
        ("decode_tok_s", "tok/s", True),
        ("ttft_ms", "ms", False),
    ]


@pytest.mark.parametrize(
    "other",
    [
        result("vllm", 80.0, test="t.py::another"),
        result("vllm", 80.0, workload={"output_tokens": 8}),
        result("vllm", 80.0, verdict="invalid"),
        result("vllm"),
        replace(result("vllm", 80.0), launches=(LaunchValues("x", (0.0,), 0.0),)),
    ],
    ids=["another test", "another workload", "invalid", "no launch", "a zero"],
)
def test_what_does_not_compare_has_no_gap(other: Result) -> None:
    assert found(result("sglang", 60.0), other) == []


def test_it_rests_on_the_launches_that_decided() -> None:
    """The first launch of a confirmed suspect was chosen for being slow."""
    suspect = result("sglang", 40.0, 60.0, 60.0, confirm=2)
    [gap] = gaps([suspect, result("vllm", 80.0)], ENGINES, lambda r: DEFAULT)
    assert gap.launches == (2, 1)
    assert gap.ratio == pytest.approx(0.75, rel=1e-3)
    assert gap.note is None


def test_notes() -> None:
    [gap] = gaps([result("sglang", 60.0), result("vllm", 80.0, verdict="inconclusive")], ENGINES, lambda r: DEFAULT)
    assert gap.note == f"vllm is inconclusive, and so is the gap; {ASSUMED}"


def test_each_side_has_its_engines_prior() -> None:
    """sglang's launches are known to agree, vllm's to differ: the interval is as wide as vllm's spread makes it."""
    both = [result("sglang", 60.0), result("vllm", 80.0)]

    def width(sglang: float, vllm: float) -> float:
        [gap] = gaps(both, ENGINES, lambda r: Prior(4.0, sglang if r.engine == "sglang" else vllm))
        assert gap.interval is not None
        return gap.interval[1] / gap.interval[0]

    assert width(0.001, 0.001) < width(0.001, 0.02) < width(0.02, 0.02)


def test_several_servers_of_a_test_are_paired_in_order() -> None:
    sides = [result(e, v, server=f"{e}-{v}") for e in ("sglang", "vllm") for v in (60.0, 30.0)]
    assert found(*sides) == [("sglang", "vllm", 1.0)] * 2
    assert found(*sides[:3]) == [("sglang", "vllm", 1.0)]


def test_the_interval_covers_the_planted_gap() -> None:
    """Launches of one engine agree to 0.2 %, those of the other differ by 1.5 %, known by their priors."""
    hits, priors = 0, {"sglang": Prior(4.0, 0.002), "vllm": Prior(4.0, 0.015)}
    for seed in range(300):
        rng = np.random.default_rng(seed)
        sides = [
            result(e, *(level * np.exp(rng.normal(0, priors[e].s0, 2))))
            for e, level in (("sglang", 63.6), ("vllm", 82.5))
        ]
        [gap] = gaps(sides, ENGINES, lambda r: priors[r.engine])
        assert gap.interval is not None
        hits += gap.interval[0] <= 63.6 / 82.5 <= gap.interval[1]
    assert hits >= 275  # 95 % of 300 are 285; fewer than 275 would be a chance of one in a hundred
