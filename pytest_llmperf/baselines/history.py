"""The trend of a series: its launch values over time, where epochs began and where the level moved unannounced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_llmperf.baselines import store
from pytest_llmperf.baselines.series import Series
from pytest_llmperf.baselines.stored_gate import gate_of
from pytest_llmperf.measure.metrics import METRICS, Metric
from pytest_llmperf.records.histories import ChangePoint, History, HistoryPoint
from pytest_llmperf.stats import Prior, location, segments

#: Why a level differs that no launch of the hosts before shares.
OTHER_HOST = "another host"


def of(
    series: Series, metric: Metric, folder: Path, prior: Prior | None = None, *, min_effect: float = 0.01
) -> History:
    """The history of ``metric``: every stored launch that has it, epoch by epoch, in order of time.

    Its band is the one that the gate would hold a launch to on the host of the newest stored one. Raises ``ValueError``
    for a ``min_effect`` that is no fraction.
    """
    name = metric.name
    epochs = [[x for x in e.launches if name in x.metrics] for e in series.epochs]
    points = [
        HistoryPoint(
            x.id,
            x.recorded,
            location(x.metrics[name]),
            number,
            (min(x.metrics[name]), max(x.metrics[name])),
            x.host,
            x.provenance.get("engine version", ""),
        )
        for number, launches in enumerate(epochs)
        for x in launches
    ]
    current = series.launches(name)
    host = current[-1].host if current else ""
    gate = gate_of(current, metric, host, prior=prior, min_effect=min_effect) if current else None
    path = store.path_of(folder, series.test, series.engine, series.fingerprint)
    return History(
        test=series.test,
        engine=series.engine,
        metric=name,
        unit=metric.unit,
        higher_is_better=metric.higher_is_better,
        points=tuple(points),
        path=path.relative_to(folder).as_posix(),
        band=gate.band if gate else None,
        center=gate.center if gate else None,
        host=host,
        changes=tuple(_changes(series, points, prior or Prior())),
    )


def names(series: Series) -> set[str]:
    """Names of the metrics that any stored launch holds."""
    return {m for e in series.epochs for x in e.launches for m in x.metrics}


def metrics(series: Series, known: Mapping[str, Metric] = METRICS) -> list[Metric]:
    """Metrics that any stored launch holds, in the order of ``known``; one that is not is taken for a speed."""
    held = names(series)
    others = (Metric(m, "", True, "") for m in sorted(held - known.keys()))
    return [*(metric for name, metric in known.items() if name in held), *others]


def _changes(series: Series, points: Sequence[HistoryPoint], prior: Prior) -> Iterator[ChangePoint]:
    start = 0
    before: float | None = None
    for number, epoch in enumerate(series.epochs):
        held = [p for p in points if p.epoch == number]
        seen: set[str] = set()
        for segment in segments([[p.value] for p in held], prior=prior) if held else ():
            hosts = {p.host for p in held[segment.start : segment.stop]}
            if before is not None:
                reason = epoch.reason if segment.start == 0 else "" if hosts & seen else OTHER_HOST
                yield ChangePoint(start + segment.start, segment.value / before - 1, reason)
            before, seen = segment.value, hosts
        start += len(held)
