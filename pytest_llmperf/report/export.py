"""The session in the formats of trend services. Only measured values go out: a result without one is left out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from pytest_llmperf.records.results import Result, SessionRecord
from pytest_llmperf.records.text import clean, interval, percent


def github_action_benchmark(session: SessionRecord) -> dict[str, list[dict[str, Any]]]:
    """Entries for benchmark-action/github-action-benchmark by the ``tool`` that must read them: it knows one direction
    a file, so ``customBiggerIsBetter`` and ``customSmallerIsBetter`` want a step each (an empty list: none needed)."""
    out: dict[str, list[dict[str, Any]]] = {"customBiggerIsBetter": [], "customSmallerIsBetter": []}
    for result, value in _measured(session):
        low, high = _spread(result, value)
        extra = [f"verdict: {clean(result.verdict)}", f"band: {interval(result.band)}", f"MDE: {percent(result.mde)}"]
        out["customBiggerIsBetter" if result.higher_is_better else "customSmallerIsBetter"].append(
            {
                "name": name(result),
                "unit": clean(result.unit),
                "value": value,
                "range": f"{low!r} .. {high!r}",
                "extra": "\n".join(extra),
            }
        )
    return out


def bencher(session: SessionRecord) -> dict[str, dict[str, dict[str, float]]]:
    """Bencher Metric Format: benchmark -> measure -> value, with the lowest and highest repetition as its limits.
    Measures are named after the metric; a benchmark is the node id and the engine (Bencher takes 1024 characters)."""
    out: dict[str, dict[str, dict[str, float]]] = {}
    for result, value in _measured(session):
        low, high = _spread(result, value)
        measures = out.setdefault(f"{clean(result.nodeid)} ({clean(result.engine)})"[-1024:], {})
        measures[clean(result.metric)] = {"value": value, "lower_value": low, "upper_value": high}
    return out


def name(result: Result) -> str:
    """A result's name in a trend: stable over sessions, distinct within one."""
    return f"{clean(result.nodeid)} ({clean(result.engine)}) {clean(result.metric)}"


def _measured(session: SessionRecord) -> Iterator[tuple[Result, float]]:
    for result in session.results:
        if result.value is not None and math.isfinite(result.value) and result.verdict not in ("invalid", "error"):
            yield result, float(result.value)


def _spread(result: Result, value: float) -> tuple[float, float]:
    """Lowest and highest repetition over the launches that decided; always around the value."""
    seen = [v for x in result.launches for v in x.values if math.isfinite(v)]
    return min([value, *seen]), max([value, *seen])
