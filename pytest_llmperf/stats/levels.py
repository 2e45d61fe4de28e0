"""Critical values: how far below the baseline a launch may fall, at one stage and at two that share a level."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import chdtri, gammaincinv, gammaln, ndtr, stdtrit, xlogy

from .location import Array

#: Level of the screen: one unchanged launch in twenty is worth a second look.
SCREEN_LEVEL = 0.05
#: Shares of a single launch's limit that each confirming launch may be held to, and the share of launches that may be
#: outliers without more unchanged tests failing: the least share that allows them is taken.
EACH, OUTLIERS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5), 0.05
#: Power at which the smallest detectable drop is stated.
POWER = 0.8
#: Steps of the share's logarithm and of the degrees of freedom where several hosts stand behind them.
_SHARE_STEP, _NU_STEP = 0.25, 0.5


def session_alpha(level: float, gated: int) -> float:
    """Level of each of ``gated`` metrics such that an unchanged session is red with probability ``level`` at most.

    ``1 - (1 - level)^(1 / gated)`` (Sidak). Raises ``ValueError`` for a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"the session's level must lie between 0 and 1, got {level!r}")
    return float(-np.expm1(np.log1p(-level) / max(gated, 1)))


def quantile(level: float, nu: float) -> float:
    """Upper ``level`` quantile of Student's t with ``nu`` degrees of freedom."""
    return float(-stdtrit(nu, level))


@dataclass(frozen=True)
class Design:
    """Everything the critical values depend on.

    ``share`` is the variance of the baseline's centre in units of the launch variance (``1 / k`` for k launches of
    one host); ``screened`` and ``confirmed`` are the numbers of fresh launches of the two stages; ``nu`` the degrees
    of freedom of the launch variance; ``alpha`` the level of both stages together. ``pooled``: the confirming
    launches' own spread joins the launch variance.
    """

    share: float
    screened: int
    confirmed: int
    nu: float
    alpha: float
    pooled: bool = True

    @property
    def screen(self) -> float:
        """Critical t beyond which the first launches are suspect."""
        return quantile(self.screen_level, self.nu)

    @property
    def screen_level(self) -> float:
        return min(max(SCREEN_LEVEL, 5 * self.alpha), 0.5)

    @property
    def confirm(self) -> float:
        """Critical t of the confirming launches' mean, with ``confirm_nu`` degrees of freedom."""
        return _limits(self)[0]

    @property
    def each(self) -> float:
        """Critical t, with ``nu`` degrees of freedom, of every confirming launch by itself."""
        return _limits(self)[1] * self.screen

    @property
    def confirm_nu(self) -> float:
        return self.nu + self.confirmed - 1 if self.pooled else self.nu

    def detectable(self, least: float = 0.0) -> float:
        """Loss that fails with probability ``POWER``, the practical minimum being ``least``; both in standard
        deviations between launches."""
        return _detectable(self, round(least, 1))


def failing(
    design: Design, confirm: float, each: float, drop: float = 0.0, least: float = 0.0, *, outliers: float = 0.0
) -> float:
    """Probability that a test fails whose launches dropped by ``drop`` standard deviations.

    It fails when the screened mean lies beyond ``design.screen``, the confirming mean beyond ``confirm`` and every
    confirming launch beyond ``each`` (critical t), all three beyond ``least`` (standard deviations). A launch in
    ``1 / outliers`` is beyond whatever limit. Given the baseline's centre, the variance estimate and the confirming
    launches' deviations from their mean, both means are independent normals: Gauss quadrature over the three. With
    one confirming launch and ``each = -inf`` this is scipy's bivariate ``multivariate_t``.
    """
    v, wv = chi2_nodes(design.nu)
    x, wx = legendre(48 * math.ceil(math.sqrt(max(design.share, 1.0))))
    center, wc = 8.5 * x, 8.5 * wx * np.exp(-((8.5 * x) ** 2) / 2) / np.sqrt(2 * np.pi)
    squares, lowest, wd = _deviations(design.confirmed)
    error = np.sqrt(v / design.nu) * np.sqrt(design.share + 1)
    first = np.maximum(
        design.screen * error * np.sqrt((design.share + 1 / design.screened) / (design.share + 1)), least
    )
    one = np.maximum(each * error, least)
    added = squares if design.pooled else np.zeros_like(squares)
    pooled = np.sqrt((v[:, None] + added) / design.confirm_nu)
    second = np.maximum(confirm * pooled * np.sqrt(design.share + 1 / design.confirmed), one[:, None] + lowest)
    second = np.maximum(second, least)
    away = np.sqrt(design.share) * center + drop
    suspect = ndtr((away - first[:, None]) * np.sqrt(design.screened))
    confirmed = np.sum(ndtr((away - second[:, :, None]) * np.sqrt(design.confirmed)) * wd[:, None], axis=1)
    if outliers:
        sound = (1 - outliers) * ndtr(away - one[:, None])
        suspect = outliers + (1 - outliers) * suspect
        none = (1 - outliers) ** design.confirmed
        confirmed = none * confirmed + (outliers + sound) ** design.confirmed - sound**design.confirmed
    return float(np.sum(wv[:, None] * wc * suspect * confirmed))


