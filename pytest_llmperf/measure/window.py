"""The steady window of a load: when it starts and ends, and what happened inside."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_llmperf.measure.client.request_outcome import RequestOutcome
from pytest_llmperf.measure.client.timing import Floats, weighted_percentiles
from pytest_llmperf.measure.metrics import Guard


@dataclass(frozen=True)
class Ended:
    """An outcome in its place: when it ended (monotonic ns), whether another request took its stream and, in an open
    loop, how long after its time it was sent."""

    outcome: RequestOutcome
    ended_ns: int
    successor: bool
    late_ms: float | None = None


@dataclass(frozen=True)
class Window:
    """``start_ns`` (excluded) to ``end_ns`` (included) on the monotonic clock."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


def closed_window(ended: Sequence[Ended], streams: int) -> Window | None:
    """From when all streams are decoding to when the first of them has no successor; None when that is no time.

    All streams are decoding once the first request of every stream has its first chunk.
    """
    if len(ended) < streams:
        return None
    first = sorted(ended, key=lambda e: e.outcome.sent_ns)[:streams]
    start = max(e.outcome.answer.at_ns[0] for e in first)
    end = min((e.outcome.answer.at_ns[-1] for e in ended if not e.successor), default=start)
    return Window(start, end) if end > start else None


def open_window(ended: Sequence[Ended]) -> Window | None:
    """From when the first request has ended (as many leave as come, from then on) to the last arrival."""
    start = min(e.outcome.answer.at_ns[-1] for e in ended)
    end = max(e.outcome.sent_ns for e in ended)
    return Window(start, end) if end > start else None


def window_values(outcomes: Sequence[RequestOutcome], window: Window) -> dict[str, float]:
    """Metrics over the window.

    ``output_tok_s``: tokens that arrived in it / its length. ``stream_tok_s``: tokens after the first chunk of each
    stream inside it / time from that first to its last chunk, summed over streams before dividing, so each counts by
    its time. ITL: pooled over the per-token gaps inside. ``ttft_ms``, ``e2e_ms``: medians of the requests sent inside
    (of all, when none was: the streams then start together only).
    """
    tokens = decoded = span = 0.0
    gaps: list[Floats] = []
    weights: list[Floats] = []
    for outcome in outcomes:
        times = outcome.timing
        if times is None:
            continue
        at = outcome.sent_ns + times.at * 1e6
        inside = (at > window.start_ns) & (at <= window.end_ns)
        tokens += float(times.tokens[inside].sum())
        mine, counts = at[inside], times.tokens[inside]
        if len(mine) > 1:
            decoded += float(counts[1:].sum())
            span += float(mine[-1] - mine[0]) / 1e9
            gaps.append(np.diff(mine) / 1e6 / counts[1:])
            weights.append(counts[1:])
    values = {"output_tok_s": tokens / window.seconds}
    if span > 0:
        rate = decoded / span
        p50, p99 = weighted_percentiles(np.concatenate(gaps), np.concatenate(weights), (50, 99))
        values |= {"stream_tok_s": rate, "tpot_ms": 1e3 / rate, "itl_p50_ms": p50, "itl_p99_ms": p99}
    timed = [o for o in outcomes if o.timing is not None]
    sent_inside = [o for o in timed if window.start_ns <= o.sent_ns <= window.end_ns] or timed
    values["ttft_ms"] = float(np.median([o.timing.ttft_ms for o in sent_inside if o.timing]))
    values["e2e_ms"] = float(np.median([o.timing.e2e_ms for o in sent_inside if o.timing]))
    return values


def slices(outcomes: Sequence[RequestOutcome], window: Window, count: int = 8) -> list[float]:
    """Tokens per second of all streams in each of ``count`` equal parts of the window."""
    edges = np.linspace(window.start_ns, window.end_ns, count + 1)
    total = np.zeros(count)
    for outcome in outcomes:
        if outcome.timing is not None:
            at = outcome.sent_ns + outcome.timing.at * 1e6
            total += np.histogram(at, edges, weights=outcome.timing.tokens)[0]
    return [float(n) / (window.seconds / count) for n in total]


def queue_guard(outcomes: Sequence[RequestOutcome], streams: int) -> Guard:
    """Whether all streams were ever decoding at once. When not, the engine kept some waiting (its limit on running
    requests, its memory, or prefills that outlast the decoding); seen from here, without asking it anything."""
    spans = [(o.answer.at_ns[0], o.answer.at_ns[-1]) for o in outcomes if o.timing is not None]
    steps = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    most = max(itertools.accumulate(step for _, step in steps), default=0)
    text = f"at most {most} of {streams} streams were decoding at once"
    advice = "raise max_running_requests, lower concurrency or ask for longer outputs"
    return Guard("queueing", most < streams, text, advice, most, streams)
