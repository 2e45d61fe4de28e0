"""One performance test of this session: what it declared, which round it is in, what it has measured so far."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import pytest

from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.series import StoredLaunch
from pytest_llmperf.measure.metrics import Guard, Measurement, Metric
from pytest_llmperf.measure.workloads import Workload
from pytest_llmperf.records.gaps_and_sweeps import Gap
from pytest_llmperf.records.results import Result
from pytest_llmperf.server.launch import Launch
from pytest_llmperf.server_config import ServerConfig
from pytest_llmperf.session.perf_marker import Perf
from pytest_llmperf.tuning.ab_plan import AbPlan

if TYPE_CHECKING:
    from pytest_llmperf.tuning.loads import Load


@dataclass(frozen=True)
class Round:
    """``role`` is "screen" or "confirm"; ``index`` counts from 0 within ``of`` rounds of that role."""

    role: str = "screen"
    index: int = 0
    of: int = 1

    @property
    def last(self) -> bool:
        return self.index == self.of - 1


class PlannedMetric(NamedTuple):
    """One metric that a test declares, as collection knows it. ``server`` is a config's key."""

    nodeid: str
    test: str
    engine: str
    server: str
    location: str
    metric: str
    unit: str
    higher_is_better: bool

    def unjudged(self, verdict: str, reasons: Sequence[str], notes: Sequence[str] = ()) -> Result:
        """Its result when the test ended before it was judged."""
        return Result(**self._asdict(), verdict=verdict, reasons=tuple(reasons), notes=tuple(notes))


@dataclass
class GatedMetric:
    """One gated metric of a test on one server: its launches as they come in, and the result once there is one."""

    metric: Metric
    workload: Workload
    fingerprint: Fingerprint
    config: ServerConfig
    screened: list[StoredLaunch] = field(default_factory=list)
    confirmed: list[StoredLaunch] = field(default_factory=list)
    suspect: bool = False
    result: Result | None = None
    recordable_as: str = ""
    """The verdict without the target, which is what may be recorded depends on."""
    _guards: dict[str, tuple[Guard, ...]] = field(default_factory=dict)
    _measured: dict[str, Measurement] = field(default_factory=dict)

    def add(self, launch: StoredLaunch, guards: Sequence[Guard], measured: Measurement, round_: Round) -> None:
        """Take one launch's values; the same launch again replaces what it gave before."""
        side = self.confirmed if round_.role == "confirm" else self.screened
        side[:] = [x for x in side if x.id != launch.id] + [launch]
        self._guards[launch.id] = tuple(replace(g, launch=launch.id) for g in guards)
        self._measured[launch.id] = measured

    @property
    def guards(self) -> tuple[Guard, ...]:
        """Guards of the launches that decide."""
        return tuple(g for x in self.confirmed or self.screened for g in self._guards[x.id])

    @property
    def notes(self) -> tuple[str, ...]:
        """What the measurements of the launches that decide noticed, each thing once."""
        several = len(self.deciding) > 1
        said = [f"launch {i}: {n}" if several else n for i, m in enumerate(self.deciding, 1) for n in m.notes]
        return tuple(dict.fromkeys(said))

    @property
    def deciding(self) -> list[Measurement]:
        """The measurement of each launch that decides."""
        return [self._measured[x.id] for x in self.confirmed or self.screened]