def design_of(share: float, nu: float, screened: int, confirmed: int, alpha: float, *, one_host: bool = True) -> Design:
    """The design of a baseline. Where hosts make ``share`` and ``nu`` unlike from series to series, they are rounded
    to the careful side, so that few critical values serve all."""
    if one_host:
        return Design(share, screened, confirmed, nu, alpha)
    share = float(np.exp(np.ceil(np.log(share) / _SHARE_STEP) * _SHARE_STEP))
    return Design(share, screened, confirmed, float(np.floor(nu / _NU_STEP) * _NU_STEP), alpha, pooled=False)


@lru_cache(maxsize=4096)
def _limits(design: Design) -> tuple[float, float]:
    """The second stage's critical t and the share of the screen's that each launch is held to, such that both stages
    together spend alpha, and no more with ``OUTLIERS``. Cached: pure, and the same for many tests."""
    for share in EACH:
        each = share * design.screen
        confirm = _confirm(design, each)
        spoilt = failing(design, confirm, each, outliers=OUTLIERS) > design.alpha
        if share == EACH[0] or not spoilt:
            found = confirm, share
        if spoilt:
            break
    return found


def _confirm(design: Design, each: float) -> float:
    """``failing(design, t, each) == alpha``; 0 where screen and each launch's limit spend less by themselves."""
    high = 1.01 * quantile(design.alpha, design.confirm_nu)
    if failing(design, 0.0, each) <= design.alpha:
        return 0.0
    return float(brentq(lambda t: failing(design, t, each) - design.alpha, 0.0, high, rtol=1e-6))


@lru_cache(maxsize=4096)
def _detectable(design: Design, least: float) -> float:
    confirm, each = design.confirm, design.each
    high = 3 * max(design.screen, confirm, 1.0) * np.sqrt(design.share + 1) + least + 3
    return float(brentq(lambda d: failing(design, confirm, each, d, least) - POWER, 0.0, high, rtol=1e-4))


@lru_cache(maxsize=16)
def _deviations(launches: int) -> tuple[Array, Array, Array]:
    """Deviations of normal launches from their mean: their sum of squares, the largest one, and weights.

    The radius is chi distributed with ``launches - 1`` degrees of freedom and independent of the direction, of which
    only the largest component counts: one value for two launches, quantiles of many drawn directions for more.
    """
    if launches == 1:
        return np.zeros(1), np.zeros(1), np.ones(1)
    v, w = chi2_nodes(launches - 1.0)
    drawn = np.random.default_rng(1).normal(size=(20_000, launches))
    drawn -= np.mean(drawn, axis=1, keepdims=True)
    largest = np.max(drawn, axis=1) / np.sqrt(np.sum(drawn**2, axis=1))
    parts = 1 if launches == 2 else 6
    shapes = np.quantile(largest, (np.arange(parts) + 0.5) / parts)
    squares = np.repeat(v, parts)
    return squares, np.sqrt(squares) * np.tile(shapes, v.size), np.repeat(w, parts) / parts


@lru_cache(maxsize=256)
def chi2_nodes(nu: float) -> tuple[Array, Array]:
    """Gauss-Legendre nodes in ``log v`` and weights for a chi-square with ``nu`` degrees of freedom."""
    x, w = legendre(40)
    low, high = np.log(2 * gammaincinv(nu / 2, 1e-12)), np.log(chdtri(nu, 1e-12))
    v = np.exp(low + (high - low) * (x + 1) / 2)
    density = np.exp(xlogy(nu / 2 - 1, v / 2) - v / 2 - gammaln(nu / 2)) / 2
    return v, w * (high - low) / 2 * density * v


@lru_cache(maxsize=16)
def legendre(n: int) -> tuple[Array, Array]:
    return np.polynomial.legendre.leggauss(n)
