"""The value of one launch from its repetitions, and how well those repetitions pin it down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
#: One launch: its repetitions, or its value alone.
Launch: TypeAlias = "Sequence[float] | float"

#: Fewer repetitions than this say too little about rho to scale its bias away; only its shift is taken out.
SHORT = 8


def log_location(logs: Array) -> Array:
    """Hodges-Lehmann estimate over the last axis: the median of all pairwise means, each value paired with itself too.

    Shape ``(..., n)`` to ``(...)``. One wild value of ten hardly moves it; 5 % efficiency is its price on normal data
    (Hodges & Lehmann 1963, Ann. Math. Stat. 34:598).
    """
    if logs.shape[-1] == 1:
        return logs[..., 0]
    i, j = np.triu_indices(logs.shape[-1])
    return np.asarray(np.median((logs[..., i] + logs[..., j]) / 2, axis=-1), dtype=np.float64)


def location(values: Sequence[float]) -> float:
    """A launch's value: the Hodges-Lehmann estimate of the logs, in the unit of ``values``.

    Raises ``ValueError`` when there is no value, or one that is not a positive finite number.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0 or not np.all(np.isfinite(data)) or np.any(data <= 0):
        raise ValueError(f"a launch needs positive finite values, got {list(values)!r}")
    return math.exp(float(log_location(np.log(data.ravel()))))


def squared_error(logs: Array) -> Array:
    """Squared standard error of a launch's location as its own repetitions show it, shape ``(..., n)`` to ``(...)``.

    ``sd^2 / n`` holds for independent repetitions only; slow stretches inside a launch (clocks, a busy host) make
    neighbours alike. The factor ``(1 + rho) / (1 - rho)`` corrects for that as for an AR(1) series, ``rho`` being the
    lag-1 autocorrelation freed of its bias in short series (Kendall 1954, Biometrika 41:403) and kept within [0, 0.8].
    Zero for fewer than three repetitions, which cannot tell.
    """
    n = logs.shape[-1]
    if n < 3:
        return np.zeros(logs.shape[:-1])
    away = logs - np.mean(logs, axis=-1, keepdims=True)
    squares = np.sum(away**2, axis=-1)
    lagged = np.sum(away[..., 1:] * away[..., :-1], axis=-1)
    rho = np.divide(lagged, squares, out=np.zeros_like(squares), where=squares > 0)
    rho = np.clip((n * rho + 1) / (n - 4 if n >= SHORT else n), 0.0, 0.8)
    return np.asarray(squares / (n - 1) / n * (1 + rho) / (1 - rho), dtype=np.float64)


def launch_logs(launch: Launch) -> Array | None:
    """Logs of one launch's repetitions; None when there is none or one is not positive and finite."""
    data = np.atleast_1d(np.asarray(launch, dtype=np.float64))
    if data.ndim != 1 or data.size == 0 or not np.all(np.isfinite(data)) or np.any(data <= 0):
        return None
    return np.log(data)


def stack(launches: Launch | Sequence[Launch], *, flat_is_one: bool = True) -> Array | None:
    """Log values of several launches, shape ``(r,)``; None when any launch is unusable or there is none.

    A flat sequence is one launch's repetitions, or with ``flat_is_one=False`` one value per launch.
    """
    items: list[Launch] = [launches] if isinstance(launches, int | float) else list(launches)
    numbers = [float(x) for x in items if isinstance(x, int | float | np.number)]
    if flat_is_one and len(numbers) == len(items):
        items = [numbers]
    logs = [launch_logs(x) for x in items]
    sound = [x for x in logs if x is not None]
    if not sound or len(sound) < len(logs):
        return None
    return np.array([float(log_location(x)) for x in sound])


def wander(launches: Launch | Sequence[Launch]) -> float:
    """Mean squared standard error of usable launches' values as their own repetitions show it, in logs squared.

    No series of launches can be steadier than that, whatever a prior says. Zero where single values are given.
    """
    items = [launches] if isinstance(launches, int | float) else list(launches)
    if all(isinstance(x, int | float | np.number) for x in items):
        return 0.0
    logs = [launch_logs(x) for x in items]
    return float(np.mean([float(squared_error(x)) for x in logs if x is not None] or [0.0]))
