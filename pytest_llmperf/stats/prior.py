"""What is believed about launch-to-launch spread before a series has shown its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

from .location import Array

#: Series needed before a prior is fitted to them.
FEWEST_SERIES = 5
#: Degrees of freedom that a fitted prior may claim: above 4, series a third more spread than others fail too often.
LEAST_D0, MOST_D0 = 1.0, 4.0
#: Spread below which timer resolution, not the engine, is measured.
LEAST_SPREAD = 1e-4


@dataclass(frozen=True)
class Prior:
    """Launch spread expected beforehand: ``s0``, a standard deviation of logs (0.012 is 1.2 %), worth ``d0`` launches.

    ``d0 = 0`` knows nothing. ``source`` says where it comes from, in words for a report.
    """

    d0: float = 4.0
    s0: float = 0.012
    source: str = "default"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.d0) and self.d0 >= 0 and math.isfinite(self.s0) and self.s0 > 0):
            raise ValueError(f"a prior needs d0 >= 0 and s0 > 0, got d0={self.d0!r}, s0={self.s0!r}")


def moderate(squares: Array, df: float, d0: float, s0_squared: float | Array) -> tuple[Array, float]:
    """``s~`` and its degrees of freedom from a sum of squares with ``df`` of its own.

    ``s~^2 = (d0 s0^2 + squares) / (d0 + df)`` (Smyth 2004, SAGMB 3(1):3), ``LEAST_SPREAD`` at least. Raises
    ``ValueError`` when there is neither prior nor data.
    """
    nu = d0 + df
    if nu <= 0:
        raise ValueError("one launch says nothing about the spread between launches: give a prior with d0 > 0")
    return np.maximum(np.sqrt((d0 * s0_squared + squares) / nu), LEAST_SPREAD), nu


def fit_prior(series: Sequence[Sequence[float]]) -> Prior | None:
    """The prior that many series of launch values (of one engine on one hardware) imply.

    ``series[i]`` holds the launch values of one metric of one test, in its own unit. Method of moments on log
    variances (Smyth 2004, section 6.2, limma's ``fitFDist``); ``d0`` comes in halves, so that critical values are
    shared, and within ``LEAST_D0`` and ``MOST_D0``. Series with fewer than two launches say nothing; with fewer than
    ``FEWEST_SERIES`` others there is none. Raises ``ValueError`` for values not positive and finite.
    """
    data = [np.asarray(values, dtype=np.float64) for values in series if len(values) >= 2]
    if not all(np.all(np.isfinite(x)) and np.all(x > 0) for x in data):
        raise ValueError("a prior is fitted to positive finite launch values only")
    if len(data) < FEWEST_SERIES:
        return None
    df = np.array([x.size - 1 for x in data], dtype=np.float64)
    variances = np.maximum([float(np.var(np.log(x), ddof=1)) for x in data], LEAST_SPREAD**2)
    e = np.log(variances) - digamma(df / 2) + np.log(df / 2)
    mean = float(np.mean(e))
    excess = float(np.var(e, ddof=1) - np.mean(polygamma(1, df / 2)))
    fitted = math.inf
    if excess > 0:
        fitted = max(2 * _trigamma_inverse(excess), LEAST_D0)
        mean += float(digamma(fitted / 2)) - math.log(fitted / 2)
    d0 = min(math.floor(2 * fitted) / 2 if math.isfinite(fitted) else MOST_D0, MOST_D0)
    return Prior(d0, max(math.exp(mean / 2), LEAST_SPREAD), f"{len(data)} series")


def _trigamma_inverse(y: float) -> float:
    return math.exp(float(brentq(lambda u: float(polygamma(1, math.exp(u))) - y, -12.0, 25.0)))
