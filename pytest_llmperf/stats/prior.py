"""What is believed about launch-to-launch spread before a series has shown its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .location import Array

#: Spread below which timer resolution, not the engine, is measured.
LEAST_SPREAD = 1e-4
#: Most that a spread may exceed the engine's usual one: beyond, the machine is unsteady, which is to be said and not to
#: be learned.
MOST_USUAL = 3.0


@dataclass(frozen=True)
class Prior:
    """Launch spread expected beforehand: ``s0``, a standard deviation of logs (0.012 is 1.2 %), worth ``d0`` launches.

    ``d0 = 0`` knows nothing. ``source`` says where it comes from, in words for a report.
    """

    d0: float = 4.0
    s0: float = 0.012
    source: str = "default"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.d0) and self.d0 >= 0 and math.isfinite(self.s0) and self.s0 > 0):
            raise ValueError(f"a prior needs d0 >= 0 and s0 > 0, got d0={self.d0!r}, s0={self.s0!r}")


def moderate(squares: Array, df: float, d0: float, s0_squared: float | Array) -> tuple[Array, float]:
    """``s~`` and its degrees of freedom from a sum of squares with ``df`` of its own.

    ``s~^2 = (d0 s0^2 + squares) / (d0 + df)`` (Smyth 2004, SAGMB 3(1):3), ``LEAST_SPREAD`` at least. Raises
    ``ValueError`` when there is neither prior nor data.
    """
    nu = d0 + df
    if nu <= 0:
        raise ValueError("one launch says nothing about the spread between launches: give a prior with d0 > 0")
    return np.maximum(np.sqrt((d0 * s0_squared + squares) / nu), LEAST_SPREAD), nu
