"""The course of one measurement: warm-up, repetitions, speculation, what is said about it."""

from __future__ import annotations

import copy
import json
import pickle
import statistics
from dataclasses import replace

import pytest

from pytest_llmperf.engines.base import Counters
from pytest_llmperf.engines.vllm.vllm_adapter import VLLM
from pytest_llmperf.errors import MeasurementError
from pytest_llmperf.measure.limits import Limits
from pytest_llmperf.measure.metrics import METRICS, Measurement
from pytest_llmperf.measure.run import Run
from pytest_llmperf.measure.workloads import Workload
from tests.conftest import StartFake
from tests.measure.conftest import Measure, assert_true, connection_to

WARM = Limits()


@pytest.mark.usefixtures("planned_times")
def test_warm_up_goes_on_until_the_server_is_steady(fake_server: StartFake, measure: Measure) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 8, "FAKE_WARMUP_REQUESTS": 4, "FAKE_WARMUP_FACTOR": 4})
    run = measure(server, limits=WARM)
    warmup = run.measurement.warmup
    assert warmup is not None
    assert warmup.steady
    assert warmup.requests >= 5  # four slow ones and at least one that is not
    assert warmup.values[-1] / warmup.values[0] == pytest.approx(4, rel=0.2)
    assert min(run.decode_tok_s.values) / max(run.decode_tok_s.values) > 0.5  # not one of the slow four among them


@pytest.mark.usefixtures("planned_times")
def test_warm_up_is_bounded_and_says_so(fake_server: StartFake, measure: Measure) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 1, "FAKE_WARMUP_REQUESTS": 50, "FAKE_WARMUP_FACTOR": 40})
    run = measure(server, limits=Limits(warmup_requests=4))
    assert run.measurement.warmup is not None
    assert (run.measurement.warmup.requests, run.measurement.warmup.steady) == (4, False)
    assert any(note.startswith("not steady after 4 warm-up requests") for note in run.measurement.notes)


@pytest.mark.usefixtures("planned_times")
def test_repetitions_go_on_until_the_mean_is_known(fake_server: StartFake, measure: Measure) -> None:
    noisy = fake_server("vllm", env={"FAKE_ITL_MS": 8, "FAKE_REQUEST_CV": 0.1})
    assert len(measure(noisy, precision=0.005, repetitions=5, max_repetitions=8).requests) == 8
    calm = fake_server("vllm", env={"FAKE_ITL_MS": 8})
    assert len(measure(calm, precision=0.2, repetitions=5, max_repetitions=8).requests) == 5


@pytest.mark.usefixtures("planned_times")
def test_a_hiccup_is_shown_and_moves_nothing(fake_server: StartFake, measure: Measure) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 10, "FAKE_STALL": "400:10@5"})
    run = measure(server, repetitions=8)
    slow = run.requests[3]
    assert any(note.startswith(f"request {slow.id} was -6") for note in run.measurement.notes)
    others = [v for i, v in enumerate(run.decode_tok_s.values) if i != 3]
    assert run.decode_tok_s == pytest.approx(statistics.median(others), rel=0.05)
    assert len(others) == 7


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_usage_in_every_chunk_is_asked_for_when_chunks_are_not_tokens(
    fake_server: StartFake, measure: Measure, dialect: str
) -> None:
    server = fake_server(dialect, env={"FAKE_ITL_MS": 4, "FAKE_TOKENS_PER_CHUNK": "1,5"})
    run = measure(server)
    assert run.measurement.evidence["continuous_usage"]
    assert not [note for note in run.measurement.notes if "n_1" in note]
    plain = measure(fake_server(dialect, env={"FAKE_ITL_MS": 4}))
    assert not plain.measurement.evidence["continuous_usage"]


@pytest.mark.usefixtures("planned_times")
@pytest.mark.parametrize(("tokens", "invalid"), [("4", True), (",".join(["1"] * 60 + ["2"]), False)])
def test_an_unknown_first_chunk_is_bounded_or_invalid(
    fake_server: StartFake, measure: Measure, tokens: str, invalid: bool
) -> None:
    class Silent(VLLM):
        traits = replace(VLLM.traits, continuous_usage=False)

    server = fake_server("vllm", env={"FAKE_ITL_MS": 2, "FAKE_TOKENS_PER_CHUNK": tokens})
    run = measure(server, connection={"engine": Silent()}, output_tokens=110 if not invalid else 24)
    assert any("tokens of the first chunk unknown" in note for note in run.measurement.notes)
    if invalid:
        [why] = run.measurement.invalid
        assert "its first chunk holds 1 to 19 of 24 tokens, so its decode rate is known to 360% only" in why
    else:
        assert run.decode_tok_s == pytest.approx(500, rel=0.1)


