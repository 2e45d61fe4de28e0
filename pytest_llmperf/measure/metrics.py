"""Metrics and the values that carry them: what was measured, on which launch, with which evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_llmperf.measure.request_record import RequestRecord
from pytest_llmperf.measure.workloads import Workload

if TYPE_CHECKING:
    from pytest_llmperf.measure.latencies import Latencies

#: Version of the metric definitions (part of every fingerprint): raise it when a definition changes.
DEFINITIONS = 1


@dataclass(frozen=True)
class Metric:
    """One quantity: ``higher_is_better`` gives its direction; ``what`` is its definition in a sentence.

    ``launch_spread``: how much launches of one config differ in it at least (standard deviation of logs), where that
    is more than the engine's own ``launch_spread``. ``compute``, of a plugin's metric, gives its values in ``unit``
    from the requests of a measurement in the order in which they were sent: one for each that is a repetition, one for
    all of a load, none where they do not tell it.
    """

    name: str
    unit: str
    higher_is_better: bool
    what: str
    launch_spread: float = 0.0
    compute: Callable[[Sequence[RequestRecord]], Sequence[float]] | None = None


#: Ours, by name.
METRICS: Mapping[str, Metric] = {
    m.name: m
    for m in (
        Metric("decode_tok_s", "tok/s", True, "tokens after the first chunk / time from first to last chunk"),
        Metric("ttft_ms", "ms", False, "first chunk with content - just before the request is sent", 0.12),
        Metric("tpot_ms", "ms", False, "1000 / decode_tok_s"),
        Metric("itl_p50_ms", "ms", False, "median per-token gap; a chunk of n tokens spreads its gap over n"),
        Metric("itl_p99_ms", "ms", False, "99th percentile of the per-token gap", 0.05),
        Metric("e2e_ms", "ms", False, "last chunk with content - just before the request is sent"),
        Metric("output_tok_s", "tok/s", True, "tokens completed in the steady window / its length, all streams"),
        Metric("stream_tok_s", "tok/s", True, "decode tok/s of one stream among several, in the steady window"),
        Metric("acceptance_length", "tokens/step", True, "tokens per verify step (speculative decoding)"),
        Metric("acceptance_rate", "ratio", True, "accepted draft tokens / drafted tokens"),
        Metric("steps_s", "steps/s", True, "verify steps per second: decode tok/s / acceptance length"),
    )
}


#: Guards on what the engine does to itself. They explain a loss; the others, whose cause lies outside the server, can
#: make a verdict inconclusive.
OF_THE_ENGINE = frozenset({"captured graphs", "drift", "preemptions", "queueing"})
#: Every guard by its name.
GUARDS = OF_THE_ENGINE | {
    "client cpu", "client delay", "gpu clock", "gpu clock swing", "gpu ecc", "gpu foreign processes", "gpu power limit",
    "gpu slowdown", "gpu temperature", "host load", "one server", "other traffic", "server starved",
}  # fmt: skip


@dataclass(frozen=True)
class Guard:
    """One check that ran beside the measurement; ``evidence`` says why it ``tripped``. ``launch`` is the id of the
    launch it ran on, once several are judged together. ``ignored``: it would have tripped, had the user not ignored it.
    """

    name: str
    tripped: bool
    evidence: str
    advice: str = ""
    value: float | None = None
    limit: float | None = None
    launch: str = ""
    ignored: bool = False

    @property
    def spoils(self) -> bool:
        """Something outside the server disturbed the measurement."""
        return self.tripped and self.name not in OF_THE_ENGINE


@dataclass(frozen=True)
class Warmup:
    """How the server was brought to a steady state before anything counted."""

    requests: int
    seconds: float
    steady: bool
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Measurement:
    """The repetitions of one workload on one launch.

    ``values`` maps a metric's name to one value per repetition (per steady window for a load). ``invalid`` holds the
    reasons why it must not be judged or stored, empty when it is sound. ``notes`` are things worth saying that change
    nothing (``n_1 estimated``).
    """

    launch_id: str
    workload: Workload
    values: Mapping[str, tuple[float, ...]]
    warmup: Warmup | None = None
    guards: tuple[Guard, ...] = ()
    invalid: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """JSON-ready: chunks per token, delay p99, client CPU, cache hits, counters before and after, ..."""
    metrics: Mapping[str, Metric] = field(default_factory=lambda: METRICS)
    """What may be in ``values``, ours and plugins'."""
    latencies: Latencies | None = None


class MetricValue(float):
    """A launch value of one metric: a float for arithmetic and comparison, with its provenance attached.

    The float is the Hodges-Lehmann estimate over repetitions (METHOD.md, Model). ``values`` has one entry per
    repetition, in ``metric.unit``.
    """

    metric: Metric
    values: tuple[float, ...]
    measurement: Measurement

    def __new__(cls, value: float, metric: Metric, values: tuple[float, ...], measurement: Measurement) -> MetricValue:
        self = super().__new__(cls, value)
        self.metric, self.values, self.measurement = metric, values, measurement
        return self

    def __repr__(self) -> str:
        return f"{float(self):.4g} {self.metric.unit} ({self.metric.name}, {len(self.values)} repetitions)"
