"""Judging measured launches against a typed number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .levels import quantile
from .location import Launch, stack, wander
from .prior import Prior, moderate


@dataclass(frozen=True)
class TargetOutcome:
    """``verdict``: passed, regressed (credibly short of the target) or invalid. ``limit`` is the one-sided limit of
    the measured mean that the target was held against: the upper one when higher is better, else the lower one."""

    verdict: str
    target: float
    value: float | None
    limit: float | None
    launches: int
    reasons: tuple[str, ...] = ()


def target_outcome(
    launches: Launch | Sequence[Launch],
    target: float,
    higher_is_better: bool = True,
    alpha: float = 0.001,
    prior: Prior | None = None,
) -> TargetOutcome:
    """Whether launches are credibly short of ``target`` (same unit): one-sided at ``alpha``, for the mean alone.

    The mean's error is ``s~ / sqrt(r)`` for r launches, ``s~`` moderated by ``prior`` (``Gate.learned`` where there is
    a baseline) and no smaller than repetitions wander. A flat sequence is one launch's repetitions. Raises
    ``ValueError`` for a target that is not positive and finite.
    """
    if not (math.isfinite(target) and target > 0):
        raise ValueError(f"a target must be positive and finite, got {target!r}")
    logs = stack(launches)
    if logs is None:
        reason = "a launch holds a value that is not positive and finite, or none"
        return TargetOutcome("invalid", target, None, None, 0, (reason,))
    prior = prior or Prior()
    mean = float(np.mean(logs))
    squares, expected = np.asarray(np.sum((logs - mean) ** 2)), max(prior.s0**2, wander(launches))
    spread, nu = moderate(squares, logs.size - 1, prior.d0, expected)
    reach = quantile(alpha, nu) * float(spread) / math.sqrt(logs.size)
    limit = math.exp(mean + reach if higher_is_better else mean - reach)
    short = limit < target if higher_is_better else limit > target
    value = math.exp(mean)
    behind = value < target if higher_is_better else value > target
    reasons: tuple[str, ...] = ()
    if behind:
        edge = "upper" if higher_is_better else "lower"
        credible = "credibly short" if short else "short, yet within what launches differ by"
        reasons = (f"target {target:g}: {abs(value / target - 1):.1%} {credible} ({edge} limit {limit:.4g})",)
    return TargetOutcome("regressed" if short else "passed", target, value, limit, int(logs.size), reasons)
