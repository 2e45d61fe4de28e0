"""Critical values: how far below the baseline a launch may fall, at one stage and at two that share a level."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, roots_genlaguerre, stdtrit
from scipy.stats import chi2
from scipy.stats import t as student

from .location import Array

#: Level of the screen: one unchanged launch in twenty is worth a second look.
SCREEN_LEVEL = 0.05
#: Share of alpha spent on failing at once, without confirmation.
FAST_SHARE = 0.1
#: Power at which the smallest detectable drop is stated.
POWER = 0.8


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
    of freedom of the launch variance; ``alpha`` the level of both stages together.
    """

    share: float
    screened: int
    confirmed: int
    nu: float
    alpha: float

    @property
    def screen(self) -> float:
        """Critical t beyond which the first launches are suspect."""
        return quantile(self.screen_level, self.nu)

    @property
    def fast(self) -> float:
        """Critical t beyond which the first launches fail at once."""
        return quantile(self.alpha * FAST_SHARE, self.nu)

    @property
    def screen_level(self) -> float:
        return min(max(SCREEN_LEVEL, 5 * self.alpha), 0.5)

    @property
    def confirm(self) -> float:
        """Critical t of the confirming launches, with ``confirm_nu`` degrees of freedom."""
        return _confirm(self)

    @property
    def confirm_nu(self) -> float:
        """The confirming launches' own spread joins the launch variance."""
        return self.nu + self.confirmed - 1

    @property
    def confirm_level(self) -> float:
        """Nominal level of the second stage alone."""
        return float(student.sf(self.confirm, self.confirm_nu))


def failing(design: Design, confirm: float, drop: float = 0.0) -> float:
    """Probability that both stages together fail a test whose launches dropped by ``drop`` standard deviations.

    With ``u^2 = chi2_nu / nu`` the launch variance over its true value, the two mean differences are bivariate normal
    with correlation ``share / sqrt((share + 1/screened)(share + 1/confirmed))``; the second stage adds the spread of
    its own launches, an independent ``chi2_(confirmed-1)``. Gauss quadrature over the three, smooth in every
    argument; agrees with scipy's ``multivariate_t`` where that applies (no spread added).
    """
    v, wv = _chi2_nodes(design.nu)
    b, wb = _gamma_nodes(design.confirmed - 1)
    first = design.share + 1 / design.screened
    second = design.share + 1 / design.confirmed
    rho = design.share / np.sqrt(first * second)
    d1, d2 = drop / np.sqrt(first), drop / np.sqrt(second)
    u = np.sqrt(v / design.nu)
    low = design.screen * u - d1
    high = np.minimum(design.fast * u - d1, np.maximum(low, 0.0) + 9.0)
    x, w = np.polynomial.legendre.leggauss(24)
    half = np.maximum(high - low, 0.0)[:, None] / 2
    z = low[:, None] + half * (x + 1)
    wz = wv[:, None] * half * w * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    limit = confirm * np.sqrt((v[:, None] + b) / design.confirm_nu)
    beyond = ndtr(((d2 + rho * z)[:, :, None] - limit[:, None, :]) / np.sqrt(1 - rho**2)) @ wb
    at_once = np.sum(wv * ndtr(d1 - design.fast * u))
    return float(np.sum(wz * beyond) + at_once)


@lru_cache(maxsize=4096)
def _confirm(design: Design) -> float:
    """The second stage's critical t: ``failing(design, t) == alpha``. Cached: pure, and the same for many tests."""
    top = max(quantile(design.alpha * 1e-3, design.confirm_nu), 1.0)
    return float(brentq(lambda t: failing(design, t) - design.alpha, -10.0, top, xtol=1e-7))


@lru_cache(maxsize=256)
def _chi2_nodes(nu: float) -> tuple[Array, Array]:
    """Gauss-Legendre nodes in ``log v`` and weights for a chi-square with ``nu`` degrees of freedom."""
    x, w = np.polynomial.legendre.leggauss(40)
    low, high = np.log(chi2.ppf(1e-12, nu)), np.log(chi2.isf(1e-12, nu))
    v = np.exp(low + (high - low) * (x + 1) / 2)
    return v, w * (high - low) / 2 * chi2.pdf(v, nu) * v


@lru_cache(maxsize=64)
def _gamma_nodes(df: int) -> tuple[Array, Array]:
    """Gauss-Laguerre nodes and weights for a chi-square with ``df`` degrees of freedom; a point mass at 0 for none."""
    if df == 0:
        return np.zeros(1), np.ones(1)
    b, w = roots_genlaguerre(12, df / 2 - 1)
    return 2 * b, w / np.sum(w)
