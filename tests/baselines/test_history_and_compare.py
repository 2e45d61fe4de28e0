from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.baselines import history
from pytest_llmperf.baselines.metric_verdict import GateTerms, verdict_of
from pytest_llmperf.baselines.run_comparison import compare
from pytest_llmperf.baselines.series import Epoch, Series
from pytest_llmperf.measure.metrics import METRICS
from pytest_llmperf.records.results import LaunchValues, Result, SessionRecord
from pytest_llmperf.stats import Prior

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
        series(("first recording", [80, 81, 80]), ("decode_tok_s improved", [90])), METRICS["decode_tok_s"], tmp_path
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
        series(("first recording", [80, 80.4, 79.7, 80.1, 76, 76.2, 75.9, 76.1])), METRICS["decode_tok_s"], tmp_path
    )
    (change,) = told.changes
    assert (change.index, change.reason) == (4, "")
    assert change.change == pytest.approx(-0.05, abs=0.01)


def test_history_of_a_metric_that_only_some_launches_hold(tmp_path: Path) -> None:
    mixed = Series(TEST, "sglang", PRINT, (Epoch("a", (make_launch(0), make_launch(1, ttft_ms=30.0))),))
    assert [m.name for m in history.metrics(mixed)] == ["decode_tok_s", "ttft_ms"]
    assert [p.id for p in history.of(mixed, METRICS["ttft_ms"], tmp_path).points] == ["launch-0001"]
    older = replace(mixed, epochs=(*mixed.epochs, Epoch("b", (make_launch(2),))))
    told = history.of(older, METRICS["ttft_ms"], tmp_path)
    assert (told.band, told.center, len(told.points)) == (None, None, 1)


@pytest.mark.parametrize("hosts", ["a", "aaaab", "ab", "aaabbb"])
@pytest.mark.parametrize("spread", [0.001, 0.02])
def test_history_draws_the_band_that_the_gate_holds_a_launch_to(tmp_path: Path, hosts: str, spread: float) -> None:
    """With the host and the prior that it knows, whatever of the launches' own spread and of the prior decides."""
    values = [80 * (1 + spread * (-1) ** n) for n in range(6)]
    launches = tuple(make_launch(n, v, host=hosts[n % len(hosts)]) for n, v in enumerate(values))
    held = Series(TEST, "sglang", PRINT, (Epoch("first recording", launches),))
    prior, least, host = Prior(s0=0.004), 0.002, launches[-1].host
    told = history.of(held, METRICS["decode_tok_s"], tmp_path, prior, min_effect=least)
    terms = GateTerms("n", TEST, "sglang", "k", METRICS["decode_tok_s"], PRINT, host, min_effect=least, prior=prior)
    seen = verdict_of(terms, [make_launch(50, 80, host=host)], known=[held], folder=tmp_path, now=2e9).result
    assert seen.baseline is not None
    assert (told.band, told.center, told.host) == (seen.band, seen.baseline.value, host)


def test_a_level_that_comes_with_another_host_is_said_to(tmp_path: Path) -> None:
    launches = tuple(make_launch(n, 80 if n < 4 else 76, host="a" if n < 4 else "b") for n in range(8))
    (change,) = history.of(
        Series(TEST, "sglang", PRINT, (Epoch("first recording", launches),)), METRICS["decode_tok_s"], tmp_path
    ).changes
    assert (change.index, change.reason) == (4, "another host")


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


def on(host: str, *results: Result) -> SessionRecord:
    """A session on a host with one GPU."""
    return SessionRecord({"hardware": {"host": "vm", "gpus": [{"uuid": f"GPU-{host}"}]}}, results=results)


@pytest.mark.parametrize(
    ("hosts", "change", "verdict"),
    [("aa", -0.03, "regressed"), ("ab", -0.03, "passed"), ("ab", -0.30, "regressed"), ("ab", 0.04, "passed")],
)
def test_hosts_that_differ_are_no_difference_between_runs(hosts: str, change: float, verdict: str) -> None:
    """What two hosts of one GPU model differ by is not what is compared."""
    a, b = (
        on(host, result([v * 80, v * 80.1, v * 79.9], prefix=prefix))
        for host, prefix, v in zip(hosts, "ab", (1, 1 + change), strict=True)
    )
    (row,) = compare(a, b, lambda _: Prior(s0=0.006)).rows
    assert row.verdict == verdict
    assert row.change == pytest.approx(change, abs=0.002)


def test_the_prior_and_the_least_effect_are_the_gates() -> None:
    """Five per cent are much for SGLang's launches and nothing for those of llama.cpp on a shared host."""
    a, b = (run(result([v, v * 1.002, v * 0.998], prefix=p)) for v, p in ((80.0, "a"), (76.0, "b")))
    for prior, least, verdict in ((0.006, 0.01, "regressed"), (0.07, 0.01, "passed"), (0.006, 0.06, "passed")):
        asked: list[str] = []

        def known(of: Result, s0: float = prior, asked: list[str] = asked) -> Prior:
            asked.append(of.metric)
            return Prior(s0=s0)

        (row,) = compare(a, b, known, min_effect=least).rows
        assert (row.verdict, asked) == (verdict, ["decode_tok_s"])


@pytest.mark.parametrize(("value", "verdict"), [(40.0, "suspect"), (80.1, "passed"), (160.0, "faster")])
def test_nothing_is_called_worse_or_better_on_one_launch(value: float, verdict: str) -> None:
    a = run(result([80.0, 80.2, 79.9], prefix="a"))
    (row,) = compare(a, run(result([value], prefix="b"))).rows
    assert row.verdict == verdict
    (row,) = compare(a, run(result([value, 80.0, 80.1], prefix="b"))).rows
    assert row.verdict == "passed", "one odd launch of three"


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
    assert [r.a for r in compare(run(*a), run(*b)).rows] == pytest.approx([80.0, 40.0])