@pytest.mark.parametrize("interval", [1, 4])
def test_speculation_is_counted_for_every_repetition(fake_server: StartFake, measure: Measure, interval: int) -> None:
    env = {"FAKE_ITL_MS": 5, "FAKE_SPEC_ACCEPT": 2.5, "FAKE_SPEC_DRAFT": 4}
    server = fake_server("vllm", "--stream-interval", str(interval), env=env)
    run = measure(server, output_tokens=51, precision=0.5, repetitions=4)  # 20 verify steps of 2.5
    assert run.acceptance_length.values == (2.5,) * 4
    assert run.acceptance_rate.values == (1.5 / 4,) * 4
    assert_true(server, run)
    assert run.steps_s.values == pytest.approx([rate / 2.5 for rate in run.decode_tok_s.values])


def test_without_speculation_there_is_no_acceptance(fake_server: StartFake, measure: Measure) -> None:
    run = measure(fake_server("vllm", env={"FAKE_ITL_MS": 1}))
    with pytest.raises(AttributeError, match=r"no 'acceptance_length'; its metrics are: decode_tok_s, ttft_ms"):
        _ = run.acceptance_length


def test_one_output_token_has_a_ttft_and_no_rate(fake_server: StartFake, measure: Measure) -> None:
    run = measure(fake_server("vllm", env={"FAKE_TTFT_MS": 30}), output_tokens=1)
    assert not run.measurement.invalid
    assert run.metrics == ("ttft_ms", "e2e_ms")
    assert run.ttft_ms == pytest.approx(30, abs=15)


def test_evidence_and_guards_are_in_the_record(fake_server: StartFake, measure: Measure) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 4})
    measurement = measure(server, repetitions=5).measurement
    evidence = measurement.evidence
    assert json.loads(json.dumps(evidence)) == evidence
    assert evidence["chunks_per_token"] == 1.0
    assert evidence["kernel_stamps"] == 1.0
    assert evidence["client_cpu_s_per_1000_tokens"] > 0
    assert evidence["counters"]["generation_tokens"] == 5 * 24
    names = [guard.name for guard in measurement.guards]
    assert {"client delay", "client cpu", "drift", "other traffic", "preemptions"} <= set(names)
    assert {"server starved", "host load"} & set(names)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"FAKE_PREEMPTIONS": "1@3"}, "preemptions"),
        ({"FAKE_DRIFT": 0.05}, "drift"),
    ],
)
def test_a_guard_trips_and_says_why(
    fake_server: StartFake, measure: Measure, settings: dict[str, object], name: str
) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 8, **settings})
    run = measure(server, repetitions=6)
    [guard] = [g for g in run.measurement.guards if g.name == name]
    assert guard.tripped
    assert guard.value is not None
    assert guard.limit is not None
    assert guard.value > guard.limit
    assert guard.advice
    assert not run.measurement.invalid


@pytest.mark.parametrize("accept", [0, 2])
def test_the_engine_is_never_asked_while_a_request_runs(fake_server: StartFake, measure: Measure, accept: int) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 4, "FAKE_SPEC_ACCEPT": accept})
    read = connection_to(server).counters
    seen: list[float | None] = []

    def counters() -> Counters | None:
        now = read()
        seen.append(now.running if now else None)
        return now

    run = measure(server, connection={"counters": counters}, repetitions=4)
    assert not run.measurement.invalid
    assert set(seen) == {0.0}
    assert len(seen) >= (6 if accept else 2)


def test_foreign_requests_trip_a_guard(fake_server: StartFake, measure: Measure) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 4})
    measured = connection_to(server)

    def counters() -> Counters | None:
        strange = measured.counters()
        if strange is not None and len(server.truth) > 1:
            strange = replace(strange, generation_tokens=(strange.generation_tokens or 0) + 500)
        return strange

    run = measure(server, connection={"counters": counters})
    assert any(g.name == "other traffic" and g.tripped for g in run.measurement.guards)


def test_a_run_reads_like_its_metrics() -> None:
    values = {"decode_tok_s": (100.0, 102.0, 98.0), "ttft_ms": (10.0, 11.0, 9.0)}
    run = Run(Measurement("l", Workload(), values))
    assert run.decode_tok_s == pytest.approx(100, rel=0.001)
    assert run.decode_tok_s.values == values["decode_tok_s"]
    assert run.decode_tok_s.metric is METRICS["decode_tok_s"]
    assert run.decode_tok_s.measurement is run.measurement
    assert run.metrics == ("decode_tok_s", "ttft_ms")
    assert "decode_tok_s" in dir(run)
    assert "99.99 tok/s" in repr(run)
    with pytest.raises(AttributeError, match="no 'speed'; its metrics are: decode_tok_s, ttft_ms"):
        _ = run.speed
    assert copy.copy(run).ttft_ms == run.ttft_ms
    assert pickle.loads(pickle.dumps(run)).ttft_ms == run.ttft_ms


def test_an_invalid_run_gives_no_number() -> None:
    run = Run(Measurement("l", Workload(), {"ttft_ms": (1.0,)}, invalid=("request r-1: HTTP 500",)))
    with pytest.raises(MeasurementError, match="request r-1: HTTP 500"):
        _ = run.ttft_ms
    assert "invalid" in repr(run)


def test_a_rate_of_zero_is_a_value() -> None:
    assert Run(Measurement("l", Workload(), {"acceptance_rate": (0.0, 0.0, 0.1)})).acceptance_rate == 0.0
