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


def window_values(
    outcomes: Sequence[RequestOutcome], window: Window, concurrency: int | None = None
) -> dict[str, tuple[float, ...]]:
    """Metrics over the window: rates and the median gap once for each of its parts, so that a stall in one of them
    moves the launch's value little and is seen; the rest once. The parts are ``rounds`` of a closed loop with so many
    streams, ``slices`` of an open one (``concurrency`` None).

    ``output_tok_s``: tokens that arrived / time. ``stream_tok_s``: tokens after the first chunk of each stream inside
    the window / time from that first to its last chunk, summed over streams before dividing, so each counts by its
    time. ITL: pooled over the per-token gaps inside. ``ttft_ms``, ``e2e_ms``: medians of the requests sent inside
    (of all, when none was: the streams then start together only).
    """
    streams = [_Stream.of(o, window) for o in outcomes if o.timing is not None]
    parts = slices(streams, window) if concurrency is None else rounds(outcomes, window, concurrency)
    values = {"output_tok_s": tuple(sum(s.tokens_in(part) for s in streams) / part.seconds for part in parts)}
    paced = [_gaps(streams, part) for part in parts]
    if all(gaps.size for gaps, _, _ in paced):
        rates = tuple(float(weights.sum()) / span for _, weights, span in paced)
        gaps, weights, _ = _gaps(streams, window)
        values |= {
            "stream_tok_s": rates,
            "tpot_ms": tuple(1e3 / rate for rate in rates),
            "itl_p50_ms": tuple(weighted_percentiles(g, w, (50,))[0] for g, w, _ in paced),
            "itl_p99_ms": weighted_percentiles(gaps, weights, (99,)),
        }
    timed = [o for o in outcomes if o.timing is not None]
    sent_inside = [o for o in timed if window.start_ns <= o.sent_ns <= window.end_ns] or timed
    values["ttft_ms"] = (float(np.median([o.timing.ttft_ms for o in sent_inside if o.timing])),)
    values["e2e_ms"] = (float(np.median([o.timing.e2e_ms for o in sent_inside if o.timing])),)
    return values


@dataclass(frozen=True)
class _Stream:
    """Arrivals of one request inside the window (monotonic ns) and the tokens in each."""

    at: Floats
    tokens: Floats

    @classmethod
    def of(cls, outcome: RequestOutcome, window: Window) -> _Stream:
        assert outcome.timing is not None
        at = outcome.sent_ns + np.rint(outcome.timing.at * 1e6)  # whole, as the window's edges are
        inside = (at > window.start_ns) & (at <= window.end_ns)
        return cls(at[inside], outcome.timing.tokens[inside])

    def tokens_in(self, part: Window) -> float:
        return float(self.tokens[(self.at > part.start_ns) & (self.at <= part.end_ns)].sum())


def _gaps(streams: Sequence[_Stream], part: Window) -> tuple[Floats, Floats, float]:
    """Per-token gaps (ms) that end in ``part``, their tokens, and the seconds that they take together."""
    gaps: list[Floats] = []
    weights: list[Floats] = []
    for stream in streams:
        ends = (stream.at[1:] > part.start_ns) & (stream.at[1:] <= part.end_ns)
        gaps.append((np.diff(stream.at) / 1e6)[ends])
        weights.append(stream.tokens[1:][ends])
    every, counts = np.concatenate(gaps), np.concatenate(weights)
    return every / counts, counts, float(every.sum()) / 1e3


#: Parts of a window, where there is enough in it.
PARTS = 5


def rounds(outcomes: Sequence[RequestOutcome], window: Window, concurrency: int) -> list[Window]:
    """``PARTS`` parts of a closed loop's window, each from the end of one request to the end of the one ``concurrency``
    requests later, or that times a whole number.

    So each holds, for every stream, one prefill to one decoding and each context length as often as the next, whether
    streams are in step (all of them start and end together, and no token comes in between) or not. What is left over at
    the window's start belongs to no part. Fewer parts where there are fewer such rounds, the window alone with one.
    """
    ends = sorted(o.answer.at_ns[-1] for o in outcomes if o.timing is not None)
    cuts = [at for at in ends if window.start_ns <= at <= window.end_ns][::-concurrency][::-1]
    whole = len(cuts) - 1
    if whole < 2:
        return [window]
    count = min(whole, PARTS)
    edges = [cuts[whole * i // count] for i in range(count + 1)]
    return [Window(a, b) for a, b in itertools.pairwise(edges)]


def slices(streams: Sequence[_Stream], window: Window, count: int = PARTS) -> list[Window]:
    """``count`` parts of the window with about as many tokens each, cut where tokens arrived: streams that decode in
    step then have whole steps in every part. Fewer where fewer moments tell them apart. For an open loop, whose
    requests come and go at any time; in a closed one such parts would hold one pause between requests, or none, or two.
    """
    at = np.concatenate([s.at for s in streams])
    order = np.argsort(at, kind="stable")
    so_far = np.cumsum(np.concatenate([s.tokens for s in streams])[order])
    wanted = so_far[-1] * np.arange(1, count) / count
    cuts = at[order][np.searchsorted(so_far, wanted)]
    edges = np.unique([window.start_ns, *np.rint(cuts).astype(np.int64), window.end_ns])
    return [Window(int(a), int(b)) for a, b in itertools.pairwise(edges)]


def queue_guard(outcomes: Sequence[RequestOutcome], streams: int) -> Guard:
    """Whether all streams were ever decoding at once. When not, the engine kept some waiting (its limit on running
    requests, its memory, or prefills that outlast the decoding); seen from here, without asking it anything."""
    spans = [(o.answer.at_ns[0], o.answer.at_ns[-1]) for o in outcomes if o.timing is not None]
    steps = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    most = max(itertools.accumulate(step for _, step in steps), default=0)
    text = f"at most {most} of {streams} streams were decoding at once"
    advice = "raise max_running_requests, lower concurrency or ask for longer outputs"
    return Guard("queueing", most < streams, text, advice, most, streams)
