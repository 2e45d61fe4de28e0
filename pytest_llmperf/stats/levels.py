"""Critical values: how far below the baseline a launch may fall, at one stage and at two that share a level."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, roots_jacobi, stdtrit
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
    def detectable(self) -> float:
        """Loss, in standard deviations between launches, that both stages together fail with probability ``POWER``."""
        return _detectable(self)

    @property
    def confirm_level(self) -> float:
        """Nominal level of the second stage alone."""
        return float(student.sf(self.confirm, self.confirm_nu))


def failing(design: Design, confirm: float, drop: float = 0.0) -> float:
    """Probability that both stages together fail a test whose launches dropped by ``drop`` standard deviations.

    The two mean differences are bivariate normal with correlation
    ``share / sqrt((share + 1/screened)(share + 1/confirmed))``. The second stage's variance estimate ``v`` (a
    chi-square with ``confirm_nu``) holds the first one's as a fraction, an independent Beta(nu/2, (confirmed-1)/2).
    Gauss quadrature over ``v``, that fraction and the first difference; with ``confirmed = 1`` this is scipy's
    bivariate ``multivariate_t``.
    """
    v, wv = chi2_nodes(design.confirm_nu)
    root, wp = _beta_nodes(design.nu, design.confirmed - 1)
    first = design.share + 1 / design.screened
    second = design.share + 1 / design.confirmed
    rho = design.share / np.sqrt(first * second)
    d1, d2 = drop / np.sqrt(first), drop / np.sqrt(second)
    u = np.sqrt(v[:, None] / design.nu) * root
    low = design.screen * u - d1
    high = np.minimum(design.fast * u - d1, np.maximum(low, 0.0) + 9.0)
    x, w = legendre(24)
    half = np.maximum(high - low, 0.0)[:, :, None] / 2
    z = low[:, :, None] + half * (x + 1)
    weight = (wv[:, None] * wp)[:, :, None]
    wz = weight * half * w * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    limit = confirm * np.sqrt(v / design.confirm_nu)
    beyond = ndtr((d2 + rho * z - limit[:, None, None]) / np.sqrt(1 - rho**2))
    at_once = np.sum(weight[:, :, 0] * ndtr(d1 - design.fast * u))
    return float(np.sum(wz * beyond) + at_once)


@lru_cache(maxsize=4096)
def _confirm(design: Design) -> float:
    """The second stage's critical t: ``failing(design, t) == alpha``. Cached: pure, and the same for many tests.

    Its level lies between ``(1 - FAST_SHARE) alpha`` (all of the rest) and ``alpha / screen_level`` (the stages are
    positively dependent).
    """
    low = quantile(design.alpha / design.screen_level, design.confirm_nu)
    high = quantile(design.alpha * (1 - FAST_SHARE), design.confirm_nu)
    return float(brentq(lambda t: failing(design, t) - design.alpha, low, high, rtol=1e-6))


@lru_cache(maxsize=4096)
def _detectable(design: Design) -> float:
    return float(brentq(lambda d: failing(design, design.confirm, d) - POWER, 0.0, _reach(design), rtol=1e-4))


def _reach(design: Design) -> float:
    """A loss that is all but certain to fail."""
    limit = max(design.screen * np.sqrt(design.share + 1 / design.screened), 1.0)
    limit = max(limit, design.confirm * np.sqrt(design.share + 1 / design.confirmed))
    return float(3 * limit + 3)


@lru_cache(maxsize=256)
def chi2_nodes(nu: float) -> tuple[Array, Array]:
    """Gauss-Legendre nodes in ``log v`` and weights for a chi-square with ``nu`` degrees of freedom."""
    x, w = legendre(40)
    low, high = np.log(chi2.ppf(1e-12, nu)), np.log(chi2.isf(1e-12, nu))
    v = np.exp(low + (high - low) * (x + 1) / 2)
    return v, w * (high - low) / 2 * chi2.pdf(v, nu) * v


@lru_cache(maxsize=256)
def _beta_nodes(nu: float, added: int) -> tuple[Array, Array]:
    """Gauss-Jacobi nodes for the root of a Beta(nu/2, added/2) and weights; all mass at 1 when next to nothing is
    added."""
    if added == 0 or nu > 500:
        return np.ones(1), np.ones(1)
    x, w = roots_jacobi(24, added / 2 - 1, nu - 1)
    root = (x + 1) / 2
    w = w * (1 + root) ** (added / 2 - 1)
    return root, w / np.sum(w)


@lru_cache(maxsize=8)
def legendre(n: int) -> tuple[Array, Array]:
    return np.polynomial.legendre.leggauss(n)
