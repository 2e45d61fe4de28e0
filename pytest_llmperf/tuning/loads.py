"""Load curves out of the loads that tests measured: several concurrencies of one test on one server make a curve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_llmperf.measure.metrics import Measurement
from pytest_llmperf.records.encode import build
from pytest_llmperf.records.gaps_and_sweeps import Curve, CurvePoint
from pytest_llmperf.stats import location
from pytest_llmperf.tuning.ratios import curve

#: What a sweep over concurrency varies; everything else must be the same along a curve.
_VARIED = frozenset({"concurrency", "requests", "seconds"})


@dataclass(frozen=True)
class Load:
    """One closed-loop load of one test. ``server`` is the config's key, ``max_running_requests`` what its engine
    resolved to. ``workload`` leaves out what varies along a curve."""

    test: str
    engine: str
    server: str
    workload: Mapping[str, Any]
    point: CurvePoint
    max_running_requests: int | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Load:
        return build(cls, data, point=build(CurvePoint, data["point"]))


def load_of(
    test: str, engine: str, server: str, measurement: Measurement, max_running_requests: int | None
) -> Load | None:
    """None for what is no point of a curve: one stream, arrivals at a rate, an invalid measurement."""
    work, values = measurement.workload, measurement.values
    if measurement.invalid or work.rate is not None or "output_tok_s" not in values:
        return None
    point = CurvePoint(
        work.concurrency,
        location(values["output_tok_s"]),
        *(location(values[name]) if name in values else None for name in ("stream_tok_s", "ttft_ms")),
    )
    same = {k: v for k, v in work.identity().items() if k not in _VARIED}
    return Load(test, engine, server, same, point, max_running_requests)


def curves(loads: Iterable[Load]) -> list[Curve]:
    """One curve for each test function, server and kind of request that saw two concurrencies or more."""
    found: dict[tuple[str, str, str], list[Load]] = {}
    for load in loads:
        found.setdefault((_function(load.test), load.server, repr(sorted(load.workload.items()))), []).append(load)
    return [
        curve(_name([x.test for x in group]), group[0].engine, [x.point for x in group], group[-1].max_running_requests)
        for group in found.values()
        if len({x.point.concurrency for x in group}) > 1
    ]


def _function(test: str) -> str:
    return test.partition("[")[0]


def _name(tests: Sequence[str]) -> str:
    """The test's id, without the parameters in which the tests of one curve differ."""
    parameters = [test.partition("[")[2].rstrip("]").split("-") for test in tests]
    if len({len(p) for p in parameters}) > 1:
        return _function(tests[0])
    shared = "-".join(p[0] for p in zip(*parameters, strict=True) if len(set(p)) == 1)
    return _function(tests[0]) + (f"[{shared}]" if shared else "")
