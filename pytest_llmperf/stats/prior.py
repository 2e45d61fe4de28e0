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
#: Most degrees of freedom that a fitted prior may claim.
MOST_D0 = 4.0
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

    ``s~^2 = (d0 s0^2 + squares) / (d0 + df)`` (Smyth 2004, SAGMB 3(1):3). Raises ``ValueError`` when there is neither
    prior nor data.
    """
    nu = d0 + df
    if nu <= 0:
        raise ValueError("one launch says nothing about the spread between launches: give a prior with d0 > 0")
    return np.sqrt((d0 * s0_squared + squares) / nu), nu


def fit_prior(series: Sequence[Sequence[float]]) -> Prior:
    """The prior that many series of launch values (of one engine on one hardware) imply.

    ``series[i]`` holds the launch values of one metric of one test, in its own unit. Method of moments on log
    variances (Smyth 2004, section 6.2, limma's ``fitFDist``), ``d0`` kept at or below ``MOST_D0``. Series with fewer
    than two launches say nothing; with fewer than ``FEWEST_SERIES`` others the default prior is returned.
    """
    logs = [np.log(np.asarray(values, dtype=np.float64)) for values in series if len(values) >= 2]
    if len(logs) < FEWEST_SERIES:
        return Prior()
    if not all(np.all(np.isfinite(x)) for x in logs):
        raise ValueError("a prior is fitted to positive finite launch values only")
    df = np.array([len(x) - 1 for x in logs], dtype=np.float64)
    variances = np.maximum([float(np.var(x, ddof=1)) for x in logs], LEAST_SPREAD**2)
    e = np.log(variances) - digamma(df / 2) + np.log(df / 2)
    mean = float(np.mean(e))
    excess = float(np.var(e, ddof=1) - np.mean(polygamma(1, df / 2)))
    if excess > 0:
        d0 = 2 * _trigamma_inverse(excess)
        mean += float(digamma(d0 / 2)) - math.log(d0 / 2)
    else:
        d0 = math.inf
    s0 = max(math.exp(mean / 2), LEAST_SPREAD)
    return Prior(min(d0, MOST_D0), s0, f"{len(logs)} series")


def _trigamma_inverse(y: float) -> float:
    return math.exp(float(brentq(lambda u: float(polygamma(1, math.exp(u))) - y, -12.0, 25.0)))
