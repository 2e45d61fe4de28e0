"""Differences between configs as ratios with intervals, from launches: gaps between engines, effects of a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, stdtr

from .levels import chi2_nodes, legendre, quantile
from .location import Array, Launch, stack, wander
from .prior import Prior, moderate


@dataclass(frozen=True)
class Ratio:
    """``ratio`` of two geometric means with its two-sided interval ``(low, high)`` at ``level``; ``credible`` when the
    interval leaves out 1. ``p`` is two-sided, ``nu`` the degrees of freedom, ``launches`` counts both sides."""

    ratio: float
    low: float
    high: float
    level: float
    p: float
    nu: float
    launches: tuple[int, int]

    @property
    def credible(self) -> bool:
        return not self.low <= 1 <= self.high


@dataclass(frozen=True)
class RatioEffect:
    """One variation of a sweep against the base: ``ratio`` is variation / base, its interval simultaneous over all
    variations, ``p`` adjusted likewise. ``better`` is None where there is no credible effect."""

    name: str
    ratio: float
    low: float
    high: float
    p: float
    launches: int
    better: bool | None

    @property
    def words(self) -> str:
        """``+3.1 % [+2.0, +4.2]`` or ``no credible effect [-0.8, +0.9] %``."""
        ends = f"[{self.low - 1:+.1%}, {self.high - 1:+.1%}]"
        return f"{self.ratio - 1:+.1%} {ends}" if self.better is not None else f"no credible effect {ends}"


def ratio_interval(
    a: Sequence[Launch],
    b: Sequence[Launch],
    *,
    level: float = 0.95,
    prior: Prior | None = None,
    prior_b: Prior | None = None,
    pooled: bool = False,
) -> Ratio:
    """``b / a`` with its interval, each a sequence of launches (their repetitions, or one value each).

    Two engines differ in launch spread, up to tenfold, so each side has its own moderated variance (``prior_b`` is
    b's prior when it is not a's) and the degrees of freedom are Welch's (1947, Biometrika 34:28). ``pooled`` takes one
    variance for both: two builds or configs of one engine. Raises ``ValueError`` for unusable launches.
    """
    x, y = _usable(a, "a"), _usable(b, "b")
    prior = prior or Prior()
    if pooled:
        expected = max(prior.s0**2, wander([*a, *b]))
        spread, nu = moderate(np.asarray(_squares(x) + _squares(y)), x.size + y.size - 2, prior.d0, expected)
        error = float(spread) * math.sqrt(1 / x.size + 1 / y.size)
    else:
        sides = [_mean_variance(*side) for side in ((x, a, prior), (y, b, prior_b or prior))]
        error = math.sqrt(sum(v for v, _ in sides))
        nu = error**4 / sum(v**2 / df for v, df in sides)
    gap = float(np.mean(y) - np.mean(x))
    reach = quantile((1 - level) / 2, nu) * error
    p = 2 * float(stdtr(nu, -abs(gap) / error))
    return Ratio(math.exp(gap), math.exp(gap - reach), math.exp(gap + reach), level, p, nu, (x.size, y.size))


def _mean_variance(logs: Array, launches: Sequence[Launch], prior: Prior) -> tuple[float, float]:
    """Variance of a side's mean and its degrees of freedom."""
    expected = max(prior.s0**2, wander(launches))
    spread, nu = moderate(np.asarray(_squares(logs)), logs.size - 1, prior.d0, expected)
    return float(spread) ** 2 / logs.size, nu


def effects(
    base: Sequence[Launch],
    variations: Mapping[str, Sequence[Launch]],
    *,
    higher_is_better: bool = True,
    level: float = 0.95,
    prior: Prior | None = None,
) -> list[RatioEffect]:
    """What each variation of one factor does to the base, best first.

    All launches are of one engine and share one moderated variance; the intervals cover all true ratios at once with
    probability ``level`` (Dunnett 1955, JASA 50:1096). Raises ``ValueError`` for unusable launches.
    """
    control = _usable(base, "base")
    groups = {name: _usable(launches, name) for name, launches in variations.items()}
    if not groups:
        return []
    prior = prior or Prior()
    squares = _squares(control) + sum(_squares(g) for g in groups.values())
    df = control.size - 1 + sum(g.size - 1 for g in groups.values())
    expected = max(prior.s0**2, wander([x for group in (base, *variations.values()) for x in group]))
    spread, nu = moderate(np.asarray(squares), df, prior.d0, expected)
    sizes = np.array([g.size for g in groups.values()])
    lean = np.sqrt(sizes / (sizes + control.size))
    critical = dunnett_quantile(tuple(lean), nu, level)
    found = []
    for name, group in groups.items():
        gap = float(np.mean(group) - np.mean(control))
        error = float(spread) * math.sqrt(1 / control.size + 1 / group.size)
        low, high = gap - critical * error, gap + critical * error
        p = 1 - dunnett_cdf(abs(gap) / error, lean, nu)
        better = None if low <= 0 <= high else (gap > 0) == higher_is_better
        found.append(RatioEffect(name, math.exp(gap), math.exp(low), math.exp(high), p, group.size, better))
    return sorted(found, key=lambda e: e.ratio, reverse=higher_is_better)


def dunnett_cdf(t: float, lean: Array, nu: float) -> float:
    """``P(max_j |T_j| <= t)`` of comparisons with one control whose correlations are ``lean_i lean_j``.

    Given the control's mean and the common variance the comparisons are independent; Gauss quadrature over the two.
    """
    v, wv = chi2_nodes(nu)
    x, w = legendre(48)
    z, wz = 8.5 * x, 8.5 * w * np.exp(-((8.5 * x) ** 2) / 2) / math.sqrt(2 * math.pi)
    limit = t * np.sqrt(v / nu)[:, None, None]
    middle, width = (lean * z[:, None])[None], np.sqrt(1 - lean**2)
    inside = ndtr((limit - middle) / width) - ndtr((-limit - middle) / width)
    return float(np.sum(wv[:, None] * wz * np.prod(inside, axis=-1)))


@lru_cache(maxsize=256)
def dunnett_quantile(lean: tuple[float, ...], nu: float, level: float) -> float:
    """``t`` with ``dunnett_cdf(t) == level``; between one comparison's quantile and Bonferroni's."""
    low = quantile((1 - level) / 2, nu)
    if len(lean) == 1:
        return low
    high = quantile((1 - level) / 2 / len(lean), nu)
    return float(brentq(lambda t: dunnett_cdf(t, np.array(lean), nu) - level, low * 0.999, high * 1.001, rtol=1e-6))


def _usable(launches: Sequence[Launch], name: str) -> Array:
    logs = stack(launches, flat_is_one=False)
    if logs is None:
        raise ValueError(f"{name} needs launches whose values are all positive and finite, got {list(launches)!r}")
    return logs


def _squares(values: Array) -> float:
    return float(np.sum((values - np.mean(values)) ** 2))
