"""One performance test of this session: what it declared, which round it is in, what it has measured so far."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.markers import Perf
from pytest_llmperf.measure.metrics import Metric, MetricValue, Workload
from pytest_llmperf.report.records import LaunchValues, Result
from pytest_llmperf.rounds import Round
from pytest_llmperf.server.config import ServerConfig
from pytest_llmperf.server.launch import Launch


@dataclass
class Gated:
    """One gated metric of a test: its launch values as they come in, and the result once there is one."""

    metric: Metric
    workload: Workload
    fingerprint: Fingerprint
    config: ServerConfig
    launches: list[LaunchValues] = field(default_factory=list)
    measured: list[MetricValue] = field(default_factory=list)
    suspect: bool = False
    result: Result | None = None


class PerfTest:
    """State of one collected performance test. ``test`` is its id without the engine, the same on every engine."""

    def __init__(
        self,
        nodeid: str,
        perf: Perf,
        engine: str,
        config: ServerConfig | None,
        named: Mapping[str, ServerConfig],
        location: str,
    ) -> None:
        self.nodeid = nodeid
        self.test = test_id(nodeid, engine)
        self.perf = perf
        self.engine = engine
        self.named = named
        self.configs = ((config,) if config else ()) + tuple(named.values())
        self.location = location
        self.group = ""
        self.round = Round()
        self.gated: dict[tuple[str, str], Gated] = {}
        self.launches: dict[str, Launch] = {}

    @property
    def suspect(self) -> bool:
        """A metric lies outside its band on the first look and waits for fresh launches."""
        return any(g.suspect for g in self.gated.values())

    def begin(self, round_: Round) -> None:
        self.round = round_

    def unconfirmed(self, why: str) -> None:
        for gated in self.gated.values():
            if gated.suspect and gated.result is not None:
                gated.result = gated.result.with_verdict("inconclusive", f"suspect, not confirmed: {why}")
                gated.suspect = False

    @property
    def results(self) -> tuple[Result, ...]:
        """Results so far, one per gated metric."""
        return tuple(g.result for g in self.gated.values() if g.result is not None)


def test_id(nodeid: str, engine: str) -> str:
    """``nodeid`` without the engine parameter: ``t.py::test_x[vllm-long]`` is ``t.py::test_x[long]``."""
    return re.sub(rf"\[{re.escape(engine)}(?:-(.*)|)\]$", lambda m: f"[{m.group(1)}]" if m.group(1) else "", nodeid)
