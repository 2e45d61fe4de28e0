"""The history of one test's metric, as values: accepted launches over time, epochs, change points."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HistoryPoint:
    """One stored launch. ``spread`` is the (lowest, highest) repetition; ``version`` the engine's."""

    id: str
    recorded: str
    value: float
    epoch: int = 0
    spread: tuple[float, float] | None = None
    host: str = ""
    version: str = ""


@dataclass(frozen=True)
class ChangePoint:
    """The level moved at ``points[index]``, by the fraction ``change`` of the level before."""

    index: int
    change: float
    reason: str = ""


@dataclass(frozen=True)
class History:
    """The launches of one series in the order they were recorded; ``band`` and ``center`` are the current epoch's, for
    a launch on ``host``."""

    test: str
    engine: str
    metric: str
    unit: str
    higher_is_better: bool
    points: tuple[HistoryPoint, ...]
    path: str = ""
    band: tuple[float, float] | None = None
    center: float | None = None
    host: str = ""
    changes: tuple[ChangePoint, ...] = ()
