"""Many streams: rates over the steady window, arrivals, queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from pytest_llmperf.errors import ServerDiedError
from pytest_llmperf.measure.client.answer import Answer
from pytest_llmperf.measure.client.compiler import Call
from pytest_llmperf.measure.client.request_outcome import RequestOutcome
from pytest_llmperf.measure.client.timing import Timing
from pytest_llmperf.measure.limits import Limits
from pytest_llmperf.measure.load import load
from pytest_llmperf.measure.run import Run, launch_value
from pytest_llmperf.measure.steady import hiccups
from pytest_llmperf.measure.window import Ended, Window, closed_window, window_values
from pytest_llmperf.measure.workloads import Workload
from tests.conftest import FakeServer, StartFake
from tests.measure.conftest import connection_to

ONE_WAVE = Limits(warmup_requests=1)


def run_load(server: FakeServer, connection: dict[str, Any] | None = None, **workload: Any) -> Run:
    asked = {"prompt_tokens": 16, "output_tokens": 24, "concurrency": 4, **workload}
    return load(connection_to(server, **(connection or {})), Workload(**asked), seed="x", limits=ONE_WAVE)


def measured(server: FakeServer, run: Run) -> list[dict[str, Any]]:
    ids = {r.server_id for r in run.requests}
    return [record for record in server.truth if record["request"] in ids]


def window_truth(records: list[dict[str, Any]], streams: int) -> tuple[float, float]:
    """(tokens per second of all streams, of one stream) over the steady window, from the stand-in's own times."""
    records = sorted(records, key=lambda r: r["t0"])
    start = max(r["chunks"][0][2] for r in records[:streams])
    end = min(r["chunks"][-1][2] for r in records[-streams:])
    tokens = decoded = span = 0.0
    for record in records:
        at = np.array([row[2] for row in record["chunks"]])
        inside = at[(at > start) & (at <= end)]
        tokens += len(inside)
        if len(inside) > 1:
            decoded += len(inside) - 1
            span += inside[-1] - inside[0]
    return tokens / (end - start), decoded / span


@pytest.mark.parametrize("tokens_per_chunk", ["", "4"])
def test_closed_loop_rates_are_true(fake_server: StartFake, tokens_per_chunk: str) -> None:
    env = {"FAKE_ITL_MS": 20, "FAKE_LOCKSTEP": 1, "FAKE_TOKENS_PER_CHUNK": tokens_per_chunk}
    server = fake_server("vllm", env=env)
    run = run_load(server, requests=16)
    assert not run.measurement.invalid
    assert len(run.requests) == 16
    if not tokens_per_chunk:
        both, each = window_truth(measured(server, run), 4)
        assert run.output_tok_s == pytest.approx(both, rel=0.03)
        assert run.stream_tok_s == pytest.approx(each, rel=0.01)
    assert run.stream_tok_s == pytest.approx(50, rel=0.05)
    assert run.itl_p50_ms == pytest.approx(20, rel=0.1)
    assert run.measurement.evidence["window_s"] > 1


def test_four_streams_are_never_more_nor_less(fake_server: StartFake) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 10})
    run = run_load(server, requests=12)
    records = measured(server, run)
    starts = [(r["t0"], 1) for r in records] + [(r["chunks"][-1][2], -1) for r in records]
    in_flight = np.cumsum([step for _, step in sorted(starts)])
    assert in_flight.max() == 4
    assert len({r.id for r in run.requests}) == 12


def test_seconds_bound_a_closed_loop(fake_server: StartFake) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 5})
    run = run_load(server, seconds=1.0)
    first = min(r.sent_s for r in run.requests)
    assert 0.5 < max(r.sent_s for r in run.requests) - first < 1.2
    assert not run.measurement.invalid


def test_poisson_arrivals_come_when_they_should_and_the_same_way_twice(fake_server: StartFake) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 5})
    first, second = (run_load(server, rate=30.0, requests=30) for _ in range(2))
    assert not first.measurement.invalid
    sent = np.sort([r.sent_s for r in first.requests])
    assert np.mean(np.diff(sent)) == pytest.approx(1 / 30, rel=0.5)
    assert max(r.e2e_ms or 0 for r in first.requests) > np.mean(np.diff(sent)) * 1e3  # they overlap
    assert len(second.requests) == 30
    assert first.measurement.evidence["late_p99_ms"] >= 0
    assert "late_p99_ms" not in run_load(server, requests=4).measurement.evidence  # a closed loop has no times to keep


def test_an_open_loop_does_not_wait_for_the_server(fake_server: StartFake) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 40})
    run = run_load(server, rate=50.0, requests=20, output_tokens=12)
    span = max(r.sent_s for r in run.requests) - min(r.sent_s for r in run.requests)
    assert span < 1.5  # a closed loop of the same requests takes 4 s or more


@pytest.mark.parametrize("limit", [2, 8])
def test_a_queue_is_seen_without_being_polled(fake_server: StartFake, limit: int) -> None:
    server = fake_server("vllm", "--max-num-seqs", str(limit), env={"FAKE_ITL_MS": 10})
    [guard] = [g for g in run_load(server, requests=12).measurement.guards if g.name == "queueing"]
    assert (guard.tripped, guard.value) == (limit < 4, min(limit, 4))


def test_no_steady_window_is_said(fake_server: StartFake) -> None:
    run = run_load(fake_server("vllm", env={"FAKE_ITL_MS": 1}), requests=1)
    assert any("no steady window" in reason for reason in run.measurement.invalid)


