"""Which loads make one curve, and what it is called."""

from __future__ import annotations

import pytest

from pytest_llmperf.measure.metrics import Measurement
from pytest_llmperf.measure.workloads import Workload
from pytest_llmperf.records.encode import plain
from pytest_llmperf.tuning.loads import Load, curves, load_of

VALUES = {"output_tok_s": (100.0,), "stream_tok_s": (50.0,), "ttft_ms": (7.0,)}


def load(test: str, concurrency: int, speed: float = 0.0, server: str = "key", **work: int) -> Load:
    workload = Workload(concurrency=concurrency, requests=4 * concurrency, **work)
    measured = Measurement("launch", workload, {**VALUES, "output_tok_s": (speed or 60.0 * concurrency,)})
    made = load_of(test, "sglang", server, measured, 48)
    assert made is not None
    assert Load.from_json(plain(made)) == made
    return made


def test_one_test_with_several_concurrencies() -> None:
    speeds = {1: 60, 2: 120, 4: 240, 8: 480, 16: 490, 32: 495}
    [curve] = curves(load("t.py::test_peak", c, s) for c, s in speeds.items())
    assert (curve.test, curve.engine, curve.max_running_requests, curve.knee) == ("t.py::test_peak", "sglang", 48, 8)
    assert {p.concurrency: p.output_tok_s for p in curve.points} == pytest.approx(speeds)
    assert (curve.points[0].stream_tok_s, curve.points[0].ttft_ms) == (pytest.approx(50.0), pytest.approx(7.0))


def test_a_parametrized_test_is_one_curve_named_without_what_varies() -> None:
    [curve] = curves(load(f"t.py::test_peak[{c}]", c) for c in (1, 2, 4))
    assert curve.test == "t.py::test_peak"
    assert curve.knee is None
    long, short = curves(
        load(f"t.py::test_peak[{c}-{kind}]", c, output_tokens=tokens)
        for kind, tokens in (("long", 512), ("short", 64))
        for c in (1, 2)
    )
    assert (long.test, short.test) == ("t.py::test_peak[long]", "t.py::test_peak[short]")


def test_servers_are_kept_apart_and_launches_are_not() -> None:
    points = [load("t.py::test", c, 100.0 * c, server=s) for s in ("one", "two") for c in (1, 2)]
    again = load("t.py::test", 2, 220.0, server="one")
    one, two = curves([*points, again])
    assert [len(one.points), len(two.points)] == [2, 2]
    assert one.points[1].output_tok_s == pytest.approx((200 * 220) ** 0.5)
    assert two.points[1].output_tok_s == pytest.approx(200)


def test_one_concurrency_is_no_curve() -> None:
    assert curves([load("t.py::test", 8), load("t.py::other", 4)]) == []


@pytest.mark.parametrize(
    "measured",
    [
        Measurement("launch", Workload(), {"decode_tok_s": (60.0,)}),
        Measurement("launch", Workload(rate=3.0, seconds=5.0), VALUES),
        Measurement("launch", Workload(concurrency=4, requests=16), VALUES, invalid=("short",)),
    ],
    ids=["one stream", "arrivals", "invalid"],
)
def test_what_is_no_point(measured: Measurement) -> None:
    assert load_of("t.py::test", "sglang", "key", measured, None) is None
