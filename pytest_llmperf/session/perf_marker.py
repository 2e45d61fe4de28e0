"""``@perf`` as a frozen value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import pytest

from pytest_llmperf.engines.declaration import is_number
from pytest_llmperf.errors import ConfigError, nearest
from pytest_llmperf.measure import workloads
from pytest_llmperf.measure.metrics import METRICS, Metric

#: What the marker may say about a workload.
_WORKLOAD = ("precision", "repetitions", "max_repetitions")


@dataclass(frozen=True)
class Perf:
    """``@perf(...)``. ``target`` maps a metric to the value it must reach, in the metric's unit and direction."""

    metrics: tuple[Metric, ...]
    target: tuple[tuple[str, float], ...] = ()
    max_regression: float | None = None
    min_effect: float | None = None
    precision: float | None = None
    repetitions: int | None = None
    max_repetitions: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of its metrics."""
        return tuple(m.name for m in self.metrics)

    def workload(self) -> dict[str, Any]:
        """What the marker says about a workload, as fields of ``measure.metrics.Workload``."""
        said = {n: getattr(self, n) for n in _WORKLOAD}
        return {k: v for k, v in said.items() if v is not None}

    @classmethod
    def from_item(cls, item: pytest.Item, known: Mapping[str, Metric] = METRICS) -> Perf | None:
        """The ``perf`` markers of ``item`` merged, inner over outer; None without one. Raises ``ConfigError``."""
        merged: dict[str, Any] = {}
        problems: list[str] = []
        marks = list(item.iter_markers("perf"))
        for mark in reversed(marks):
            if mark.args:
                problems.append(f"@perf takes keywords only, like @perf(target=82.5), not {mark.args}")
            if "metric" in mark.kwargs:
                merged.pop("target", None)  # it was meant for the metric that stood beside it
            merged.update(mark.kwargs)
        keys = {"metric"} | {f.name for f in fields(cls)} - {"metrics"}
        problems += [f"@perf has no {key!r}{nearest(key, keys)}" for key in merged if key not in keys]
        target = merged.pop("target", None)
        targets = dict(target) if isinstance(target, Mapping) else {}
        metric = merged.pop("metric", tuple(targets) or "decode_tok_s")
        names = tuple(metric) if isinstance(metric, (tuple, list)) else (metric,)
        if target is not None and not isinstance(target, Mapping):
            targets = {names[0]: target} if names else {}
        problems += [*_metric_problems(names, targets, known), *_number_problems(merged)]
        if problems:
            raise ConfigError("\n".join(problems))
        reached = tuple(sorted((k, float(v)) for k, v in targets.items()))
        return cls(tuple(known[n] for n in names), reached, **merged) if marks else None


def _metric_problems(names: tuple[Any, ...], targets: Mapping[Any, Any], known: Mapping[str, Metric]) -> Iterator[str]:
    if not names or len(set(map(str, names))) < len(names):
        yield f"@perf(metric={names!r}) must name at least one metric, each once"
    for name in dict.fromkeys((*names, *targets)):
        if name not in known:
            yield f"@perf names no known metric: {name!r}{nearest(str(name), known)}"
    for name, value in targets.items():
        if name not in names:
            yield f"@perf(target=...) is for {name!r}, which metric={names!r} does not gate"
        if not is_number(value) or value <= 0:
            yield f"@perf(target={value!r}) must be a number above 0, in the metric's unit"


def _number_problems(given: Mapping[str, Any]) -> Iterator[str]:
    for name in ("max_regression", "min_effect"):
        value = given.get(name)
        if value is not None and not (is_number(value) and 0 <= value < 1 and (value or name != "max_regression")):
            yield f"@perf({name}={value!r}) must be a fraction below 1 (0.05 is 5 %)"
    said = {name: given[name] for name in _WORKLOAD if given.get(name) is not None}
    for problem in workloads.problems(said):
        name, _, wrong = problem.partition(" ")
        yield f"@perf({name}) {wrong}"
