"""What ``stream`` and ``load`` return: metrics as attributes, the requests behind them, the evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pytest_llmperf.errors import MeasurementError
from pytest_llmperf.measure.client.connection import Connection as Connection
from pytest_llmperf.measure.client.request_outcome import RequestOutcome
from pytest_llmperf.measure.metrics import Measurement, Metric, MetricValue
from pytest_llmperf.measure.request_record import RequestRecord
from pytest_llmperf.stats.location import location


def record(outcome: RequestOutcome) -> RequestRecord:
    """The public face of an outcome."""
    answer, times = outcome.answer, outcome.timing
    p50, p99 = times.itl_ms(50, 99) if times else (None, None)
    return RequestRecord(
        id=outcome.call.id,
        server_id=answer.id,
        sent_s=outcome.sent_ns / 1e9,
        prompt_tokens=answer.prompt_tokens,
        output_tokens=answer.completion_tokens,
        cached_tokens=answer.cached_tokens,
        chunks=len(answer.at_ns),
        arrivals=len(times.at) if times else 0,
        ttft_ms=times.ttft_ms if times else None,
        decode_tok_s=times.decode_tok_s if times else None,
        itl_p50_ms=p50,
        itl_p99_ms=p99,
        e2e_ms=times.e2e_ms if times else None,
        finish_reason=answer.finish_reason,
        problems=outcome.problems,
    )


class Run:
    """One measurement. ``run.decode_tok_s`` and every other measured metric is a ``MetricValue`` (a float).

    Reading a metric of an invalid measurement raises ``MeasurementError`` with the reasons; a name that was not
    measured raises ``AttributeError`` with those that were.
    """

    def __init__(self, measurement: Measurement, requests: Sequence[RequestRecord] = ()) -> None:
        self.measurement = measurement
        self.requests = tuple(requests)

    def __getattr__(self, name: str) -> MetricValue:
        if name.startswith("_") or name in ("measurement", "requests"):
            raise AttributeError(name)
        measurement = self.measurement
        if name in measurement.metrics and measurement.invalid:
            raise MeasurementError(
                f"the measurement is invalid, so it has no {name}:\n  " + "\n  ".join(measurement.invalid)
            )
        if name not in measurement.values:
            there = ", ".join(self.metrics) or "none"
            raise AttributeError(f"this run has no {name!r}; its metrics are: {there}")
        values = measurement.values[name]
        return MetricValue(launch_value(values), measurement.metrics[name], values, measurement)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics this run has."""
        return tuple(name for name in self.measurement.metrics if name in self.measurement.values)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.metrics]

    def __repr__(self) -> str:
        if self.measurement.invalid:
            return f"<Run invalid: {self.measurement.invalid[0]}>"
        return "<Run " + ", ".join(repr(getattr(self, name)) for name in self.metrics[:3]) + ">"


def extended(run: Run, metrics: Mapping[str, Metric]) -> Run:
    """``run`` with those of ``metrics`` that are computed from its requests. Raises ``MeasurementError`` for what is no
    value of a metric."""
    measurement = run.measurement
    values = dict(measurement.values)
    for metric in metrics.values():
        if metric.compute is not None and not measurement.invalid:
            found = tuple(map(float, metric.compute(run.requests)))
            wrong = [v for v in found if not (math.isfinite(v) and v >= 0)]
            if wrong:
                raise MeasurementError(f"metric {metric.name}: its compute() gave {wrong[0]}, no number from 0 up")
            values |= {metric.name: found} if found else {}
    return Run(replace(measurement, values=values, metrics=metrics), run.requests)


def launch_value(values: Sequence[float]) -> float:
    """The Hodges-Lehmann estimate of the logs; the median where a value is zero (an acceptance rate can be)."""
    if all(v > 0 and math.isfinite(v) for v in values):
        return location(values)
    return float(np.median(values))
