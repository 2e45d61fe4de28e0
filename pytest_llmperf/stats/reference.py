"""What the stored launches say about a fresh one: centre, spread, and how sure both are.

Everything here works on arrays of series at once (shape ``(..., k)`` of logs, higher is better), so that the
simulations of ``benchmarks/`` and of the tests run the very code that judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr

from .location import Array
from .prior import LEAST_SPREAD, Prior

#: Standard deviation of logs between hosts of one GPU model, until several hosts have shown their own.
HOST_SPREAD = 0.015
#: What that default is worth, in launches.
HOST_WORTH = 4.0
#: Launches of one host that say by themselves where it stands, and which of them is the odd one.
OWN_LAUNCHES = 3
#: Standard deviations beyond which a launch counts no more than one at that distance, and what that leaves of a normal
#: launch's square: ``E[min(z^2, b^2)]``.
REACH, _WITHIN_REACH = 2.0, 0.920537
#: Most rounds of the robust centre and spread; a dozen settle it nearly always.
_ROUNDS = 100


@dataclass(frozen=True)
class Reference:
    """Centre (log), launch spread ``s~``, and ``share``: the variance of the centre as a forecast for the fresh side's
    host, in units of ``s~^2``, with ``nu`` degrees of freedom for both. ``expected`` is the spread before the launches
    spoke. ``used`` holds the indices of the launches that count, ``residuals`` (shape ``(..., used)``) their deviations
    from their host's centre, ``shown`` the variance that these show by themselves, with ``own_df`` degrees of freedom.
    ``one_host``: no spread between hosts is in it. Arrays have shape ``(...)`` otherwise."""

    center: Array
    spread: Array
    nu: Array
    share: Array
    expected: Array
    residuals: Array
    shown: Array
    own_df: int
    used: tuple[int, ...]
    one_host: bool = True


@dataclass(frozen=True)
class Shift:
    """Fresh launches against a reference: ``drop`` of their mean in logs (positive is worse), ``t`` with ``nu`` and
    ``error`` of the drop, each of shape ``(...)``; ``each`` launch's own drop, shape ``(..., r)``."""

    drop: Array
    t: Array
    nu: Array
    error: Array
    each: Array

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
    fresh side's: a host with ``OWN_LAUNCHES`` of its own is judged by these alone. Otherwise hosts differ by a random
    ``h ~ N(0, s_h^2)``, and the centre is the best linear forecast for ``host``, which leans on that host's own
    launches as far as they go and on the others for the rest (Robinson 1991, Stat. Sci. 6:15). Degrees of freedom are
    Satterthwaite's (1946, Biometrics 2:110) for the two components; on a new host no more than the hosts' own, whose
    spread decides there and may be far larger than expected.
    """
    k = logs.shape[-1]
    if hosts is not None and len(hosts) != k:
        raise ValueError(f"{k} launches but {len(hosts)} hosts")
    named = [*hosts] if hosts is not None and host is not None else [""] * k
    used = tuple(i for i, h in enumerate(named) if h == host)
    if len(used) < OWN_LAUNCHES:
        used = tuple(range(k))
    named = [named[i] for i in used]
    logs = logs[..., used]
    names = sorted(set(named))
    members = np.array([[h == name for h in named] for name in names])
    expected = np.sqrt(np.maximum(prior.s0**2, wander) + np.zeros(logs.shape[:-1]))
    means, shown, spread = _robust(logs, members, prior.d0, expected)
    residuals = logs - means @ members
    df = len(used) - len(names)
    nu = np.full(spread.shape, prior.d0 + df)
    if names in ([""], [host]):
        share = np.full(spread.shape, 1 / len(used))
        return Reference(means[..., 0], spread, nu, share, expected, residuals, shown, df, used)
    counts = members.sum(axis=-1)
    between = _host_variance(means, counts, spread)
    own = names.index(host) if host in names else None
    center, variance, of_hosts = _forecast(means, counts, spread, between, own)
    of_launches = variance - of_hosts + spread**2
    nu_hosts = HOST_WORTH + len(names) - 1
    nu = (of_hosts + of_launches) ** 2 / (of_launches**2 / nu + of_hosts**2 / nu_hosts)
    if own is None:
        nu = np.minimum(nu, nu_hosts)
    share = variance / spread**2
    return Reference(center, spread, nu, share, expected, residuals, shown, df, used, one_host=False)


def _robust(logs: Array, members: npt.NDArray[np.bool_], d0: float, expected: Array) -> tuple[Array, Array, Array]:
    """Centre of each group, shape ``(..., groups)``, variance shown within groups and moderated spread, ``(...)``.

    Huber's location and spread (1964, Ann. Math. Stat. 35:73), iterated together with the moderation (Smyth 2004,
    SAGMB 3(1):3): ``s~^2 = (d0 s0^2 + squares) / (d0 + df)``, where no launch counts as further off than ``REACH``
    times ``s~``. Groups of fewer than ``OWN_LAUNCHES`` cannot tell which launch is the odd one and count in full.

    Raises ``ValueError`` when there is neither prior nor data.
    """
    df = logs.shape[-1] - len(members)
    if d0 + df <= 0:
        raise ValueError("one launch says nothing about the spread between launches: give a prior with d0 > 0")
    reach = np.where(members.sum(axis=-1) >= OWN_LAUNCHES, REACH, np.inf)[np.argmax(members, axis=0)]
    scale = np.where(np.isfinite(reach), _WITHIN_REACH, 1.0)
    center = np.stack([np.median(logs[..., m], axis=-1) for m in members], axis=-1)
    spread, shown = expected, np.zeros(expected.shape)
    for _ in range(_ROUNDS):
        limit = reach * spread[..., None]
        weight = np.minimum(1.0, limit / np.maximum(np.abs(logs - center @ members), LEAST_SPREAD**2))
        center = ((weight * logs) @ members.T) / (weight @ members.T)
        off = np.minimum(np.abs(logs - center @ members), limit)
        squares = np.sum(off**2 / scale, axis=-1)
        shown, before = squares / max(df, 1), spread
        spread = np.maximum(np.sqrt((d0 * expected**2 + squares) / (d0 + df)), LEAST_SPREAD)
        if np.all(np.abs(spread - before) <= 1e-8 * spread):
            break
    return center, shown, spread


def _host_variance(means: Array, counts: Array, spread: Array) -> Array:
    """``s_h^2`` by the analysis of variance of unequal groups, moderated towards the default."""
    k, df = counts.sum(), len(counts) - 1
    grand = np.sum(counts * means, axis=-1, keepdims=True) / k
    among = np.sum(counts * (means - grand) ** 2, axis=-1)
    shown = np.maximum((among - df * spread**2) / (k - np.sum(counts**2) / k), 0.0) if df else np.zeros_like(spread)
    return np.asarray((HOST_WORTH * HOST_SPREAD**2 + df * shown) / (HOST_WORTH + df))


def _forecast(
    means: Array, counts: Array, spread: Array, between: Array, own: int | None
) -> tuple[Array, Array, Array]:
    """Best linear forecast of one host's level, its variance and the part of that which hosts' spread makes.

    ``own`` is that host's index, None for a new host. The variance is homogeneous in both components, so that the
    part of one is its derivative times the component.
    """
    others = [i for i in range(len(counts)) if i != own]
    weight = 1 / (between[..., None] + spread[..., None] ** 2 / counts[others])
    total = np.sum(weight, axis=-1)
    level = np.sum(weight * means[..., others], axis=-1) / total
    variance = between + 1 / total
    of_hosts = between * (1 + np.sum(weight**2, axis=-1) / total**2)
    if own is None:
        return level, variance, of_hosts
    error = spread**2 / counts[own]
    lean = variance / (variance + error)
    return level + lean * (means[..., own] - level), lean * error, (1 - lean) ** 2 * of_hosts


def shift(ref: Reference, fresh: Array, *, pooled: bool) -> Shift:
    """Compare the mean of fresh launches, shape ``(..., r)``, with a reference.

    ``pooled`` lets the fresh launches' own spread into ``s~`` where one host's launches are the reference: a drop does
    not change it, and fresh launches that disagree with each other convince less.
    """
    r = fresh.shape[-1]
    mean = np.mean(fresh, axis=-1)
    spread, nu = ref.spread, ref.nu
    if pooled and ref.one_host:
        own = np.sum((fresh - mean[..., None]) ** 2, axis=-1)
        spread, nu = np.sqrt((ref.nu * ref.spread**2 + own) / (ref.nu + r - 1)), ref.nu + r - 1
    error = spread * np.sqrt(ref.share + 1 / r)
    drop = ref.center - mean
    return Shift(drop, drop / error, nu, error, ref.center[..., None] - fresh)
