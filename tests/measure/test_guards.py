"""Guards on the host, the GPUs and the client, on planted evidence."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any

import pytest

from pytest_llmperf.engines.base import Counters
from pytest_llmperf.measure.checks.gpu_guards import GpuWatch, gpu_guards
from pytest_llmperf.measure.checks.guards import client_guard, drift_guard
from pytest_llmperf.measure.checks.host_guards import HostSample, host_guards, process_tree, sample_host
from pytest_llmperf.measure.checks.nvml_state import GpuState, open_reader
from pytest_llmperf.measure.checks.traffic import graph_guard
from pytest_llmperf.measure.limits import DEFAULT, Limits
from pytest_llmperf.measure.metrics import Guard
from tests.conftest import StartFake, wait_for
from tests.measure.conftest import Measure

QUIET = GpuState(
    "GPU-1",
    sm_mhz=1900,
    max_sm_mhz=1980,
    reasons=0,
    power_w=500.0,
    power_limit_w=700.0,
    default_limit_w=700.0,
    temperature_c=60,
    slowdown_c=90,
    ecc=0,
    pids=(11,),
)


class FakeGpus:
    """Gives the states of its list one after another, the last one for ever."""

    def __init__(self, *states: GpuState) -> None:
        self.calls = 0
        self.closed = False
        self.states = list(states)

    def read(self, full: bool) -> tuple[GpuState, ...]:
        self.calls += 1
        return (self.states.pop(0) if len(self.states) > 1 else self.states[0],)

    def close(self) -> None:
        self.closed = True


def guards_of(before: GpuState, during: list[GpuState], after: GpuState) -> dict[str, Guard]:
    watch = GpuWatch(FakeGpus(before, after), DEFAULT)
    watch.before, watch.after = (before,), (after,)
    watch.during = [(state,) for state in during]
    return {guard.name: guard for guard in gpu_guards(watch, [11], DEFAULT)}


def test_a_quiet_gpu_trips_nothing() -> None:
    found = guards_of(QUIET, [QUIET] * 10, QUIET)
    assert len(found) == 7
    assert not [guard for guard in found.values() if guard.tripped]


@pytest.mark.parametrize(
    ("name", "during", "after", "said"),
    [
        ("gpu clock", replace(QUIET, sm_mhz=480), QUIET, "480 MHz of at most 1980"),
        ("gpu slowdown", replace(QUIET, reasons=0x20 | 0x4), QUIET, "software thermal slowdown"),
        ("gpu temperature", replace(QUIET, temperature_c=91), QUIET, "91 C, slows down at 90 C"),
        ("gpu ecc", QUIET, replace(QUIET, ecc=2), "2 uncorrected"),
        ("gpu power limit", QUIET, replace(QUIET, power_limit_w=400.0), "700 W when the measurement began"),
        ("gpu foreign processes", QUIET, replace(QUIET, pids=(11, os.getpid())), "pid {own}"),
    ],
)
def test_each_gpu_guard_trips(name: str, during: GpuState, after: GpuState, said: str) -> None:
    found = guards_of(QUIET, [during] * 10, after)
    assert [guard.name for guard in found.values() if guard.tripped] == [name]
    assert said.format(own=os.getpid()) in found[name].evidence


def test_clocks_that_swing_trip() -> None:
    found = guards_of(QUIET, [QUIET, replace(QUIET, sm_mhz=1300)] * 5, QUIET)
    assert found["gpu clock swing"].tripped


def test_the_power_cap_locked_clocks_and_a_low_limit_are_how_people_measure() -> None:
    locked = replace(QUIET, sm_mhz=1410, reasons=0x2 | 0x4, power_limit_w=500.0)
    assert not [g for g in guards_of(locked, [locked] * 10, locked).values() if g.tripped]


def test_process_ids_of_another_namespace_say_nothing() -> None:
    strange = replace(QUIET, pids=(os.getpid(),))
    guard = guards_of(strange, [strange], strange)["gpu foreign processes"]
    assert not guard.tripped
    assert "cannot be matched" in guard.evidence


def test_what_a_gpu_does_not_tell_is_no_guard() -> None:
    mute = GpuState("GPU-1")
    assert guards_of(mute, [mute], mute) == {}
    assert open_reader([]) is None


def test_gpus_are_read_twice_in_full_and_seldom_in_between(fake_server: StartFake, measure: Measure) -> None:
    gpus = FakeGpus(QUIET)
    server = fake_server("vllm", env={"FAKE_ITL_MS": 10})
    run = measure(server, connection={"gpus": ("GPU-1",)}, limits=Limits(warmup_requests=1, sample_s=0.0), gpus=gpus)
    seconds = run.measurement.evidence["seconds"]
    assert 2 <= gpus.calls <= 2 + seconds / 0.5
    assert run.measurement.evidence["nvml_calls"] == gpus.calls
    assert gpus.closed
    assert any(g.name == "gpu foreign processes" for g in run.measurement.guards)


HOST = HostSample(0.0, 0.0, 0.0, 0.0, {})


def test_waiting_for_a_cpu_is_the_harm() -> None:
    after = HostSample(10.0, 19.0, 0.1, 9.0, {(1, 1): (4.0, 0.2), (1, 2): (4.0, 1.5), (1, 3): (0.1, 5.0)})
    before = replace(HOST, threads_s={(1, 1): (0.0, 0.1), (1, 2): (0.0, 0.5)})
    [guard] = host_guards(before, after, DEFAULT, on_cpu=True)
    assert (guard.name, guard.tripped) == ("server starved", True)
    assert guard.value == pytest.approx(0.1)
    [guard] = host_guards(before, after, DEFAULT, on_cpu=False)
    assert not guard.tripped


def test_waiting_that_no_one_else_can_have_caused_is_the_servers_own() -> None:
    """Its threads stood in line for one second, while others ran for a tenth of one."""
    before, after = replace(HOST, threads_s={(1, 1): (0.0, 0.0)}), HostSample(10.0, 9.2, 0.1, 9.0, {(1, 1): (9.0, 1.0)})
    [guard] = host_guards(before, after, DEFAULT, on_cpu=True)
    assert not guard.tripped
    assert guard.value == pytest.approx(0.01)


def test_a_busy_host_that_leaves_the_server_its_cores_trips_nothing() -> None:
    after = HostSample(10.0, 1e3, 0.1, 9.0, {(1, 1): (9.0, 0.001)})
    [guard] = host_guards(replace(HOST, threads_s={(1, 1): (0.0, 0.0)}), after, DEFAULT, on_cpu=True)
    assert not guard.tripped


def test_without_waiting_times_the_load_is_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.cpu_count", lambda: 4)
    [guard] = host_guards(HOST, HostSample(10.0, 39.0, 1.0, 10.0, {}), DEFAULT, on_cpu=True)
    assert (guard.name, guard.tripped) == ("host load", True)
    [guard] = host_guards(HOST, HostSample(10.0, 39.0, 1.0, 36.0, {}), DEFAULT, on_cpu=True)
    assert not guard.tripped
    assert host_guards(HOST, HostSample(10.0, 39.0, 1.0, 0.0, {}), DEFAULT, on_cpu=True) == []  # remote server


def test_a_process_that_competes_for_its_core_is_seen_waiting() -> None:
    """Two busy loops on one core: each waits about half of the time."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("cannot pin processes here")
    core = min(os.sched_getaffinity(0))
    loop = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    pair = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(2)]
    try:
        wait_for(lambda: all(sample_host([p.pid]).server_s > 0.1 for p in pair), "both to run")
        before = sample_host([pair[0].pid])
        used = before.server_s + 0.2
        after = wait_for(lambda: (now := sample_host([pair[0].pid])).server_s > used and now, "it to run for a while")
    finally:
        for process in pair:
            process.kill()
            process.wait()
    if not after.threads_s:
        pytest.skip("the kernel does not tell waiting times")
    [guard] = host_guards(before, after, DEFAULT, on_cpu=True)
    assert guard.tripped
    assert guard.value is not None
    assert guard.value > 0.2


