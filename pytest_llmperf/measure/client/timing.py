"""The times of one request, and the metrics that follow from them (METHOD: definitions of metrics)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_llmperf.measure.client.answer import Answer

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Timing:
    """One valid request. ``at`` (m,): arrivals in ms after the request was sent, ascending; ``tokens`` (m,): tokens in
    each, whole numbers when known, a share otherwise. ``slack``: how far apart the bounds of the decode rate lie, as a
    fraction of the lower one; 0 when n_1 is known."""

    at: Floats
    tokens: Floats
    slack: float = 0.0

    @property
    def total(self) -> float:
        return float(self.tokens.sum())

    @property
    def ttft_ms(self) -> float:
        return float(self.at[0])

    @property
    def e2e_ms(self) -> float:
        return float(self.at[-1])

    @property
    def decode_tok_s(self) -> float:
        """Tokens after the first chunk / time from first to last chunk; NaN with fewer than two chunks."""
        span = float(self.at[-1] - self.at[0])
        return (self.total - float(self.tokens[0])) / span * 1e3 if span > 0 else math.nan

    @property
    def gaps_ms(self) -> Floats:
        """(m-1,): time between chunks (ICL)."""
        return np.diff(self.at)

    def itl_ms(self, *percents: float) -> tuple[float, ...]:
        """Percentiles of the per-token gap: a chunk of n tokens gives n gaps of 1/n of its own."""
        gaps, tokens = self.gaps_ms, self.tokens[1:]
        if gaps.size == 0:
            return (math.nan,) * len(percents)
        return weighted_percentiles(gaps / tokens, tokens, percents)


def pace(times: Timing) -> float:
    """What tells whether a server is steady: the decode rate, or requests per second when there is only one token."""
    return times.decode_tok_s if len(times.at) > 1 else 1e3 / times.e2e_ms


def weighted_percentiles(values: Floats, weights: Floats, percents: Sequence[float]) -> tuple[float, ...]:
    """Linear-interpolation percentiles of ``values``, each repeated ``weights`` times (weights may be fractions).

    With whole weights this is ``numpy.percentile(numpy.repeat(values, weights), percents)``.
    """
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    ends = np.cumsum(weights)
    out = []
    for percent in percents:
        position = percent / 100 * (ends[-1] - 1)
        low = np.searchsorted(ends, math.floor(position), side="right")
        high = np.searchsorted(ends, math.floor(position) + 1, side="right")
        low, high = min(low, len(values) - 1), min(high, len(values) - 1)
        part = position - math.floor(position)
        out.append(float(values[low] * (1 - part) + values[high] * part))
    return tuple(out)


def timing(answer: Answer, sent_ns: int) -> Timing:
    """Times of an answer whose usage is known. Raises ``ValueError`` when it has no chunk or no usage.

    Without usage in every chunk n_1 lies between 1 and N - m + 1: the middle is taken, and the rest spread evenly over
    the other chunks. Chunks that arrived together (one segment) are one arrival of all their tokens.
    """
    total, m = answer.completion_tokens, len(answer.at_ns)
    if not total or not m:
        raise ValueError("no chunk with content" if total else "no usage")
    at = np.array([at_ns - sent_ns for at_ns in answer.at_ns], dtype=float) / 1e6
    if answer.tokens is not None:
        tokens = np.array(answer.tokens, dtype=float)
    else:
        first = 1 + (total - m) / 2
        tokens = np.array([first, *[(total - first) / max(m - 1, 1)] * (m - 1)], dtype=float)
    later = np.ones(m, dtype=bool)
    later[1:] = at[1:] > at[:-1]
    starts = np.flatnonzero(later)
    together = int(starts[1]) if len(starts) > 1 else m  # chunks of the first arrival
    unknown = 0 if answer.tokens is not None else total - m
    slack = unknown / (m - together) if m > together else 0.0
    return Timing(at[starts], np.add.reduceat(tokens, starts), slack)
