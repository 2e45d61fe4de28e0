"""Series that no band should be drawn around: launches in two groups, or far more spread than others of their kind."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import fdtri

from .location import Array
from .reference import Reference

#: Share of series, their spread drawn from the prior, that are called too spread although nothing is wrong.
UNSTABLE_LEVEL = 0.01
#: The same for fresh launches that disagree with each other more than the stored ones do.
DISAGREE_LEVEL = 0.001
#: Gap between two groups, in standard deviations within them, that makes two modes of them.
MODES_APART = 4.0


def too_spread(ref: Reference, d0: float) -> npt.NDArray[np.bool_]:
    """Whether the launches spread far more than the prior allows: an F test of their variance, shape ``(...)``."""
    if ref.own_df < 1 or d0 <= 0:
        return np.zeros(np.shape(ref.center), dtype=np.bool_)
    ratio = ref.own_squares / ref.own_df / ref.prior_spread**2
    return np.asarray(ratio > fdtri(ref.own_df, d0, 1 - UNSTABLE_LEVEL))


def modes(logs: Array, d0: float, s0: float) -> tuple[Array, Array]:
    """The widest gap between two groups of launches and its size in moderated standard deviations within the groups.

    Shape ``(..., k)`` to two of ``(...)``. Each group has two launches at least (one alone is an outlier, not a mode);
    zeros for fewer than four launches.
    """
    x = np.sort(logs, axis=-1)
    k = x.shape[-1]
    gap, size = np.zeros(x.shape[:-1]), np.zeros(x.shape[:-1])
    for cut in range(2, k - 1):
        low, high = x[..., :cut], x[..., cut:]
        within = sum(np.sum((g - np.mean(g, axis=-1, keepdims=True)) ** 2, axis=-1) for g in (low, high))
        here = high[..., 0] - low[..., -1]
        ratio = here / np.sqrt(np.maximum((d0 * s0**2 + within) / (d0 + k - 2), 1e-16))
        gap, size = np.where(ratio > size, here, gap), np.maximum(ratio, size)
    return gap, size


def disagree(ref: Reference, fresh: Array) -> npt.NDArray[np.bool_]:
    """Whether fresh launches, shape ``(..., r)`` with r > 1, spread far more than the reference allows (F test)."""
    variance = np.var(fresh, axis=-1, ddof=1)
    return np.asarray(variance / ref.spread**2 > fdtri(fresh.shape[-1] - 1, ref.nu, 1 - DISAGREE_LEVEL))