def test_a_process_that_is_gone_is_no_error() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert process_tree([gone.pid]) == []
    assert sample_host([gone.pid]).threads_s == {}


def test_drift_needs_a_trend_and_a_size() -> None:
    assert drift_guard([100.0, 98.0, 96.0, 94.0, 92.0], DEFAULT, on_cpu=False)[0].tripped
    assert not drift_guard([100.0, 99.9, 99.8, 99.7, 99.6], DEFAULT, on_cpu=False)[
        0
    ].tripped  # in order, but nothing to speak of
    assert not drift_guard([100.0, 92.0, 99.0, 93.0, 95.0], DEFAULT, on_cpu=False)[0].tripped  # spread, but in no order
    assert drift_guard([1.0, 2.0], DEFAULT, on_cpu=False) == []
    assert not drift_guard([100.0, 97.0, 94.0, 91.0, 88.0], DEFAULT, on_cpu=True)[0].tripped
    assert drift_guard([100.0, 80.0, 64.0, 51.0, 41.0], DEFAULT, on_cpu=True)[0].tripped


def test_client_cpu_is_a_share_of_one_core() -> None:
    assert client_guard(0.6, 1.0, 0.5).tripped
    assert not client_guard(0.4, 1.0, 0.5).tripped


def test_the_gpu_thread_ends_with_the_measurement() -> None:
    watch = GpuWatch(FakeGpus(QUIET), Limits(sample_s=0.5))
    watch.start()
    watch.stop()
    assert not [t for t in threading.enumerate() if t.name == "llmperf-gpus"]


