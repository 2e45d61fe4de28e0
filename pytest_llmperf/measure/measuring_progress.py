"""How far a measurement has come, for whoever waits for it. Said between requests, never while one is timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class MeasuringProgress:
    """Request ``number`` (from 1) of ``stage`` is about to be sent, of ``most`` that there may be.

    ``stage`` is ``warm-up``, ``repetition`` or, for a load, ``window``. ``tok_s``: the median of the stage so far;
    under a load that of all streams together. ``left_s``: seconds that the stage may still take. None: not known yet.
    """

    stage: str
    number: int
    most: int
    tok_s: float | None = None
    left_s: float | None = None


Say = Callable[[MeasuringProgress], None]


def silent(progress: MeasuringProgress) -> None:
    """Nobody waits."""
