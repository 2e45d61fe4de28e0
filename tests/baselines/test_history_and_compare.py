from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.baselines import history
from pytest_llmperf.baselines.run_comparison import compare
from pytest_llmperf.baselines.series import Epoch, Series
from pytest_llmperf.records.results import LaunchValues, Result, SessionRecord

from .conftest import PRINT, make_launch

TEST = "t.py::test_a"


def series(*epochs: tuple[str, list[float]]) -> Series:
    made, n = [], 0
    for reason, values in epochs:
        made.append(Epoch(reason, tuple(make_launch(n + i, v) for i, v in enumerate(values))))
        n += len(values)
    return Series(TEST, "sglang", PRINT, tuple(made))


def test_history_holds_every_launch_in_order(tmp_path: Path) -> None:
    told = history.of(
        series(("first recording", [80, 81, 80]), ("decode_tok_s improved", [90])), "decode_tok_s", tmp_path
    )
    assert [p.value for p in told.points] == pytest.approx([80, 81, 80, 90], rel=1e-5)
    assert [p.epoch for p in told.points] == [0, 0, 0, 1]
    assert (told.unit, told.higher_is_better, told.test) == ("tok/s", True, TEST)
    assert told.center == pytest.approx(90, rel=1e-5)
    assert told.band is not None
    assert told.band[0] < 90 < told.band[1]
    assert told.path.startswith("sglang/t/test_a/h200-x1--")
    (change,) = told.changes
    assert (change.index, change.reason) == (3, "decode_tok_s improved")
    assert change.change == pytest.approx(0.12, abs=0.01)


def test_history_finds_a_level_that_moved_inside_an_epoch(tmp_path: Path) -> None:
    told = history.of(
        series(("first recording", [80, 80.4, 79.7, 80.1, 76, 76.2, 75.9, 76.1])), "decode_tok_s", tmp_path
    )
    (change,) = told.changes
    assert (change.index, change.reason) == (4, "")
    assert change.change == pytest.approx(-0.05, abs=0.01)


def test_history_of_a_metric_that_only_some_launches_hold(tmp_path: Path) -> None:
    mixed = Series(TEST, "sglang", PRINT, (Epoch("a", (make_launch(0), make_launch(1, ttft_ms=30.0))),))
    assert history.metrics(mixed) == ["decode_tok_s", "ttft_ms"]
    assert [p.id for p in history.of(mixed, "ttft_ms", tmp_path).points] == ["launch-0001"]
    older = replace(mixed, epochs=(*mixed.epochs, Epoch("b", (make_launch(2),))))
    told = history.of(older, "ttft_ms", tmp_path)
    assert (told.band, told.center, len(told.points)) == (None, None, 1)


# -- two runs


def result(values: list[float], *, prefix: str, metric: str = "decode_tok_s", **more: Any) -> Result:
    launches = tuple(LaunchValues(f"{prefix}{i}", (v * 0.999, v, v * 1.001), v) for i, v in enumerate(values))
    base = Result("n", TEST, "sglang", "k", metric, "tok/s", metric != "ttft_ms", "passed")
    value = sum(values) / len(values) if values else None
    return replace(base, value=value, launches=launches, **more)


def run(*results: Result) -> SessionRecord:
    return SessionRecord({}, results=results)


@pytest.mark.parametrize(
    ("metric", "now", "verdict"),
    [
        ("decode_tok_s", 80.0, "passed"),
        ("decode_tok_s", 60.0, "regressed"),
        ("decode_tok_s", 99.0, "improved"),
        ("ttft_ms", 99.0, "regressed"),
        ("ttft_ms", 60.0, "improved"),
    ],
)
def test_runs_are_compared_by_launches_and_direction(metric: str, now: float, verdict: str) -> None:
    a, b = (result([v, v * 1.005, v * 0.996], prefix=p, metric=metric) for v, p in ((80.0, "a"), (now, "b")))
    (row,) = compare(run(a), run(b)).rows
    assert row.verdict == verdict
    assert row.launches == (3, 3)
    assert row.change == pytest.approx(now / 80 - 1, abs=0.001)


def test_what_one_run_lacks_is_named() -> None:
    a, b = result([80.0], prefix="a"), result([20.0], prefix="b", metric="ttft_ms")
    found = compare(run(a), run(b))
    assert found.rows == ()
    assert found.only_a == ((TEST, "sglang", "decode_tok_s"),)
    assert found.only_b == ((TEST, "sglang", "ttft_ms"),)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (result([80.0], prefix="x"), result([80.0], prefix="x")),
        (result([], prefix="a"), result([80.0], prefix="b")),
        (result([80.0], prefix="a"), result([float("nan")], prefix="b")),
        (result([80.0], prefix="a"), result([0.0], prefix="b")),
        (result([80.0], prefix="a"), result([80.0], prefix="b", verdict="invalid")),
        (result([80.0], prefix="a"), result([80.0], prefix="b", workload={"output_tokens": 64})),
    ],
    ids=["one launch of both", "no launch", "nan", "zero", "invalid", "other workload"],
)
def test_what_cannot_be_compared_is_not(a: Result, b: Result) -> None:
    (row,) = compare(run(a), run(b)).rows
    assert row.verdict == "invalid"
    assert row.reason


def test_a_kept_server_is_no_evidence_about_itself() -> None:
    (row,) = compare(run(result([80.0], prefix="a")), run(result([79.0], prefix="a"))).rows
    assert "the same launch" in (row.reason or "")


def test_differences_of_identity_and_provenance_are_listed() -> None:
    a = result([80.0], prefix="a", fingerprint={"gpu": "H200"}, provenance={"driver": "570"})
    b = result([80.0], prefix="b", fingerprint={"gpu": "B200"}, provenance={"driver": "570", "NCCL_ALGO": "Ring"})
    (row,) = compare(run(a), run(b)).rows
    assert [(d.name, d.baseline, d.now) for d in row.differences] == [
        ("gpu", "H200", "B200"),
        ("NCCL_ALGO", "-", "Ring"),
    ]


def test_several_servers_of_one_test_are_paired_in_order() -> None:
    a = [result([v], prefix=f"a{v}") for v in (80.0, 40.0)]
    b = [result([v], prefix=f"b{v}") for v in (80.0, 40.0)]
    assert [r.a for r in compare(run(*a), run(*b)).rows] == [80.0, 40.0]
