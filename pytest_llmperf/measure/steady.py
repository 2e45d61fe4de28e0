"""When a series of repetitions is steady, when it is known well enough, and what stands out of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri


def is_steady(values: Sequence[float], tolerance: float) -> bool:
    """True when a warming server has stopped moving: the last two values agree to ``tolerance``, or the last three do
    not all move in one direction.

    While kernels compile, caches fill and clocks settle, values move one way. Noise does not: three values of an
    unchanging but noisy server are in order one time in three only, so noise costs a request or two more and never the
    whole budget.
    """
    if len(values) < 2 or not all(v > 0 and math.isfinite(v) for v in values[-3:]):
        return False
    if abs(math.log(values[-1] / values[-2])) <= tolerance:
        return True
    if len(values) < 3:
        return False
    a, b, c = values[-3:]
    return not (a < b < c or a > b > c)


def robust_spread(values: Sequence[float]) -> float:
    """Relative standard deviation of one value, from the median absolute deviation of the logs: one wild value of ten
    leaves it alone. The factor makes it unbiased for normal data (1.4826, times 1 + 0.8/n for small n; Croux &
    Rousseeuw 1992)."""
    logs = np.log(np.asarray(values, dtype=float))
    deviation = float(np.median(np.abs(logs - np.median(logs))))
    return deviation * 1.4826 * (1 + 0.8 / len(values))


def relative_error(values: Sequence[float]) -> float:
    """Relative standard error of the Hodges-Lehmann estimate over ``values`` (its efficiency is 0.955)."""
    return robust_spread(values) / math.sqrt(0.955 * len(values)) if len(values) > 1 else math.inf


def hiccups(values: Sequence[float]) -> list[tuple[int, float]]:
    """(index, relative deviation from the median) of values that stand out: five robust deviations and 2 % away."""
    if len(values) < 4:
        return []
    median = float(np.median(values))
    limit = max(5 * robust_spread(values), 0.02)
    return [(i, v / median - 1) for i, v in enumerate(values) if v > 0 and abs(math.log(v / median)) > limit]


def moved(values: Sequence[float]) -> float:
    """Relative change from the first to the last value by the Theil-Sen line (median slope of all pairs). 0 for fewer
    than four values, or one that is not positive."""
    n = len(values)
    if n < 4 or min(values) <= 0:
        return 0.0
    logs = np.log(values)
    i, j = np.triu_indices(n, 1)
    return math.expm1(float(np.median((logs[j] - logs[i]) / (j - i))) * (n - 1))


def trend_p(values: Sequence[float]) -> float:
    """Two-sided p of Kendall's tau against time, for four or more positive values.

    Neighbouring repetitions of a busy host or a wandering engine resemble each other, which makes trends out of
    nothing: tau's z is divided by the root of the variance inflation ``(1 + r) / (1 - r)`` of their correlation ``r``
    (Yue & Wang 2004).
    """
    from scipy.stats import kendalltau  # here: scipy.stats takes a second to import, and few series move

    p = float(kendalltau(range(len(values)), values).pvalue)
    if not math.isfinite(p):  # all values are the same
        return 1.0
    r = _neighbours(np.log(values))
    return float(2 * ndtr(ndtri(p / 2) / math.sqrt((1 + r) / (1 - r))))


def _neighbours(logs: NDArray[np.float64]) -> float:
    """Correlation of neighbours about a parabola (a warm-up levels out), from 0 to 0.9; 0 for fewer than twelve values.

    The estimate's bias, ``-(3 + r) / n`` with three parameters fitted, is taken out: at ``r = 0.5`` an unchanging
    server trips the guard in 4 % of series rather than in 9 to 12 %, and a real warm-up is found as before.
    """
    n = len(logs)
    if n < 12:
        return 0.0
    x = np.arange(n)
    about = logs - np.polyval(np.polyfit(x, logs, 2), x)
    power = float(about @ about)
    r = float(about[1:] @ about[:-1]) / power if power > 0 else 0.0
    return min(max((n * r + 3) / (n - 1), 0.0), 0.9)
