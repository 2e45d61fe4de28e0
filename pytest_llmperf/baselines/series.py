"""What is kept of one test under one fingerprint: epochs of launches, and how two versions of it merge.

A *launch* holds every repetition of every metric. An *epoch* holds launches that agree; a new one starts when a change
of speed was accepted. A *series* is all epochs of one test under one fingerprint, oldest first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from pytest_llmperf.baselines.fingerprint import Fingerprint

#: Launches kept per epoch: the first ``KEEP_FIRST`` (slow drift is measured against them) and the newest others.
KEEP_LAUNCHES, KEEP_FIRST = 30, 5
#: Epochs kept per series; the oldest go first.
KEEP_EPOCHS = 8
#: Significant digits of a stored value: far finer than any launch repeats, short enough for a readable diff.
DIGITS = 6
_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def rounded(value: float) -> float:
    """``value`` to ``DIGITS`` significant digits; applying it again changes nothing."""
    return float(f"{value:.{DIGITS}g}")


def utc(seconds: float) -> str:
    """Seconds since 1970 as stored: ``2026-05-01T12:00:00Z``."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime(_FORMAT)


def seconds(recorded: str) -> float:
    """Inverse of ``utc``. Raises ``ValueError`` for another spelling."""
    return datetime.strptime(recorded, _FORMAT).replace(tzinfo=timezone.utc).timestamp()


@dataclass(frozen=True)
class StoredLaunch:
    """One life of one server: ``metrics`` maps a name to one value per repetition, in the metric's unit.

    ``recorded`` is UTC as ``utc`` writes it, ``host`` a hashed host identity, ``cache`` the compile cache's state
    (``cold``, ``warm``) where known. Values are kept to ``DIGITS`` significant digits.
    """

    id: str
    recorded: str
    host: str
    cache: str | None
    metrics: Mapping[str, tuple[float, ...]]
    provenance: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kept = {k: tuple(rounded(v) for v in values) for k, values in sorted(self.metrics.items())}
        object.__setattr__(self, "metrics", kept)
        object.__setattr__(self, "provenance", dict(sorted(self.provenance.items())))

    @property
    def fault(self) -> str | None:
        """Why it must be neither judged nor stored: a value that is not a number above 0, or none at all."""
        for name, values in self.metrics.items():
            bad = [f"{v:g}" for v in values if not (math.isfinite(v) and v > 0)]
            if bad or not values:
                what = bad[0] if bad else "no value at all"
                return f"launch {self.id}: {name} holds {what}; every value must be a number above 0"
        return None if self.metrics else f"launch {self.id} holds no metric"


@dataclass(frozen=True)
class Epoch:
    """Launches that agree, oldest first. ``reason`` says why the epoch began."""

    reason: str
    launches: tuple[StoredLaunch, ...]

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(x.id for x in self.launches)

    def plus(self, launches: Iterable[StoredLaunch]) -> Epoch:
        """With ``launches`` added: each id once (the stored one wins), in order of time, thinned to ``KEEP_LAUNCHES``.

        The first ``KEEP_FIRST`` stay for good; of the rest the newest stay.
        """
        by_id = {x.id: x for x in (*launches, *self.launches)}
        ordered = sorted(by_id.values(), key=lambda x: (x.recorded, x.id))
        if len(ordered) > KEEP_LAUNCHES:
            ordered = ordered[:KEEP_FIRST] + ordered[KEEP_FIRST - KEEP_LAUNCHES :]
        return replace(self, launches=tuple(ordered))


@dataclass(frozen=True)
class Series:
    """All that is stored of ``test`` on ``engine`` under ``fingerprint``. There is at least one epoch."""

    test: str
    engine: str
    fingerprint: Fingerprint
    epochs: tuple[Epoch, ...]

    @property
    def current(self) -> Epoch:
        return self.epochs[-1]

    def launches(self, metric: str) -> list[StoredLaunch]:
        """The current epoch's launches that hold ``metric``."""
        return [x for x in self.current.launches if metric in x.metrics]

    def starting(self, epoch: Epoch) -> Series:
        """With a new current epoch; at most ``KEEP_EPOCHS`` stay."""
        return replace(self, epochs=(*self.epochs, epoch)[-KEEP_EPOCHS:])

    def extending(self, ids: frozenset[str], launches: Iterable[StoredLaunch]) -> Series:
        """With ``launches`` in the newest epoch that shares one of ``ids``, else in the current one."""
        at = max((i for i, e in enumerate(self.epochs) if e.ids & ids), default=len(self.epochs) - 1)
        grown = self.epochs[at].plus(launches)
        return replace(self, epochs=(*self.epochs[:at], grown, *self.epochs[at + 1 :]))


def merged(mine: Series, theirs: Series) -> Series:
    """Both versions of one series in one, the same whichever comes first. Every launch stays, in one epoch.

    Epochs that share launches are one epoch, and so are the first recordings of two sides without a common past. A
    launch that the sides put into different epochs stays in the later one.
    """
    pairs = _paired(mine.epochs, theirs.epochs)
    paired = [e for pair in pairs for e in pair]
    joined = [first.plus(second.launches) for first, second in (sorted(pair, key=_start) for pair in pairs)]
    alone = [e for e in (*mine.epochs, *theirs.epochs) if not any(e is p for p in paired)]
    seen: frozenset[str] = frozenset()
    kept: list[Epoch] = []
    for epoch in sorted([*joined, *alone], key=_start, reverse=True):
        own = tuple(x for x in epoch.launches if x.id not in seen)
        if own:
            kept.append(replace(epoch, launches=own))
        seen |= epoch.ids
    return replace(mine, epochs=tuple(kept[:KEEP_EPOCHS][::-1]))


def _start(epoch: Epoch) -> tuple[str, str, str]:
    first = epoch.launches[0]
    return first.recorded, first.id, epoch.reason


def _paired(ours: tuple[Epoch, ...], theirs: tuple[Epoch, ...]) -> list[tuple[Epoch, Epoch]]:
    """Epochs of two sides that are one, each in one pair at most: same first launch, else most launches in common."""
    if len(ours) == len(theirs) == 1:
        return [(ours[0], theirs[0])]
    candidates = sorted(
        ((a, b) for a in ours for b in theirs if a.ids & b.ids),
        key=lambda p: (_start(p[0]) != _start(p[1]), -len(p[0].ids & p[1].ids), sorted(map(_start, p))),
    )
    found: list[tuple[Epoch, Epoch]] = []
    for a, b in candidates:
        if not any(a is x or b is y for x, y in found):
            found.append((a, b))
    return found