BEFORE = Counters(captured_batches=40, uncaptured_batches=0)
EAGER = Counters(captured_batches=0, uncaptured_batches=40)


@pytest.mark.parametrize(
    ("before", "delta", "eager", "on_gpu", "said"),
    [
        (BEFORE, Counters(captured_batches=9, uncaptured_batches=0), False, True, ""),
        (
            BEFORE,
            Counters(captured_batches=9, uncaptured_batches=3),
            False,
            True,
            "3 decode batches ran outside",
        ),
        (
            BEFORE,
            Counters(captured_batches=0, uncaptured_batches=3),
            False,
            False,
            "3 decode batches ran outside",
        ),
        (EAGER, Counters(captured_batches=0, uncaptured_batches=7), False, True, "all 7 decode batches ran eagerly"),
        (EAGER, Counters(captured_batches=0, uncaptured_batches=7), True, False, None),
        (None, Counters(), True, True, "every decode batch ran eagerly"),
        (Counters(), Counters(uncaptured_batches=3), False, False, "3 decode batches ran outside"),
        (None, Counters(), False, True, None),
    ],
    ids=["captured", "some", "some, elsewhere", "eager", "on a CPU", "eager, uncounted", "counted by half", "unknown"],
)
def test_batches_outside_graphs(
    before: Counters | None, delta: Counters, eager: bool, on_gpu: bool, said: str | None
) -> None:
    guards = graph_guard(before, delta, eager=eager, on_gpu=on_gpu)
    assert [g.tripped for g in guards] == ([] if said is None else [bool(said)])
    assert all((said or "") in g.evidence and not g.spoils for g in guards)


@pytest.mark.parametrize(
    ("dialect", "flags", "connection"),
    [
        ("sglang", ("--enable-metrics", "--disable-cuda-graph"), {}),
        ("vllm", ("--enforce-eager",), {"eager": True}),
    ],
)
def test_an_eager_server_on_a_gpu_is_told(
    fake_server: StartFake, measure: Measure, dialect: str, flags: tuple[str, ...], connection: dict[str, Any]
) -> None:
    server = fake_server(dialect, *flags)
    run = measure(server, connection={"gpus": ("GPU-1",), **connection}, gpus=FakeGpus(QUIET))
    [guard] = [g for g in run.measurement.guards if g.name == "captured graphs"]
    assert guard.tripped
    assert "ran eagerly: no graph was captured" in guard.evidence
