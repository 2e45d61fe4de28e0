"""What a tuning session found, as values: gaps between engines, sweeps of knobs, load curves.

Ratios are of launch-level values, ``> 1`` means the larger number, whatever the metric's direction; intervals are
(low, high) at the level named in ``confidence``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmperf.records.encode import build, numbers, pair


@dataclass(frozen=True)
class Gap:
    """Two engines on one test: ``ratio`` = value of ``engine`` / value of ``reference``. ``launches`` counts both.

    The two sides of an A/B are a gap too, B over A. ``note`` says what the numbers do not: why an A/B stopped, or what
    an interval rests on.
    """

    test: str
    metric: str
    unit: str
    higher_is_better: bool
    engine: str
    reference: str
    value: float
    reference_value: float
    ratio: float
    interval: tuple[float, float] | None = None
    launches: tuple[int, int] = (1, 1)
    confidence: float = 0.95
    note: str | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Gap:
        return build(cls, data, interval=pair(data.get("interval")), launches=tuple(data.get("launches", (1, 1))))


@dataclass(frozen=True)
class Effect:
    """One knob moved off the base: ``ratio`` = value with it / value of the base. ``credible`` is the verdict of
    whoever judged it, and may be false although the interval leaves out 1 (a guard tripped). ``failure`` says, whole,
    why the config has no value (``did not start: out of GPU memory``; all numbers are None then). Without a base there
    is a ``value`` and no ratio. ``launch_values``: that of each launch, in the order they ran."""

    knob: str
    setting: str
    value: float | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    credible: bool = False
    launches: int = 0
    launch_values: tuple[float, ...] = ()
    failure: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Sweep:
    """One factor at a time around ``base`` (its settings of the swept knobs), or a grid of them."""

    name: str
    engine: str
    metric: str
    unit: str
    higher_is_better: bool
    base: Mapping[str, str]
    base_value: float | None
    effects: tuple[Effect, ...] = ()
    base_launches: int = 1
    base_launch_values: tuple[float, ...] = ()
    confidence: float = 0.95
    test: str = ""
    note: str | None = None
    """What is to be known about the base's number."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sweep:
        effects = tuple(
            build(Effect, e, interval=pair(e.get("interval")), launch_values=numbers(e.get("launch_values", ())))
            for e in data.get("effects", ())
        )
        return build(cls, data, effects=effects, base_launch_values=numbers(data.get("base_launch_values", ())))


@dataclass(frozen=True)
class CurvePoint:
    """One concurrency: output tok/s over all streams, and of one stream among them."""

    concurrency: int
    output_tok_s: float
    stream_tok_s: float | None = None
    ttft_ms: float | None = None


@dataclass(frozen=True)
class Curve:
    """Throughput against concurrency; ``knee`` is the concurrency after which more streams bring little."""

    test: str
    engine: str
    points: tuple[CurvePoint, ...]
    knee: int | None = None
    max_running_requests: int | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Curve:
        return build(cls, data, points=tuple(build(CurvePoint, p) for p in data["points"]))
