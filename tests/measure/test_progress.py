"""What a measurement says of itself while it runs: every request announced, none of them disturbed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_llmperf.measure.limits import Limits
from pytest_llmperf.measure.load import load
from pytest_llmperf.measure.measuring_progress import MeasuringProgress
from pytest_llmperf.measure.run import Run
from pytest_llmperf.measure.stream import stream
from pytest_llmperf.measure.workloads import Workload
from tests.conftest import FakeServer, StartFake
from tests.measure.conftest import connection_to


@dataclass
class Heard:
    """What a run said and when (monotonic seconds), and what came of it."""

    run: Run
    at: list[float]
    progress: list[MeasuringProgress]


def listen(measure: Callable[..., Run], server: FakeServer, limits: Limits, **asked: Any) -> Heard:
    at: list[float] = []
    progress: list[MeasuringProgress] = []

    def say(news: MeasuringProgress) -> None:
        at.append(time.monotonic())
        progress.append(news)

    work = Workload(**{"prompt_tokens": 16, "output_tokens": 12, "precision": 0.0, **asked})
    run = measure(connection_to(server), work, seed="x", limits=limits, say=say)
    assert not run.measurement.invalid
    return Heard(run, at, progress)


def test_one_stream_announces_every_request(fake_server: StartFake) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 8})
    heard = listen(stream, server, Limits(warmup_requests=1), repetitions=4)
    warm, *rest = heard.progress
    assert warm == MeasuringProgress("warm-up", 1, 1)
    assert [(p.stage, p.number, p.most) for p in rest] == [("repetition", n, 4) for n in (1, 2, 3, 4)]
    assert (rest[0].tok_s, rest[0].left_s) == (None, None)
    assert [p.tok_s for p in rest[1:]] == pytest.approx([125] * 3, rel=0.25)
    left = [p.left_s or 0.0 for p in rest[1:]]
    assert left[0] > left[1] > left[2] > 11 * 0.008  # a request's twelve tokens are eleven gaps
    for now, before, after in zip(heard.at[2:], heard.run.requests[:-1], heard.run.requests[1:], strict=True):
        assert before.sent_s + (before.e2e_ms or 0) / 1e3 < now < after.sent_s, "between requests, never inside one"


def test_time_left_is_bounded_by_the_budget(fake_server: StartFake) -> None:
    """A mean that is never known well enough ends with the budget of time, and the time left knows that."""
    server = fake_server("vllm", env={"FAKE_ITL_MS": 8})
    tight = Limits(warmup_requests=1, measure_s=0.01)
    last = listen(stream, server, tight, repetitions=2, max_repetitions=90, precision=1e-9).progress[-1]
    assert (last.number, last.most) == (2, 90)
    assert last.left_s is not None
    assert last.left_s < 5


def test_a_load_announces_waves_and_its_window(fake_server: StartFake) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 8})
    *waves, window = listen(load, server, Limits(warmup_requests=2), concurrency=3, requests=9).progress
    assert [(p.stage, p.number, p.most) for p in waves] == [("warm-up", n, 2) for n in range(1, len(waves) + 1)]
    assert (window.stage, window.number, window.most) == ("window", 1, 1)
    assert window.left_s is not None
    assert window.left_s >= 3 * 11 * 0.008  # nine requests on three streams


@pytest.mark.parametrize(("asked", "seconds"), [({"seconds": 0.5}, 0.5), ({"rate": 40.0, "requests": 20}, 0.5)])
def test_a_load_by_the_clock_knows_its_end(fake_server: StartFake, asked: dict[str, Any], seconds: float) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 8})
    left = listen(load, server, Limits(warmup_requests=1), **{"concurrency": 2, **asked}).progress[-1].left_s
    assert left is not None
    assert left > seconds
