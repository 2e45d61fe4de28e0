"""Series that no band should be drawn around: launches in two groups, or far more spread than others of their kind."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import fdtri

from .location import Array, Launch, stack, wander
from .prior import MOST_USUAL, Prior
from .reference import OWN_LAUNCHES, REACH, Reference, reference, shift

#: Share of series, their spread drawn from the prior, that are called too spread although nothing is wrong.
SPREAD_LEVEL = 0.01
#: The same for fresh launches that disagree with each other more than the stored ones do.
DISAGREE_LEVEL = 0.001
#: The same for a stored launch that is named as an outlier, on either side.
OUTLIER_LEVEL = 0.001
#: Gap between two groups, in standard deviations within them, that makes two modes of them: one unchanged series in a
#: hundred at a launch spread of 2 %, one in three thousand at 1 %.
MODES_APART = 4.0
#: Gap (logs) below which two groups are none to a prior.
LEAST_GAP = 0.01

STEADY, GROUPED, SPREAD = range(3)


def unsteadiness(ref: Reference, d0: float, least: float) -> npt.NDArray[np.int_]:
    """Codes of the stored launches behind a reference, shape ``(...)``; differences below ``least`` (logs) do not
    matter. Of three or more launches the oddest counts for nothing here: one makes no series unsteady."""
    gap, apart = modes(ref.residuals, d0, ref.expected)
    grouped = _grouped(gap, apart, least)
    if ref.own_df < 1 or d0 <= 0:
        return np.where(grouped, GROUPED, STEADY)
    rest, df = ref.residuals, ref.own_df
    if df > 1:
        oddest = np.argmax(np.abs(rest), axis=-1)[..., None]
        kept = np.arange(rest.shape[-1]) != oddest
        rest, df = rest[kept].reshape(*rest.shape[:-1], -1), df - 1
    variance = np.sum((rest - np.mean(rest, axis=-1, keepdims=True)) ** 2, axis=-1) / df
    limit = fdtri(df, d0, 1 - SPREAD_LEVEL) * ref.expected**2
    return np.select([grouped, (variance > limit) & (variance > least**2)], [GROUPED, SPREAD], STEADY)


def outliers(logs: Array, prior: Prior, least: float, *, wander: float = 0.0) -> list[int]:
    """Indices of launches, shape ``(k,)``, that the others can hardly have brought forth: each against the rest, as
    if it were the fresh one, at ``OUTLIER_LEVEL`` either way. Of fewer than ``OWN_LAUNCHES`` none can be told."""
    if logs.size < OWN_LAUNCHES:
        return []
    found = []
    for i, one in enumerate(logs):
        seen = shift(reference(np.delete(logs, i), prior, wander=wander), one[None], pooled=False)
        if abs(float(seen.drop)) > least and min(float(seen.p), 1 - float(seen.p)) < OUTLIER_LEVEL:
            found.append(i)
    return found


def far_apart(launches: Sequence[Launch], usual: float) -> tuple[float, list[int]] | None:
    """The spread of launches that differ more than ``MOST_USUAL`` times as much as is ``usual`` (standard deviations of
    logs), and which of them lie off: beyond ``REACH`` usual ones from the median. None where they do not, or are
    unusable. A launch whose own repetitions wander is expected to be off by that."""
    logs = stack(launches, flat_is_one=False)
    if logs is None or logs.size < 2:
        return None
    usual = math.sqrt(max(usual**2, wander(launches)))
    spread = float(np.std(logs, ddof=1))
    if spread <= MOST_USUAL * usual:
        return None
    away = np.abs(logs - np.median(logs))
    return spread, [int(i) for i in np.nonzero(away > REACH * usual)[0]]


def groups(logs: Array, d0: float, s0: float) -> list[Array]:
    """Launches, shape ``(k,)``, in their two groups where they fall into such, else all together."""
    gap, apart = modes(logs, d0, s0)
    x = np.sort(logs)
    cut = int(np.argmin(np.abs(np.diff(x) - gap))) + 1 if _grouped(gap, apart, LEAST_GAP) else 0
    return [x[:cut], x[cut:]] if cut else [x]


def _grouped(gap: Array, apart: Array, least: float) -> npt.NDArray[np.bool_]:
    return np.asarray((apart > MODES_APART) & (gap > least))


def modes(logs: Array, d0: float, s0: float | Array) -> tuple[Array, Array]:
    """The widest gap between two groups of launches and its size in moderated standard deviations within the groups.

    Shape ``(..., k)`` to two of ``(...)``. Each group has two launches and a quarter of them at least (fewer are
    outliers, not a mode); zeros for fewer than four launches.
    """
    x = np.sort(logs, axis=-1)
    k = x.shape[-1]
    gap, size = np.zeros(x.shape[:-1]), np.zeros(x.shape[:-1])
    fewest = max(2, math.ceil(k / 4))
    for cut in range(fewest, k - fewest + 1):
        low, high = x[..., :cut], x[..., cut:]
        within = sum(np.sum((g - np.mean(g, axis=-1, keepdims=True)) ** 2, axis=-1) for g in (low, high))
        here = high[..., 0] - low[..., -1]
        ratio = here / np.sqrt(np.maximum((d0 * s0**2 + within) / (d0 + k - 2), 1e-16))
        gap, size = np.where(ratio > size, here, gap), np.maximum(ratio, size)
    return gap, size


def disagree(ref: Reference, fresh: Array, least: float) -> npt.NDArray[np.bool_]:
    """Whether fresh launches, shape ``(..., r)``, spread far more than the reference allows (F test)."""
    r = fresh.shape[-1]
    if r < 2:
        return np.zeros(fresh.shape[:-1], dtype=np.bool_)
    variance = np.var(fresh, axis=-1, ddof=1)
    limit = fdtri(r - 1, ref.nu, 1 - DISAGREE_LEVEL) * ref.spread**2
    return np.asarray((variance > limit) & (variance > least**2))
