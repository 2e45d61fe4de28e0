"""What the stored launches say about a fresh one: centre, spread, and how sure both are.

Everything here works on arrays of series at once (shape ``(..., k)`` of logs, higher is better), so that the
simulations of ``benchmarks/`` and of the tests run the very code that judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr

from .location import Array
from .prior import Prior, moderate

#: Standard deviation of logs between hosts of one GPU model, until several hosts have shown their own.
HOST_SPREAD = 0.015
#: What that default is worth, in hosts.
HOST_WORTH = 4.0


@dataclass(frozen=True)
class Reference:
    """Centre (log), launch spread ``s~`` with ``nu`` degrees of freedom, and ``share``: the variance of the centre as
    a forecast for the fresh side's host, in units of ``s~^2``. ``expected`` is the spread before the launches spoke,
    ``residuals`` (shape ``(..., k)``) are their deviations from their host's mean, with ``own_df`` degrees of freedom.
    The others have shape ``(...)``."""

    center: Array
    spread: Array
    nu: float
    share: Array
    expected: Array
    residuals: Array
    own_df: float


@dataclass(frozen=True)
class Shift:
    """Fresh launches against a reference: ``drop`` in logs (positive is worse), ``t`` with ``nu``, ``error`` of the
    drop, ``spread`` used. Arrays of shape ``(...)``."""

    drop: Array
    t: Array
    nu: float
    error: Array
    spread: Array

    @property
    def p(self) -> Array:
        """One-sided probability of a drop this large without a change."""
        return np.asarray(stdtr(self.nu, -self.t))


def reference(
    logs: Array,
    prior: Prior,
    *,
    wander: float | Array = 0.0,
    hosts: Sequence[str] | None = None,
    host: str | None = None,
) -> Reference:
    """Summarise stored launches, shape ``(..., k)``.

    ``wander`` is the squared standard error of a launch's value as its own repetitions show it: no launch is
    expected to be steadier than that, whatever the prior says. ``hosts`` names each launch's host and ``host`` the
    fresh side's: hosts differ by a random ``h ~ N(0, s_h^2)``; the centre is then the best linear forecast for
    ``host``, which leans on that host's own launches as far as they go and on the others for the rest (Robinson 1991,
    Stat. Sci. 6:15).
    """
    k = logs.shape[-1]
    if hosts is not None and len(hosts) != k:
        raise ValueError(f"{k} launches but {len(hosts)} hosts")
    named = [*hosts] if hosts is not None and host is not None else [""] * k
    names = sorted(set(named))
    members = [np.array([h == name for h in named]) for name in names]
    means = np.stack([np.mean(logs[..., m], axis=-1) for m in members], axis=-1)
    residuals = logs - means[..., [names.index(h) for h in named]]
    expected = np.sqrt(np.maximum(prior.s0**2, wander) + np.zeros(logs.shape[:-1]))
    df = k - len(names)
    spread, nu = moderate(np.sum(residuals**2, axis=-1), df, prior.d0, expected**2)
    if names in ([""], [host]):
        return Reference(means[..., 0], spread, nu, np.full(spread.shape, 1 / k), expected, residuals, df)
    counts = np.array([np.sum(m) for m in members])
    between = _host_variance(means, counts, spread)
    center, variance = _forecast(means, counts, spread, between, names.index(host) if host in names else None)
    return Reference(center, spread, nu, variance / spread**2, expected, residuals, df)


def _host_variance(means: Array, counts: Array, spread: Array) -> Array:
    """``s_h^2`` by the analysis of variance of unequal groups, moderated towards the default."""
    k, df = counts.sum(), len(counts) - 1
    grand = np.sum(counts * means, axis=-1, keepdims=True) / k
    among = np.sum(counts * (means - grand) ** 2, axis=-1)
    shown = np.maximum((among - df * spread**2) / (k - np.sum(counts**2) / k), 0.0) if df else np.zeros_like(spread)
    return np.asarray((HOST_WORTH * HOST_SPREAD**2 + df * shown) / (HOST_WORTH + df))


def _forecast(means: Array, counts: Array, spread: Array, between: Array, own: int | None) -> tuple[Array, Array]:
    """Best linear forecast of one host's level and its variance. ``own`` is that host's index, None for a new host."""
    others = [i for i in range(len(counts)) if i != own]
    weight = 1 / (between[..., None] + spread[..., None] ** 2 / counts[others])
    level = np.sum(weight * means[..., others], axis=-1) / np.sum(weight, axis=-1)
    variance = between + 1 / np.sum(weight, axis=-1)
    if own is None:
        return level, variance
    error = spread**2 / counts[own]
    lean = variance / (variance + error)
    return level + lean * (means[..., own] - level), lean * error


def shift(ref: Reference, fresh: Array, *, pooled: bool) -> Shift:
    """Compare the mean of fresh launches, shape ``(..., r)``, with a reference.

    ``pooled`` lets the fresh launches' own spread into ``s~``: a drop does not change it, and fresh launches that
    disagree with each other convince less.
    """
    r = fresh.shape[-1]
    mean = np.mean(fresh, axis=-1)
    spread, nu = ref.spread, ref.nu
    if pooled and r > 1:
        own = np.sum((fresh - mean[..., None]) ** 2, axis=-1)
        spread, nu = np.sqrt((ref.nu * ref.spread**2 + own) / (ref.nu + r - 1)), ref.nu + r - 1
    # the centre's variance was stated in units of the reference's own spread
    error = spread * np.sqrt(ref.share + 1 / r)
    drop = ref.center - mean
    return Shift(drop, drop / error, nu, error, spread)
