"""What a comparison is called: the outcome of judging fresh launches, and the rules that name it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .levels import design_of
from .location import Array
from .reference import Reference, Shift, shift

PASSED, FASTER, IMPROVED, SUSPECT, REGRESSED = range(5)
VERDICTS = ("passed", "passed", "improved", "suspect", "regressed")


@dataclass(frozen=True)
class Outcome:
    """What the fresh launches showed.

    ``verdict``: passed, improved, suspect (wants confirmation), regressed, inconclusive or invalid. ``value`` is the
    geometric mean of the launches' values, ``center`` that of the baseline, both in the metric's unit; ``change`` is
    ``value / center - 1``; ``band`` the limits that ``value`` was held to. ``t`` with ``nu`` degrees of freedom is
    positive when worse, ``p`` its one-sided probability without a change. ``launches`` counts the fresh launches
    judged. ``mde`` is the smallest relative loss seen with 80 % power; ``weak`` says that it exceeds what must not go
    unseen (``max_regression``, else 10 %), ``required_launches`` how many stored launches would mend that, None when
    it is no matter or when none would. ``faster``: a screened launch passed that looks better, which only
    ``Gate.confirm`` may call improved. ``unconfirmed``: regressed or improved by the one stage of ``Gate.single``.
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
    weak: bool = False
    faster: bool = False
    unconfirmed: bool = False
    reasons: tuple[str, ...] = ()


def first_stage(seen: Shift, critical: float | Array, least: float) -> npt.NDArray[np.int_]:
    """Codes (indices into ``VERDICTS``) of screened launches: nothing fails on one launch, and what differs by less
    than ``least`` (logs) is neither suspect nor faster."""
    worse, better = (_decided(s * seen.t, s * seen.drop, critical, least) for s in (1, -1))
    return np.select([worse, better], [SUSPECT, FASTER], PASSED)


def last_stage(
    seen: Shift, critical: float | Array, least: float, limit: float | Array = -math.inf
) -> npt.NDArray[np.int_]:
    """Codes of launches that decide. Their mean must lie beyond ``critical`` and, where they confirm others, each of
    them beyond ``limit`` (logs, ``each_limit``)."""
    worse, better = (
        _decided(s * seen.t, s * seen.drop, critical, least)
        & np.all(s * seen.each >= np.asarray(limit)[..., None], axis=-1)
        for s in (1, -1)
    )
    return np.select([worse, better], [REGRESSED, IMPROVED], PASSED)


def each_limit(ref: Reference, critical: float | Array, least: float) -> Array:
    """How far (logs) each confirming launch must be off."""
    return np.maximum(critical * ref.spread * np.sqrt(ref.share + 1), least)


def _decided(t: Array, drop: Array, critical: float | Array, least: float) -> npt.NDArray[np.bool_]:
    return np.asarray((drop >= least) & (t > critical))


def both_stages(
    ref: Reference, fresh: Array, *, alpha: float, least: float
) -> tuple[npt.NDArray[np.int_], npt.NDArray[np.int_]]:
    """Codes of many series at once, as ``Gate.screen`` finds them for the first of their fresh launches and
    ``Gate.confirm`` for the others; ``fresh`` has shape ``(n, 1 + r)``. The latter count for suspects and faster ones.
    """
    pairs, which = np.unique(np.stack([ref.share, ref.nu]), axis=1, return_inverse=True)
    made = fresh.shape[-1] - 1
    designs = [design_of(s, n, 1, made, alpha, one_host=ref.one_host) for s, n in pairs.T]
    screen, confirm, each = (
        np.array(x)[which] for x in zip(*((d.screen, d.confirm, d.each) for d in designs), strict=True)
    )
    first = first_stage(shift(ref, fresh[:, :1], pooled=False), screen, least)
    again = shift(ref, fresh[:, 1:], pooled=True)
    return first, last_stage(again, confirm, least, each_limit(ref, each, least))