class PerfTest:
    """State of one collected test with a server. ``test`` is its id without the engine, the same on every engine.

    ``nodeid`` is pytest's id as collected, whatever xdist appends to it later; ``perf`` is None for a test that uses a
    server without gating anything.
    """

    gates: ClassVar[bool] = True
    """Whether ``value in baseline`` judges."""

    def __init__(
        self,
        nodeid: str,
        test: str,
        perf: Perf | None,
        engine: str,
        config: ServerConfig | None,
        named: Mapping[str, ServerConfig],
    ) -> None:
        self.nodeid = nodeid
        self.test = test
        self.perf = perf
        self.engine = engine
        self.config = config
        self.named = named
        self.location = ""
        """``path:line``, known once the test runs: pytest takes a while to tell it."""
        self.group = ""
        self.round = Round()
        self.gated: dict[tuple[str, str], GatedMetric] = {}
        self.launches: dict[str, Launch] = {}
        self.measuring_s = 0.0
        self.ab: AbPlan | None = None
        self.gaps: list[Gap] = []
        self.loads: list[Load] = []
        self.notes: list[str] = []
        self.another: Callable[[], None] | None = None
        """A round of it that its protocol is to run, in place of beginning its group."""
        self.noticed: list[str] = []
        """What its measurements of this round noticed."""
        self.ended: tuple[str, tuple[str, ...]] | None = None
        """Once it has failed in this round: the verdict of every metric without a final one, and why."""
        self.failed: ServerConfig | None = None
        """Which of several servers failed, where that is known."""

    @property
    def configs(self) -> tuple[ServerConfig, ...]:
        """Every server the test needs."""
        return ((self.config,) if self.config else ()) + tuple(self.named.values())

    @property
    def keys(self) -> tuple[str, ...]:
        """Tests that share one of these share servers. An A/B launches its own: no other may be up meanwhile."""
        return (f"ab {self.nodeid}",) if self.ab else tuple(c.key for c in self.configs)

    def add_load(self, launch: Launch, measurement: Measurement) -> None:
        """Keep what is a point of a load curve."""
        from pytest_llmperf.tuning.loads import load_of  # here: scipy is for sessions that judge

        config, most = launch.config, launch.effective.max_running_requests
        load = load_of(self.test, config.engine, config.key, measurement, most)
        if load is not None:
            self.loads.append(load)

    @property
    def repeats(self) -> bool:
        """Whether the test runs on every launch of its server."""
        return self.perf is not None

    @property
    def metric_count(self) -> int:
        """Metrics it may gate, for the session's level."""
        return len(self.perf.metrics) * max(1, len(self.named)) if self.perf else 0

    @property
    def suspect(self) -> bool:
        """A metric lies outside its band on the first look and waits for fresh launches."""
        return any(g.suspect for g in self.gated.values())

    @property
    def in_round(self) -> str:
        """Its name and which of its launches this is: ``test_x[sglang], launch 2/3``, ``..., confirming 1/2``."""
        name = self.nodeid.partition("::")[2] or self.nodeid
        which = {"screen": "launch", "confirm": "confirming"}[self.round.role]
        several = self.round.of > 1 or self.round.role == "confirm"
        return f"{name}, {which} {self.round.index + 1}/{self.round.of}" if several else name

    @property
    def planned(self) -> tuple[PlannedMetric, ...]:
        """Every metric that it must give a result of."""
        if self.perf is None or not self.gates:
            return ()
        of_test = self.nodeid, self.test, self.engine, self.configs[0].key, self.location
        return tuple(PlannedMetric(*of_test, m.name, m.unit, m.higher_is_better) for m in self.perf.metrics)

    def begin(self, round_: Round) -> None:
        self.round = round_
        self.ended = None
        self.noticed = []

    def measured(self, measurement: Measurement) -> None:
        """Told of every measurement that the test makes. What it noticed is in the test's results, else a note."""
        self.noticed += measurement.notes
        if not self.planned:
            self.notes += [f"{self.in_round}: {note}" for note in measurement.notes]

    @property
    def decided(self) -> bool:
        """This round is the test's last: no launch to come can change what it finds."""
        return self.round.last and (self.round.role == "confirm" or not self.suspect)

    def unjudged(self) -> tuple[str, ...]:
        """Declared metrics that no assertion has judged so far."""
        seen = {metric for metric, _ in self.gated}
        return tuple(m for m in self.perf.names if m not in seen) if self.perf else ()

    def pending(self) -> tuple[str, ...]:
        """Declared metrics without a final verdict: not judged, or waiting for fresh launches."""
        final = {metric for (metric, _), gated in self.gated.items() if gated.result and not gated.suspect}
        return tuple(m for m in self.perf.names if m not in final) if self.perf else ()

    @property
    def results(self) -> tuple[Result, ...]:
        """Results so far, one per gated metric. A suspect's is not final: inconclusive until it is confirmed. A test
        that has ended has one of every metric that it declares."""
        verdict, why = self.ended or ("inconclusive", ())
        waiting = (*why, "suspect, and not confirmed on fresh launches")
        judged = tuple(
            replace(g.result, verdict=verdict, reasons=(*waiting, *g.result.reasons)) if g.suspect else g.result
            for g in self.gated.values()
            if g.result is not None
        )
        if self.ended is None:
            return judged
        known = {r.metric for r in judged}
        return (*judged, *(p.unjudged(verdict, why, self.noticed) for p in self.planned if p.metric not in known))


def test_name(item: pytest.Item, nodeid: str, engine: str) -> str:
    """``nodeid`` as baselines know it: without the engine, and without the count of pytest-repeat, whose runs of a test
    are the same test."""
    name = engineless(nodeid, engine)
    callspec = getattr(item, "callspec", None)
    step = callspec.params.get("__pytest_repeat_step_number") if callspec else None
    return name if step is None else re.sub(rf"(-|\[){step + 1}-\d+\]$", lambda m: "]" if m[1] == "-" else "", name)


def engineless(nodeid: str, engine: str) -> str:
    """``nodeid`` without the engine parameter: ``t.py::test_x[vllm-long]`` is ``t.py::test_x[long]``."""
    return re.sub(rf"\[{re.escape(engine)}(?:-(.*)|)\]$", lambda m: f"[{m.group(1)}]" if m.group(1) else "", nodeid)
