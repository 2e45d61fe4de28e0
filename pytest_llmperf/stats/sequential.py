"""A/B of two builds or configs from interleaved launches, stopping as soon as the answer is clear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

from .compare import Ratio, ratio_interval
from .levels import legendre
from .location import Array, Launch, stack
from .prior import Prior

#: What the prior is worth here, in launches, and how many times its spread is expected: the level then holds up to
#: ``STEADY`` times that spread (at the gate's 4 and 1 it was 7-13 % there, for 5 % claimed).
WORTH, EXPECTED, STEADY = 1.0, 1.75, 2.0
#: Pairs of launches before the first look: one ABBA block.
FIRST_LOOK = 2


@dataclass(frozen=True)
class Trial:
    """Where an A/B stands.

    ``verdict``: ``faster`` or ``slower`` (b against a, credibly), ``no difference`` (the whole interval lies within
    ``min_effect`` of 1), ``undecided`` (budget spent) or ``continue``. ``ratio`` is b / a with its interval, valid
    however often one looked; None before the first look. ``spread`` is the standard deviation (logs) between launches
    of a side, None with one of each; ``unsteady`` when it exceeds ``STEADY`` times the prior's, up to which the level
    is held.
    """

    verdict: str
    ratio: Ratio | None
    pairs: int
    budget: int
    spread: float | None = None
    unsteady: bool = False

    @property
    def done(self) -> bool:
        return self.verdict != "continue"


def abba(pairs: int) -> str:
    """Order of launches that cancels linear drift: ``ABBAABBA...``, ``pairs`` of each."""
    return ("ABBA" * ((pairs + 1) // 2))[: 2 * pairs]


def trial(
    a: Sequence[Launch],
    b: Sequence[Launch],
    *,
    budget: int,
    higher_is_better: bool = True,
    level: float = 0.95,
    prior: Prior | None = None,
    min_effect: float = 0.01,
) -> Trial:
    """Judge the launches so far, looked at after every pair; ``budget`` is the most launches of each side.

    The chance of calling an unchanged b faster or slower is at most ``1 - level`` over all looks, for launches that
    spread up to ``STEADY`` times as much as the prior expects. Launches beyond the
    last complete pair wait for the next look. Raises ``ValueError`` for unusable launches or a budget below one.
    """
    if budget < 1:
        raise ValueError(f"an A/B needs a budget of one launch of each side at least, got {budget!r}")
    pairs = min(len(a), len(b), budget)
    if pairs < min(FIRST_LOOK, budget):
        return Trial("continue", None, pairs, budget)
    nominal = look_levels(budget, 1 - level)[pairs - min(FIRST_LOOK, budget)]
    prior = prior or Prior()
    careful = Prior(min(prior.d0, WORTH), EXPECTED * prior.s0, prior.source)
    seen = ratio_interval(a[:pairs], b[:pairs], level=1 - nominal, prior=careful, pooled=True)
    seen = Ratio(seen.ratio, seen.low, seen.high, level, seen.p, seen.nu, seen.launches)
    if seen.credible:
        verdict = "faster" if (seen.ratio > 1) == higher_is_better else "slower"
    elif 1 - min_effect <= seen.low and seen.high <= 1 + min_effect:
        verdict = "no difference"
    else:
        verdict = "undecided" if pairs == budget else "continue"
    spread = math.sqrt(np.mean([_variance(side[:pairs]) for side in (a, b)])) if pairs > 1 else None
    return Trial(verdict, seen, pairs, budget, spread, spread is not None and spread > STEADY * prior.s0)


def _variance(launches: Sequence[Launch]) -> float:
    logs = stack(launches, flat_is_one=False)
    return 0.0 if logs is None else float(np.var(logs, ddof=1))


@lru_cache(maxsize=128)
def look_levels(budget: int, alpha: float) -> tuple[float, ...]:
    """Two-sided nominal level at each look (after ``FIRST_LOOK``, ..., ``budget`` pairs), ``alpha`` over all.

    The error is spent in proportion to the launches (Kim & DeMets 1987, Biometrika 74:149); the crossing
    probabilities of the summed differences, a Gaussian random walk, follow by recursive quadrature (Armitage,
    McPherson & Rowe 1969, JRSS A 132:235). Used as levels of the t statistics at hand (Jennison & Turnbull 2000,
    section 3.8), which share a variance estimate and thereby spend a little less.
    """
    first = min(FIRST_LOOK, budget)
    x, w = legendre(64)
    levels = []
    nodes, mass, sd = np.zeros(1), np.ones(1), math.sqrt(first)
    for n in range(first, budget + 1):
        spend = alpha * (first if n == first else 1) / budget
        limit = float(brentq(_unspent, 0.0, 10 * math.sqrt(n), args=(nodes, mass, sd, spend), xtol=1e-10))
        levels.append(2 * float(ndtr(-limit / math.sqrt(n))))
        inside = limit * x
        density = np.exp(-(((inside[:, None] - nodes) / sd) ** 2) / 2) / (sd * math.sqrt(2 * math.pi)) @ mass
        nodes, mass, sd = inside, limit * w * density, 1.0
    return tuple(levels)


def _unspent(limit: float, nodes: Array, mass: Array, sd: float, spend: float) -> float:
    """Chance that the walk, now at ``nodes`` with density ``mass``, steps beyond ``limit``, less what may be spent."""
    return float(mass @ (ndtr((-limit - nodes) / sd) + ndtr((nodes - limit) / sd))) - spend
