"""What a comparison is called: the outcome of judging fresh launches, and the rules that name it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .levels import Design
from .location import Array
from .reference import Shift

PASSED, IMPROVED, SUSPECT, REGRESSED = range(4)
VERDICTS = ("passed", "improved", "suspect", "regressed")


@dataclass(frozen=True)
class Outcome:
    """What the fresh launches showed.

    ``verdict``: passed, improved, suspect (wants confirmation), regressed, inconclusive or invalid. ``value`` is the
    geometric mean of the launches' values, ``center`` that of the baseline, both in the metric's unit; ``change`` is
    ``value / center - 1``; ``band`` the limits that ``value`` was held to. ``t`` with ``nu`` degrees of freedom is
    positive when worse, ``p`` its one-sided probability without a change. ``launches`` counts the fresh launches
    judged. ``mde`` is the smallest relative loss seen with 80 % power; ``required_launches`` how many stored launches
    would make it small enough, None when it is or when none would.
    """

    verdict: str
    value: float | None = None
    center: float | None = None
    band: tuple[float, float] | None = None
    change: float | None = None
    p: float | None = None
    t: float | None = None
    nu: float | None = None
    launches: int = 0
    mde: float | None = None
    required_launches: int | None = None
    reasons: tuple[str, ...] = ()


def first_stage(seen: Shift, design: Design, least: float) -> npt.NDArray[np.int_]:
    """Codes (indices into ``VERDICTS``) of screened launches; a loss below ``least`` (logs) is never suspect."""
    worse = seen.drop >= least
    better = -seen.drop >= least
    confirm = design.confirm if np.any(better & (seen.t < -design.screen)) else math.inf
    return np.select(
        [worse & (seen.t > design.fast), worse & (seen.t > design.screen), better & (seen.t < -confirm)],
        [REGRESSED, SUSPECT, IMPROVED],
        PASSED,
    )


def last_stage(seen: Shift, critical: float | Array, least: float) -> npt.NDArray[np.int_]:
    """Codes of launches that decide: confirming ones, or all of them where no confirmation is possible."""
    return np.select(
        [(seen.drop >= least) & (seen.t > critical), (-seen.drop >= least) & (seen.t < -critical)],
        [REGRESSED, IMPROVED],
        PASSED,
    )
