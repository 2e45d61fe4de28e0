"""What ``stream`` and ``load`` return: metrics as attributes, the requests behind them, the evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_llmperf.errors import MeasurementError
from pytest_llmperf.measure.client.connection import Connection as Connection
from pytest_llmperf.measure.client.request_outcome import RequestOutcome
from pytest_llmperf.measure.metrics import METRICS, Measurement, MetricValue
from pytest_llmperf.stats.location import location


@dataclass(frozen=True)
class RequestRecord:
    """One request as it went, valid or not. ``id`` was sent as X-Request-Id, ``server_id`` is what the server called
    it. ``sent_s`` is on the monotonic clock, the other times are in ms after it; None where there is none. ``arrivals``
    are the moments at which chunks came: fewer than chunks when several came in one segment."""

    id: str
    server_id: str | None
    sent_s: float
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    chunks: int
    arrivals: int
    ttft_ms: float | None
    decode_tok_s: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None
    e2e_ms: float | None
    finish_reason: str | None
    problems: tuple[str, ...] = ()


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
        if name in METRICS and measurement.invalid:
            raise MeasurementError(
                f"the measurement is invalid, so it has no {name}:\n  " + "\n  ".join(measurement.invalid)
            )
        if name not in measurement.values:
            there = ", ".join(self.metrics) or "none"
            raise AttributeError(f"this run has no {name!r}; its metrics are: {there}")
        values = measurement.values[name]
        return MetricValue(launch_value(values), METRICS[name], values, measurement)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics this run has."""
        return tuple(name for name in METRICS if name in self.measurement.values)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.metrics]

    def __repr__(self) -> str:
        if self.measurement.invalid:
            return f"<Run invalid: {self.measurement.invalid[0]}>"
        return "<Run " + ", ".join(repr(getattr(self, name)) for name in self.metrics[:3]) + ">"


def launch_value(values: Sequence[float]) -> float:
    """The Hodges-Lehmann estimate of the logs; the median where a value is zero (an acceptance rate can be)."""
    if all(v > 0 and math.isfinite(v) for v in values):
        return location(values)
    return float(np.median(values))
