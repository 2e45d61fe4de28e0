"""What no single step shows: slow drift away from an epoch's first launches, and change points along a history."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .levels import quantile
from .location import Array, Launch, stack, wander
from .prior import Prior, moderate
from .reference import reference, shift

#: What a change point must explain: squared standard deviations per logarithm of the history's length.
PENALTY = 4.0
#: A change must hold for this many launches: fewer are outliers.
SHORTEST = 3


@dataclass(frozen=True)
class Drift:
    """An epoch's newest launches against its first: ``change`` is relative, ``drifted`` when credibly worse; ``first``
    and ``recent`` count launches."""

    change: float
    p: float
    drifted: bool
    first: int
    recent: int


@dataclass(frozen=True)
class Segment:
    """Launches ``start`` to ``stop`` (exclusive) of a history that share one level; ``change`` against the segment
    before, None for the first."""

    start: int
    stop: int
    value: float
    change: float | None


def drift(
    first: Sequence[Launch],
    recent: Sequence[Launch],
    *,
    higher_is_better: bool = True,
    level: float = 0.01,
    prior: Prior | None = None,
    min_effect: float = 0.01,
    hosts: Sequence[str] | None = None,
    host: str | None = None,
) -> Drift:
    """Compare the ``recent`` launches with the ``first`` ones of the same epoch, which no step since then replaced.

    ``hosts`` names the host of each first launch, ``host`` the one that all recent ones ran on: between hosts the
    spread between hosts is allowed for. One-sided at ``level``: it fails nothing, so one false word in a hundred is
    bearable. Raises ``ValueError`` for unusable launches.
    """
    then, now = stack(first, flat_is_one=False), stack(recent, flat_is_one=False)
    if then is None or now is None:
        raise ValueError("drift needs launches whose values are all positive and finite, first and recent ones")
    sign = 1.0 if higher_is_better else -1.0
    expected = reference(sign * then, prior or Prior(), wander=wander(first), hosts=hosts, host=host)
    seen = shift(expected, sign * now, pooled=True)
    drop = float(seen.drop)
    drifted = float(seen.t) > quantile(level, float(seen.nu)) and drop >= -math.log1p(-min_effect)
    return Drift(math.expm1(-sign * drop), float(seen.p), drifted, then.size, now.size)


def segments(launches: Sequence[Launch], *, prior: Prior | None = None) -> list[Segment]:
    """Split a history, oldest first, where its level changed for good.

    Least squares with a price per change (optimal partitioning, Jackson et al. 2005, IEEE SPL 12:105), in units of a
    launch variance that steps do not disturb: the median squared difference of neighbours, moderated by the prior.
    Raises ``ValueError`` for unusable launches.
    """
    logs = stack(launches, flat_is_one=False)
    if logs is None:
        raise ValueError("a history needs launches whose values are all positive and finite")
    cuts = [0, *_partition(logs, prior or Prior()), logs.size]
    levels = [float(np.mean(logs[i:j])) for i, j in pairwise(cuts)]
    changes = [None, *(math.expm1(after - before) for before, after in pairwise(levels))]
    return [
        Segment(start, stop, math.exp(level), change)
        for (start, stop), level, change in zip(pairwise(cuts), levels, changes, strict=True)
    ]


def _partition(logs: Array, prior: Prior) -> list[int]:
    """Indices at which a new segment starts, by dynamic programming over the last one."""
    n = logs.size
    if n < 2 * SHORTEST:
        return []
    variance = neighbour_variance(logs, prior)
    logs, price = _without_outliers(logs, 3 * math.sqrt(variance)), PENALTY * math.log(n) * variance
    sums, squares = np.concatenate([[0.0], np.cumsum(logs)]), np.concatenate([[0.0], np.cumsum(logs**2)])
    best, came = np.full(n + 1, math.inf), np.zeros(n + 1, dtype=np.int64)
    best[0] = -price
    for stop in range(SHORTEST, n + 1):
        start = np.arange(0, stop - SHORTEST + 1)
        length = stop - start
        cost = squares[stop] - squares[start] - (sums[stop] - sums[start]) ** 2 / length
        total = best[start] + cost + price
        came[stop] = start[np.argmin(total)]
        best[stop] = np.min(total)
    cuts, stop = [], n
    while stop > 0:
        stop = int(came[stop])
        cuts.append(stop)
    return sorted(cuts)[1:]


def _without_outliers(logs: Array, reach: float) -> Array:
    """Launches further than ``reach`` from the median of the five around them give way to it (Hampel's filter): one
    or two wild launches are no level, three are."""
    n = logs.size
    start = np.clip(np.arange(n) - 2, 0, n - 5)
    middle = np.median(np.lib.stride_tricks.sliding_window_view(logs, 5), axis=1)[start]
    return np.where(np.abs(logs - middle) > reach, middle, logs)


def neighbour_variance(logs: Array, prior: Prior) -> float:
    """Launch variance of logs from the differences of neighbours, insensitive to steps and to single outliers."""
    middle = float(np.median(np.abs(np.diff(logs))))
    df = (logs.size - 1) / 2
    variance = (middle / 0.6745) ** 2 / 2
    spread, _ = moderate(np.asarray(df * variance), df, prior.d0, prior.s0**2)
    return float(spread) ** 2
