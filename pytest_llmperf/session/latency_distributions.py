"""Waits as they are reported: percentiles, and a histogram small enough for every result of a JSON file."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from pytest_llmperf.measure.client.timing import Floats, weighted_percentiles
from pytest_llmperf.measure.latencies import Latencies
from pytest_llmperf.records.results import Distribution

_PERCENTS = (0, 50, 90, 95, 99, 100)
_MOST_BINS = 40
#: A histogram ends at this percentile where the rest would stretch its axis by more than half: few values far out must
#: not flatten it.
_REACH, _STRETCH = 99.5, 1.5


def distributions(several: Iterable[Latencies]) -> tuple[Distribution, ...]:
    """Of TTFT by request and of ITL by token, over all that is given; without what there is none of."""
    waits = Latencies.pooled(list(several))
    of = (("ttft_ms", waits.ttft_ms, np.ones_like(waits.ttft_ms)), ("itl_ms", waits.itl_ms, waits.tokens))
    return tuple(_distribution(name, values, weights) for name, values, weights in of if values.size)


def _distribution(name: str, values: Floats, weights: Floats) -> Distribution:
    found = weighted_percentiles(values, weights, _PERCENTS)
    count = round(float(weights.sum()))
    low, high, (reach,) = found[0], found[-1], weighted_percentiles(values, weights, (_REACH,))
    end = high if high - low <= _STRETCH * (reach - low) else reach
    bins = min(math.ceil(2 * count ** (1 / 3)), _MOST_BINS)  # Rice's rule
    counts, edges = np.histogram(values, bins, (low, end), weights=weights)
    return Distribution(
        metric=name,
        count=count,
        percentiles={f"p{p}": _short(x) for p, x in zip(_PERCENTS, found, strict=True)},
        edges=tuple(map(_short, edges)),
        counts=tuple(round(float(n)) for n in counts),
    )


def _short(value: float) -> float:
    """Five significant digits, which is more than a stamp knows."""
    return float(f"{value:.5g}")
