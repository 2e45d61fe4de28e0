"""The trend of a series: its launch values over time, where epochs began and where the level moved unannounced.

Change points come from optimal partitioning (Jackson et al. 2005, IEEE Sig. Proc. Lett. 12:105): the split of an
epoch's logs into stretches that minimises squared error plus a penalty per stretch. An epoch has thirty launches at
most, so that the plain quadratic search is exact and instant; ``ruptures`` would be one more compiled dependency.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from pytest_llmperf.baselines import store
from pytest_llmperf.baselines.series import Series
from pytest_llmperf.measure.metrics import METRICS, Metric
from pytest_llmperf.report.history import ChangePoint, History, HistoryPoint
from pytest_llmperf.stats import Gate, Prior, location

#: Penalty per change point in units of variance times ln n: a steady epoch of ten launches shows one in 3 % of cases.
_PENALTY = 4.0
#: Launches a stretch has at least: one alone is an outlier, not a level.
_LEAST = 2


def of(series: Series, metric: str, folder: Path, prior: Prior | None = None) -> History:
    """The history of ``metric``: every stored launch that has it, epoch by epoch, in order of time."""
    known = METRICS.get(metric, Metric(metric, "", True, ""))
    epochs = [[x for x in e.launches if metric in x.metrics] for e in series.epochs]
    points = [
        HistoryPoint(
            x.id,
            x.recorded,
            location(x.metrics[metric]),
            number,
            (min(x.metrics[metric]), max(x.metrics[metric])),
            x.host,
            x.provenance.get("engine version", ""),
        )
        for number, launches in enumerate(epochs)
        for x in launches
    ]
    current = series.launches(metric)
    gate = Gate([x.metrics[metric] for x in current], known.higher_is_better, prior=prior) if current else None
    path = store.path_of(folder, series.test, series.engine, series.fingerprint)
    return History(
        test=series.test,
        engine=series.engine,
        metric=metric,
        unit=known.unit,
        higher_is_better=known.higher_is_better,
        points=tuple(points),
        path=path.relative_to(folder).as_posix(),
        band=gate.band if gate else None,
        center=gate.center if gate else None,
        changes=tuple(_changes(series, points, prior or Prior())),
    )


def metrics(series: Series) -> list[str]:
    """Metrics that any stored launch holds, in the order of ``METRICS``."""
    held = {m for e in series.epochs for x in e.launches for m in x.metrics}
    return [*(m for m in METRICS if m in held), *sorted(held - METRICS.keys())]


def change_points(values: Sequence[float], prior: Prior | None = None) -> list[int]:
    """Indices at which the level of ``values`` (positive, in order of time) moves. Empty for a steady sequence."""
    logs = np.log(np.asarray(values, dtype=np.float64))
    n = len(logs)
    if n < 2 * _LEAST:
        return []
    prior = prior or Prior()
    # The variance from successive differences: a moved level adds one large difference, not one per launch.
    noise = (prior.d0 * prior.s0**2 + float(np.sum(np.diff(logs) ** 2)) / 2) / (prior.d0 + n - 1)
    penalty = _PENALTY * noise * math.log(n)
    sums, squares = (np.concatenate([[0.0], np.cumsum(x)]) for x in (logs, logs**2))
    best, came_from = [0.0] + [math.inf] * n, [0] * (n + 1)
    for end in range(_LEAST, n + 1):
        for start in (0, *range(_LEAST, end - _LEAST + 1)):
            spread = squares[end] - squares[start] - (sums[end] - sums[start]) ** 2 / (end - start)
            cost = best[start] + float(spread) + (penalty if start else 0.0)
            if cost < best[end]:
                best[end], came_from[end] = cost, start
    found = []
    end = came_from[n]
    while end:
        found.append(end)
        end = came_from[end]
    return found[::-1]


def _changes(series: Series, points: Sequence[HistoryPoint], prior: Prior) -> Iterator[ChangePoint]:
    start = 0
    before: list[float] = []
    for number, epoch in enumerate(series.epochs):
        values = [p.value for p in points if p.epoch == number]
        cuts = [0, *change_points(values, prior), len(values)]
        for low, high in pairwise(cuts):
            level = values[low:high]
            if before and level:
                yield ChangePoint(start + low, _mean(level) / _mean(before) - 1, epoch.reason if low == 0 else "")
            before = level or before
        start += len(values)


def _mean(values: Sequence[float]) -> float:
    return math.exp(float(np.mean(np.log(values))))
