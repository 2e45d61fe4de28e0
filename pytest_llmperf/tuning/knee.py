"""Where a throughput curve bends: the concurrency beyond which more streams bring little.

On log-log axes throughput rises with a slope near 1 while streams are free, and near 0 once they only queue. Two
straight lines that meet at one of the measured concurrencies are fitted by least squares; that concurrency is the knee
when the second line is at most half as steep as the first and two lines explain the points credibly better than one
(F test). A curve that still rises, or is too noisy to tell, has no knee.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import fdtrc

_LEVEL = 0.01
#: Points closer to their lines than this (in logs) fit perfectly: rounding, not noise.
_EXACT = 1e-6


@dataclass(frozen=True)
class Knee:
    """``concurrency`` of the bend; ``before`` and ``after`` are the slopes of log throughput over log concurrency: what
    doubling the streams multiplies throughput by is ``2 ** slope``. ``p`` is the chance of as good a bend in a straight
    line with noise."""

    concurrency: int
    before: float
    after: float
    p: float


def find_knee(points: Sequence[tuple[int, float]]) -> Knee | None:
    """The knee of (concurrency, throughput) points, several per concurrency allowed; None where there is none.

    Needs four concurrencies at least. Raises ``ValueError`` for a concurrency or a throughput that is not positive.
    """
    if any(c < 1 or not (v > 0 and math.isfinite(v)) for c, v in points):
        raise ValueError("a load curve needs concurrencies from 1 and positive throughputs")
    streams = sorted({c for c, _ in points})
    if len(streams) < 4:
        return None
    x = np.log([c for c, _ in points])
    y = np.log([v for _, v in points])
    straight, _ = _fit(np.column_stack([np.ones_like(x), x]), y)
    best: tuple[float, int, float, float] | None = None
    for candidate in streams[1:-1]:
        bend = math.log(candidate)
        error, (_, before, change) = _fit(np.column_stack([np.ones_like(x), x, np.maximum(x - bend, 0)]), y)
        if best is None or error < best[0]:
            best = (error, candidate, before, before + change)
    assert best is not None
    error, knee, before, after = best
    if before <= 0 or after > before / 2:
        return None
    # the bend's place was chosen among the points: it counts as a parameter, as its height does
    spare = len(points) - 4
    noise = max(error, len(points) * _EXACT**2)
    if spare > 0:
        p = float(fdtrc(2, spare, (straight - error) / 2 / (noise / spare)))
    else:
        p = 0.0 if error <= len(points) * _EXACT**2 else 1.0
    return Knee(knee, before, after, p) if p < _LEVEL else None


def _fit(columns: np.typing.NDArray[np.float64], y: np.typing.NDArray[np.float64]) -> tuple[float, tuple[float, ...]]:
    """Squared error and coefficients of a least-squares fit."""
    solution = np.linalg.lstsq(columns, y, rcond=None)[0]
    return float(np.sum((y - columns @ solution) ** 2)), tuple(float(v) for v in solution)
