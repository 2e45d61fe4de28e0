"""What a sweep makes of its launches, without any: which come next, what counts, what is noted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_llmperf.engines.base import EffectiveConfig, Endpoint
from pytest_llmperf.errors import MeasurementError
from pytest_llmperf.measure.metrics import METRICS, Guard, Measurement
from pytest_llmperf.measure.workloads import Workload
from pytest_llmperf.records.gaps_and_sweeps import Effect
from pytest_llmperf.report import grids
from pytest_llmperf.server.launch import Launch
from pytest_llmperf.server_config import ServerConfig
from pytest_llmperf.session.perf_marker import Perf
from pytest_llmperf.session.sweep_test import SweepTest, members
from pytest_llmperf.stats import Prior
from pytest_llmperf.tuning.plan import plan

SPEED = {"decode_tok_s": (100.0, 101.0)}


def made(perf: Perf | None = None, **marker: Any) -> SweepTest:
    planned = plan({"nccl__proto": ["LL", "Simple"], **marker}, {"model": "m"})

    def config(keywords: Any) -> ServerConfig:
        nccl = {f"NCCL_{k.upper()}": v for k, v in keywords.get("nccl", {}).items()}
        return ServerConfig("sglang", keywords["model"], tp=keywords.get("tp", 1), nccl=nccl)

    return SweepTest("t.py::t[sglang]", "t.py::t", perf, "sglang", planned, members(planned, config))


def launch(test: SweepTest, values: dict[str, tuple[float, ...]] = SPEED, workload: Workload | None = None,
           effective: EffectiveConfig | None = None, guards: tuple[Guard, ...] = ()) -> None:  # fmt: skip
    """One launch of the config that ``test`` is at, and a measurement on it."""
    assert test.config is not None
    made = f"{test.slot.name} {test.slot.repeat}"
    took = effective or EffectiveConfig()
    test.launches[made] = Launch(made, test.config, Endpoint("127.0.0.1", 1), took, 1.0, 0.0, "m")
    test.measured(Measurement(made, workload or Workload(), values, guards=guards))


def effects(test: SweepTest, metric: str = "decode_tok_s", ignored: Sequence[str] = ()) -> dict[str, Effect]:
    [found] = [s for s in test.sweeps(lambda *_: Prior(), ignored) if s.metric == metric]
    return {e.setting: e for e in found.effects}


def test_the_base_comes_between_and_last() -> None:
    test = made()
    assert [(slot.name, test.last) for slot in test.slots()] == [
        ("base", False),
        ("nccl.proto=LL", False),
        ("nccl.proto=Simple", False),
        ("nccl.proto=Simple", False),
        ("nccl.proto=LL", False),
        ("base", True),
    ]


def test_what_failed_is_not_launched_again_and_nothing_is_launched_in_vain() -> None:
    test = made(launches=4)
    seen = []
    for slot in test.slots():
        seen.append((slot.name, test.last))
        if slot.name != "base":
            test.failures[slot.name] = "died"
    assert seen == [("base", False), ("nccl.proto=LL", False), ("nccl.proto=Simple", False), ("base", True)]


def test_what_is_measured_twice_on_a_launch_is_more_of_the_same() -> None:
    test = made(launches=1)
    for slot in test.slots():
        launch(test)
        if slot.name == "nccl.proto=LL":
            launch(test)
    assert {k: e.launches for k, e in effects(test).items()} == {"LL": 1, "Simple": 1}


def test_workloads_are_told_apart() -> None:
    test = made(launches=1, name="mine")
    for _ in test.slots():
        launch(test)
        launch(test, {"output_tok_s": (900.0,)}, Workload(concurrency=8))
    names = [(s.name, s.metric) for s in test.sweeps(lambda *_: Prior(), [])]
    assert names == [("mine (concurrency=1)", "decode_tok_s"), ("mine (concurrency=8)", "output_tok_s")]


def test_what_was_measured_with_another_workload_is_not_compared() -> None:
    test = made(launches=1)
    for slot in test.slots():
        launch(test, workload=Workload(concurrency=8 if slot.name == "nccl.proto=LL" else 1))
    one, eight = test.sweeps(lambda *_: Prior(), [])
    assert {e.setting: e.failure for e in one.effects} == {
        "Simple": None,
        "LL": "nccl.proto=LL was measured with another workload",
    }
    assert [e.note for e in eight.effects if e.setting == "LL"] == [
        "no base to compare with: base was measured with another workload"
    ]


def test_with_perf_its_metrics_are_swept() -> None:
    test = made(Perf((METRICS["ttft_ms"],)))
    next(test.slots())
    launch(test, SPEED)
    assert test.missing() == ("no ttft_ms",)
    launch(test, {"ttft_ms": (10.0,), **SPEED})
    assert test.missing() == ()
    assert [s.metric for s in test.sweeps(lambda *_: Prior(), [])] == ["ttft_ms"]
    assert (test.metric_count, test.gates) == (0, False)


def test_a_metric_that_a_config_does_not_have_or_that_is_zero() -> None:
    test = made(launches=1)
    for slot in test.slots():
        rate = {"base": {}, "nccl.proto=LL": {"acceptance_rate": (0.3,)}}.get(slot.name, {"acceptance_rate": (0.0,)})
        launch(test, {**SPEED, **rate})
    found = effects(test, "acceptance_rate")
    assert (found["LL"].value, found["LL"].ratio) == (pytest.approx(0.3), None)
    assert found["LL"].note == "no base to compare with: base has no acceptance_rate"
    assert "acceptance_rate of 0" in (found["Simple"].failure or "")
    assert effects(test)["LL"].ratio == pytest.approx(1)


def test_what_is_invalid_or_taken_back_does_not_count() -> None:
    test = made(launches=1)
    slots = test.slots()
    next(slots)
    launch(test)
    next(slots)
    with pytest.raises(MeasurementError, match="invalid:\n  too short"):
        test.measured(Measurement("x", Workload(), {}, invalid=("too short",)))
    launch(test)
    test.discard()
    assert effects(test)["LL"].failure == "not launched"
    assert test.missing() == ("nothing",)


def test_an_nccl_knob_is_judged_by_what_its_own_launch_resolved_to() -> None:
    test = made(launches=1, base={"tp": 8})
    for slot in test.slots():
        launch(test, effective=EffectiveConfig(tp=8, custom_all_reduce=slot.name != "nccl.proto=Simple"))
    test.failures["nccl.proto=Simple"] = "died: later"
    found = effects(test)
    assert (found["LL"].note or "").startswith("custom all-reduce is on: NCCL does not carry decode")
    assert found["Simple"].note == "no further launch: died: later"


@pytest.mark.parametrize("where", ["base", "nccl.proto=LL"])
def test_no_effect_is_credible_that_rests_on_a_disturbed_launch(where: str) -> None:
    test = made(launches=1)
    guards = Guard("gpu clock", True, "480 MHz"), Guard("ignored", True, "x"), Guard("fine", False, "y")
    for slot in test.slots():
        speed = {"decode_tok_s": (200.0 if slot.name == "nccl.proto=LL" else 100.0,)}
        launch(test, speed, guards=guards if slot.name == where and slot.repeat == 1 else guards[1:])
    [found] = test.sweeps(lambda *_: Prior(), ["ignored"])
    by_setting = {e.setting: e for e in found.effects}
    assert not by_setting["LL"].credible
    assert grids.effect_words(by_setting["LL"], True) == "inconclusive"
    assert (by_setting["LL"].note, found.note) == ((None, "gpu clock: 480 MHz") if where == "base"
                                                   else ("gpu clock: 480 MHz", None))  # fmt: skip
    assert effects(test, ignored=["gpu clock", "ignored"])["LL"].credible
