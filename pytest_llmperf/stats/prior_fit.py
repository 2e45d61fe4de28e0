"""What many stored series say about the spread between launches of their kind."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

from .location import Array
from .prior import LEAST_SPREAD, MOST_USUAL, Prior
from .reference import reference
from .stability import groups

#: Distinct sets of launches needed before a prior is fitted to them.
FEWEST_SERIES = 5
#: Degrees of freedom that a fitted prior may claim: above 4, series a third more spread than others fail too often.
LEAST_D0, MOST_D0 = 1.0, 4.0


def fit_prior(
    series: Sequence[Sequence[float]],
    *,
    usual: float | None = None,
    launches: Sequence[Collection[Hashable]] | None = None,
) -> Prior | None:
    """The prior that many series of launch values (of one engine on one hardware) imply.

    ``series[i]`` holds the launch values of one metric of one test, in its own unit. ``usual`` is the spread that the
    engine's launches have elsewhere: a series in two groups by its measure (``two_groups``) counts within them, and
    ``s0`` is held to ``MOST_USUAL`` times it. ``launches[i]`` holds the ids of a series' launches: series that share
    some are one piece of evidence together.

    Method of moments on log variances (Smyth 2004, section 6.2, limma's ``fitFDist``); ``d0`` comes in halves, so
    that critical values are shared, and within ``LEAST_D0`` and ``MOST_D0``. Series with fewer than two launches say
    nothing; with fewer than ``FEWEST_SERIES`` others there is none. Raises ``ValueError`` for values not positive and
    finite.
    """
    ids = launches if launches is not None else [{i} for i in range(len(series))]
    sets = _distinct([(x, set(own)) for x, own in zip(map(_logs, series), ids, strict=True) if x.size >= 2])
    if len(sets) < FEWEST_SERIES:
        return None
    found = [[_variance(x, usual) for x in members] for members in sets]
    e = np.array([np.mean([np.log(v) - digamma(df / 2) + np.log(df / 2) for v, df in f]) for f in found])
    noise = np.mean([np.mean([polygamma(1, df / 2) for _, df in f]) for f in found])
    mean = float(np.mean(e))
    excess = float(np.var(e, ddof=1) - noise)
    fitted = math.inf
    if excess > 0:
        fitted = max(2 * _trigamma_inverse(excess), LEAST_D0)
        mean += float(digamma(fitted / 2)) - math.log(fitted / 2)
    d0 = min(math.floor(2 * fitted) / 2 if math.isfinite(fitted) else MOST_D0, MOST_D0)
    shown = max(math.exp(mean / 2), LEAST_SPREAD)
    most = math.inf if usual is None else MOST_USUAL * usual
    count = f"{sum(map(len, sets))} series" + (f" of {len(sets)} sets of launches" if launches is not None else "")
    held = f", which spread by {shown:.1%}; held to {MOST_USUAL:g} times what is usual" if shown > most else ""
    return Prior(d0, min(shown, most), count + held)


def two_groups(values: Sequence[float], usual: float) -> bool:
    """Whether launches, the engine's usual spread being ``usual``, fall into two groups (``stability.groups``)."""
    logs = _logs(values)
    return len(groups(logs, MOST_D0, usual)) > 1


def _logs(values: Sequence[float]) -> Array:
    data = np.asarray(values, dtype=np.float64)
    if not (np.all(np.isfinite(data)) and np.all(data > 0)):
        raise ValueError("a prior is fitted to positive finite launch values only")
    return np.log(data)


def _distinct(series: Sequence[tuple[Array, set[Hashable]]]) -> list[list[Array]]:
    """Series by the launches behind them: those that share any, be it through others, are together."""
    found: list[tuple[list[Array], set[Hashable]]] = []
    for values, ids in series:
        near = [s for s in found if s[1] & ids]
        found = [s for s in found if not s[1] & ids]
        found.append(([x for s in near for x in s[0]] + [values], ids.union(*(s[1] for s in near))))
    return [members for members, _ in found]


def _variance(logs: Array, usual: float | None) -> tuple[float, float]:
    """Variance of launches, within groups where there are two, and its degrees of freedom."""
    if usual is None:
        return max(float(np.var(logs, ddof=1)), LEAST_SPREAD**2), logs.size - 1.0
    kept = [x for x in groups(logs, MOST_D0, usual) if x.size >= 2]
    shown = [(float(reference(x, Prior(MOST_D0, usual)).shown), x.size - 1.0) for x in kept]
    df = sum(d for _, d in shown)
    return max(sum(v * d for v, d in shown) / df, LEAST_SPREAD**2), df


def _trigamma_inverse(y: float) -> float:
    return math.exp(float(brentq(lambda u: float(polygamma(1, math.exp(u))) - y, -12.0, 25.0)))
