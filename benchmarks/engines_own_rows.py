"""What ``engines_own`` compares: each quantity by this project's definition and by the engine's, and what differs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Requests = Sequence[Any]
#: What the engine's benchmark wrote, details of its requests included.
Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """``ours``: this project's metric, alone and among several streams. ``same`` and ``theirs`` are one formula, on
    what each side recorded; ``printed`` is the key of what the engine's benchmark calls so. ``why``: what differs;
    ``several``: what else does with several streams."""

    name: str
    ours: tuple[str, str]
    same: Callable[[Requests], float]
    theirs: Callable[[Summary], float]
    printed: str
    why: str
    several: str


def mean(of: Callable[[Any], float]) -> Callable[[Requests], float]:
    return lambda requests: statistics.fmean(of(r) for r in requests)


def said(key: str) -> Callable[[Summary], float]:
    return lambda summary: float(summary[key])


def uncached_ttft_ms(summary: Summary) -> float:
    """Mean without the first request, whose prompt was the warm-up's."""
    return 1e3 * statistics.fmean(summary["ttfts"][1:] or summary["ttfts"])


def gaps(percent: float) -> Callable[[Summary], float]:
    """Mean over requests of a percentile of their gaps, ms."""
    return lambda summary: statistics.fmean(float(np.percentile(g, percent)) * 1e3 for g in summary["itls"] if g)


def busy_ms(requests: Requests) -> float:
    """Time in which at least one request was under way."""
    total, until = 0.0, -math.inf
    for start, end in sorted((r.sent_s * 1e3, r.sent_s * 1e3 + r.e2e_ms) for r in requests):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


ROWS = (
    Row("TTFT, ms", ("ttft_ms", "ttft_ms"), mean(lambda r: r.ttft_ms), uncached_ttft_ms, "mean_ttft_ms",
        "the same quantity; theirs opens the connection inside it and stamps after parsing; its warm-up is its first "
        "prompt, whose request then finds it cached: the formula leaves that one out, what it prints does not; "
        "theirs are texts, which the server tokenizes first, ours ids",
        "ours is the median of requests sent in the steady window; theirs is the mean of all, those of the start "
        "among them, when all streams queue for prefill at once"),
    Row("time per token after the first, ms", ("tpot_ms", "tpot_ms"),
        mean(lambda r: (r.e2e_ms - r.ttft_ms) / (r.output_tokens - 1)), said("mean_tpot_ms"), "mean_tpot_ms",
        "ours divides by the tokens after the first chunk, theirs by all but one; SGLang's ends with [DONE]",
        "ours while all streams decode, each by its time; theirs is the mean of all requests, those of the ramp and of "
        "the tail included"),
    Row("gap p50, ms", ("itl_p50_ms", "itl_p50_ms"), mean(lambda r: r.itl_p50_ms), gaps(50), "median_itl_ms",
        "ours per token, theirs per chunk: one of n tokens counts as one gap; the formula is the mean of requests' "
        "p50, it prints that of all gaps together",
        "ours pools the gaps of the steady window"),
    Row("gap p99, ms", ("itl_p99_ms", "itl_p99_ms"), mean(lambda r: r.itl_p99_ms), gaps(99), "p99_itl_ms",
        "as above",
        "a prefill of another stream is a long gap in all others: few requests hold many of them, so the pooled p99 "
        "and the mean of p99s differ"),
    Row("tok/s", ("decode_tok_s", "output_tok_s"),
        lambda rs: 1e3 * sum(r.output_tokens for r in rs) / busy_ms(rs), said("output_throughput"),
        "output_throughput",
        "theirs is tokens over the whole duration: prefill and pauses between requests too (SGLang's asks for "
        "/server_info in it); ours alone is decoding",
        "ours in the steady window; the whole duration has the start, and the tail in which streams run out"),
)  # fmt: skip