def test_one_bad_request_of_many_is_named(fake_server: StartFake) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 2, "FAKE_EOS_AT": "10@8"})
    run = run_load(server, requests=8)
    [reason] = [r for r in run.measurement.invalid if "10 output tokens instead of 24" in r]
    assert reason.startswith("request launch-1-measured-")


def test_a_dead_server_is_an_error_of_the_server(fake_server: StartFake) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 2, "FAKE_DIE": "10@8"})

    def check() -> None:
        if server.process.wait(5) is not None:
            raise ServerDiedError("gone")

    with pytest.raises(ServerDiedError):
        run_load(server, {"check": check}, requests=8)


def test_speculation_is_counted_over_the_window(fake_server: StartFake) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 5, "FAKE_SPEC_ACCEPT": 2.5, "FAKE_SPEC_DRAFT": 4})
    run = run_load(server, requests=8, output_tokens=51)  # 50 tokens after the first: 20 steps of 2.5
    assert run.acceptance_length == pytest.approx(2.5)
    assert run.acceptance_rate == pytest.approx(1.5 / 4)
    assert run.steps_s == pytest.approx(200, rel=0.1)


def outcome(start_ms: float, at_ms: Sequence[float]) -> RequestOutcome:
    """A request sent at ``start_ms`` whose tokens came one by one, ``at_ms`` after it."""
    at = np.asarray(at_ms, dtype=float)
    at_ns = tuple(round((start_ms + x) * 1e6) for x in at)
    answer = Answer(at_ns, completion_tokens=len(at))
    return RequestOutcome(cast(Call, None), round(start_ms * 1e6), answer, Timing(at, np.ones(len(at))), ())


def closed_loop(
    streams: int, requests: int, *, apart_ms: float, tokens: int = 50, stall_ms: float = 0.0, slope: float = 0.0
) -> tuple[list[RequestOutcome], Window]:
    """``requests`` on each stream, one after the other: 200 ms to the first token, then one each 10 ms (growing by
    ``slope`` with the context, as a share, until the last). Stream n begins ``apart_ms`` after stream n - 1; in the
    midst of the whole thing everything stands still for ``stall_ms``."""
    at = 200 + np.cumsum(np.r_[0, 10 * (1 + slope * np.arange(1, tokens) / tokens)])
    cycle = float(at[-1])
    middle = requests * cycle / 2 + 137

    def stalled(times: Any) -> Any:
        return times + np.where(np.asarray(times) > middle, stall_ms, 0.0)

    ended = []
    for n in range(streams):
        for i in range(requests):
            start = n * apart_ms + i * cycle
            sent = float(stalled(start))
            ended.append(Ended(outcome(sent, stalled(start + at) - sent), 0, i < requests - 1))
    window = closed_window(ended, streams)
    assert window is not None
    return [e.outcome for e in ended], window


@pytest.mark.parametrize("apart_ms", [0.0, 3.0, 137.0])
@pytest.mark.parametrize("requests", [4, 5, 7, 12, 23])
def test_parts_of_the_window_hold_whole_rounds_of_requests(requests: int, apart_ms: float) -> None:
    """Streams in step leave a pause of a fifth of the time between their waves, and the pace falls by a half within
    each answer. Nothing changes from round to round, so that all parts have the same rates."""
    values = window_values(*closed_loop(4, requests, apart_ms=apart_ms, slope=0.5), 4)
    cycle_s = (200 + 10 * (49 + 0.5 * 49 * 50 / 2 / 50)) / 1e3
    assert len(values["output_tok_s"]) == min(requests - 1, 5)
    assert values["output_tok_s"] == pytest.approx((4 * 50 / cycle_s,) * len(values["output_tok_s"]), rel=0.001)
    assert np.ptp(values["stream_tok_s"]) / values["stream_tok_s"][0] < 0.001
    assert np.ptp(values["itl_p50_ms"]) / values["itl_p50_ms"][0] < 0.001


@pytest.mark.parametrize("apart_ms", [0.0, 137.0])
def test_a_stall_of_a_closed_loop_is_in_one_part_of_the_window(apart_ms: float) -> None:
    cycle_s = 0.690
    values = window_values(*closed_loop(4, 11, apart_ms=apart_ms, stall_ms=700), 4)
    assert launch_value(values["output_tok_s"]) == pytest.approx(4 * 50 / cycle_s, rel=0.01)
    assert sum(v < 0.9 * 4 * 50 / cycle_s for v in values["output_tok_s"]) == 1
    assert len(hiccups(values["output_tok_s"])) == 1


def test_a_window_without_two_rounds_is_one_part() -> None:
    values = window_values(*closed_loop(4, 2, apart_ms=0.0), 4)
    assert {len(values[name]) for name in ("output_tok_s", "stream_tok_s", "itl_p50_ms")} == {1}


@pytest.mark.parametrize("stalled", [False, True])
def test_a_stall_moves_one_part_of_the_window_and_not_the_launch(stalled: bool) -> None:
    """Four streams at 100 tok/s; all of them stand still for half a second of the two and a half that are measured."""
    at = np.arange(1, 251) * 10.0
    at[120:] += 500.0 if stalled else 0.0
    values = window_values([outcome(n, at) for n in range(4)], Window(0, int((at[-1] + 4) * 1e6)))
    assert launch_value(values["output_tok_s"]) == pytest.approx(400, rel=0.03)
    assert launch_value(values["stream_tok_s"]) == pytest.approx(100, rel=0.03)
    assert sum(v < 350 for v in values["output_tok_s"]) == stalled
    assert values["itl_p50_ms"] == pytest.approx((10,) * 5)
    assert bool(hiccups(values["output_tok_s"])) == stalled
