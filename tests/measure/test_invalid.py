"""Requests that must not count: each named with its id, none of them ever a value."""

from __future__ import annotations

import pytest

from pytest_llmperf.errors import MeasurementError, ServerDiedError
from pytest_llmperf.measure.limits import Limits
from tests.conftest import StartFake
from tests.measure.conftest import Measure

FAULTS = {
    "early end of sequence": ({"EOS_AT": "10@3"}, "10 output tokens instead of 24"),
    "empty output": ({"EOS_AT": "0@3"}, "no chunk had any content"),
    "usage that lies": ({"USAGE_OFF_BY": 1}, "25 output tokens instead of 24"),
    "no usage": ({"USAGE": "none"}, "no usage"),
    "cut off": ({"TRUNCATE_AT": "10@3"}, "cut off"),
    "cut off with a clean HTTP end": ({"TRUNCATE_AT": "10@3", "TRUNCATE_CLEAN": 1}, "without a finish_reason"),
    "connection reset": ({"RESET_AT": "10@3"}, "Connection reset by peer"),
    "error in the stream": ({"ERROR_EVENT_AT": "10@3"}, "EngineCore encountered an issue"),
    "server error": ({"HTTP_ERROR": "500@3"}, "HTTP 500"),
    "rate limited": ({"HTTP_ERROR": "429@3"}, "HTTP 429"),
    "wrong model": ({"RESPONSE_MODEL": "other"}, "answered by model 'other', asked for 'fake-model'"),
    "all at once": ({"EVENTS_PER_SEGMENT": 99}, "did not stream"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_request_makes_the_measurement_invalid(fake_server: StartFake, measure: Measure, fault: str) -> None:
    settings, reason = FAULTS[fault]
    server = fake_server("vllm", env={"FAKE_ITL_MS": 1, **{f"FAKE_{k}": v for k, v in settings.items()}})
    run = measure(server)
    [said] = [r for r in run.measurement.invalid if reason in r]
    bad = next(r for r in run.requests if r.problems)
    assert said.startswith(f"request {bad.id}: ")
    assert bad.ttft_ms is None
    with pytest.raises(MeasurementError, match="invalid") as refused:
        _ = run.decode_tok_s
    assert said in str(refused.value)


def test_a_failed_request_is_not_retried(fake_server: StartFake, measure: Measure) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 1, "FAKE_TRUNCATE_AT": "5@2"})
    assert measure(server).measurement.invalid
    assert len(server.truth) == 2


def test_a_wrong_key_is_said_before_anything_is_measured(fake_server: StartFake, measure: Measure) -> None:
    server = fake_server("vllm", api_key="right")
    server.api_key = "wr0ng-key"
    run = measure(server)
    assert "HTTP 401" in run.measurement.invalid[0]
    assert "wr0ng-key" not in str(run.measurement)


def test_nobody_listens(fake_server: StartFake, measure: Measure) -> None:
    server = fake_server("vllm")
    server.stop()
    with pytest.raises(MeasurementError, match="did not answer"):
        measure(server)


def test_a_server_that_dies_is_an_error_of_the_server(fake_server: StartFake, measure: Measure) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 1, "FAKE_DIE": "10@3"})

    def check() -> None:
        if server.process.wait(5) is not None:
            raise ServerDiedError("killed by signal 9")

    with pytest.raises(ServerDiedError, match="signal 9"):
        measure(server, connection={"check": check})


def test_a_silent_server_times_out_and_is_looked_at_meanwhile(fake_server: StartFake, measure: Measure) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 1, "FAKE_SILENT_AT": "10@2"})
    looks: list[int] = []
    limits = Limits(warmup_requests=1, idle_s=1.0)
    run = measure(server, connection={"check": lambda: looks.append(1)}, limits=limits)
    assert "timed out: nothing came for" in run.measurement.invalid[0]
    assert looks


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_cached_prompts_are_found_in_usage(fake_server: StartFake, measure: Measure, dialect: str) -> None:
    flag = "--enable-cache-report" if dialect == "sglang" else "--enable-prompt-tokens-details"
    server = fake_server(dialect, flag, env={"FAKE_ITL_MS": 1, "FAKE_ALWAYS_CACHED": 0.5})
    run = measure(server, prompt_tokens=64)
    assert "32 of 64 prompt tokens came from the cache" in run.measurement.invalid[0]


def test_cached_prompts_are_found_in_the_counters(fake_server: StartFake, measure: Measure) -> None:
    server = fake_server("sglang", "--enable-metrics", env={"FAKE_ITL_MS": 1, "FAKE_ALWAYS_CACHED": 0.5})
    run = measure(server, prompt_tokens=64)
    assert run.measurement.invalid == ("96 prompt tokens came from the cache (server's counter)",)
    assert all(r.ttft_ms for r in run.requests)


def test_fresh_prompts_hit_no_cache(fake_server: StartFake, measure: Measure) -> None:
    server = fake_server("sglang", "--enable-cache-report", env={"FAKE_ITL_MS": 1})
    run = measure(server, prompt_tokens=64, repetitions=10)
    assert not run.measurement.invalid
    assert sum(record["cached_tokens"] for record in server.truth) == 0
