"""A test that is a sweep: its configs, the launch it is at, what it measured on each, and the effects that follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_llmperf.errors import ConfigError, MeasurementError
from pytest_llmperf.measure.metrics import Measurement, Metric
from pytest_llmperf.measure.workloads import Workload
from pytest_llmperf.records.gaps_and_sweeps import Sweep
from pytest_llmperf.records.text import number
from pytest_llmperf.server.launch import Launch
from pytest_llmperf.server_config import ServerConfig
from pytest_llmperf.session.perf_marker import Perf
from pytest_llmperf.session.perf_test import PerfTest
from pytest_llmperf.tuning.order import Slot, launch_order
from pytest_llmperf.tuning.plan import BASE, SweepPlan

if TYPE_CHECKING:
    from pytest_llmperf.stats import Prior

#: How much launches like one differ, for a workload and a metric.
PriorOf: TypeAlias = "Callable[[Launch, Workload, Metric], Prior]"


@dataclass(frozen=True)
class Taken:
    """One measurement on one launch of the config ``name``."""

    name: str
    measurement: Measurement


class SweepTest(PerfTest):
    """A test that is run on a fresh launch of each of its configs in turn, and gates nothing.

    ``members`` are the configs by name, the base among them.
    """

    gates = False

    def __init__(
        self,
        nodeid: str,
        test: str,
        perf: Perf | None,
        engine: str,
        plan: SweepPlan,
        members: Mapping[str, ServerConfig],
    ) -> None:
        super().__init__(nodeid, test, perf, engine, members[BASE], {})
        self.plan = plan
        self.members = members
        self.order = launch_order([v.name for v in plan.variations], plan.launches)
        self.slot = self.order[0]
        self.last = False
        """Whether this launch is the sweep's last."""
        self.goes_on = True
        """Whether the launch that has ended lets the sweep go on."""
        self.up: ServerConfig | None = None
        """The config that was launched last, whose server may still be up."""
        self.failures: dict[str, str] = {}
        """Why a config has no value, or none from its later launches."""
        self.complaints: list[str] = []
        """What the test itself found wrong with a variation, in full."""
        self._taken: list[Taken] = []
        self._begun = 0

    @property
    def configs(self) -> tuple[ServerConfig, ...]:
        """The one that it is at, and the one whose server may still be up."""
        return tuple(dict.fromkeys(c for c in (self.config, self.up) if c))

    @property
    def keys(self) -> tuple[str, ...]:
        """Its servers are its own: nothing else runs between its launches."""
        return (f"sweep {self.nodeid}",)

    @property
    def metric_count(self) -> int:
        return 0

    def slots(self) -> Iterator[Slot]:
        """The launches to make, in order; a config that failed is not launched again. The last is the base's."""
        for at, slot in enumerate(self.order):
            later = [s.name for s in self.order[at + 1 :] if s.name != BASE and s.name not in self.failures]
            if slot.name not in self.failures:
                self.slot, self.last = slot, slot.name == BASE and not later
                self.config = self.members[slot.name]
                self._begun = len(self._taken)
                yield slot
                if self.last:
                    return

    @property
    def in_round(self) -> str:
        return f"{super().in_round}, {self.progress}"

    @property
    def progress(self) -> str:
        """``launch 3 of 10, nccl.proto=LL``"""
        return f"launch {self.order.index(self.slot) + 1} of {len(self.order)}, {self.slot.name}"

    def measured(self, measurement: Measurement) -> None:
        """Take what was measured on this launch. Raises ``MeasurementError`` when it must not count."""
        if measurement.invalid:
            raise MeasurementError("the measurement is invalid:\n  " + "\n  ".join(measurement.invalid))
        self._taken.append(Taken(self.slot.name, measurement))
        super().measured(measurement)

    def missing(self) -> tuple[str, ...]:
        """What this launch should have measured and has not, in words; without ``@perf``, any metric will do."""
        seen = {m for t in self._taken[self._begun :] for m in t.measurement.values}
        if self.perf is None:
            return () if seen else ("nothing",)
        return tuple(f"no {m}" for m in self.perf.names if m not in seen)

    def discard(self) -> None:
        """Forget what this launch has measured so far."""
        del self._taken[self._begun :]

    def launched(self, name: str) -> list[Launch]:
        """Launches of one config, in order."""
        return [x for x in self.launches.values() if x.config == self.members[name]]

    def sweeps(self, prior: PriorOf, ignored: Sequence[str]) -> list[Sweep]:
        """What the launches so far say: a sweep for each metric, and for each workload where the test has several.

        ``prior`` tells how much launches like this one differ; guards in ``ignored`` are not worth a note.
        """
        from pytest_llmperf.tuning.ratios import sweep  # here: scipy is for sessions that judge

        found = []
        workloads = list(dict.fromkeys(t.measurement.workload for t in self._taken))
        for workload in workloads:
            taken = [t for t in self._taken if t.measurement.workload == workload]
            elsewhere = {t.name: f"{t.name} was measured with another workload" for t in self._taken if t not in taken}
            first = self.launches[taken[0].measurement.launch_id]
            told = _told_apart(workload, workloads)
            for name, metric in taken[0].measurement.metrics.items():
                measured = any(name in t.measurement.values for t in taken)
                if measured and (self.perf is None or name in self.perf.names):
                    launches, unusable = _values(taken, name)
                    found.append(
                        sweep(
                            replace(self.plan, name=f"{self.plan.name} ({told})") if told else self.plan,
                            launches,
                            {**elsewhere, **unusable, **self.failures},
                            metric,
                            engine=self.engine,
                            test=self.test,
                            prior=prior(first, workload, metric),
                            notes=self._notes(taken),
                            disturbed=_disturbed(taken, ignored),
                        )
                    )
        return found

    def _notes(self, taken: Sequence[Taken]) -> dict[str, str]:
        """What the numbers of each variation do not say."""
        from pytest_llmperf.tuning.ratios import nccl_note

        found = {}
        for variation in self.plan.variations:
            said: list[str | None] = []
            launched = self.launched(variation.name)
            if launched:
                config, took = launched[-1].config, launched[-1].effective
                gpus = None if took.tp is None else took.tp * config.dp * config.pp
                said.append(nccl_note(variation, gpus=gpus, custom_all_reduce=took.custom_all_reduce))
            if variation.name in self.failures and any(t.name == variation.name for t in taken):
                said.append(f"no further launch: {self.failures[variation.name]}")
            if any(said):
                found[variation.name] = "; ".join(filter(None, said))
        return found


def members(plan: SweepPlan, make: Callable[[Mapping[str, Any]], ServerConfig]) -> dict[str, ServerConfig]:
    """Every config of ``plan`` by its name. Raises ``ConfigError`` with a line for each thing that is wrong."""
    made: dict[str, ServerConfig] = {}
    problems: dict[str, None] = {}
    for variation in (plan.base, *plan.variations):
        try:
            made[variation.name] = make(variation.keywords)
        except ConfigError as e:
            problems.update(dict.fromkeys(f"llm_sweep: {line}" for line in str(e).splitlines()))
    names: dict[str, str] = {}
    for name, config in made.items():
        twin = names.setdefault(config.key, name)
        if twin != name:
            problems[f"llm_sweep: {name} is the same server as {twin}; leave it out"] = None
    if problems:
        raise ConfigError("\n".join(problems))
    return made


def _values(taken: Sequence[Taken], metric: str) -> tuple[dict[str, list[tuple[float, ...]]], dict[str, str]]:
    """Each config's launches, all repetitions of one together; and why others have none that a ratio can be made of."""
    found: dict[str, dict[str, tuple[float, ...]]] = {}
    for t in taken:
        launches = found.setdefault(t.name, {})
        held = launches.get(t.measurement.launch_id, ())
        launches[t.measurement.launch_id] = (*held, *t.measurement.values.get(metric, ()))
    usable, unusable = {}, {}
    for name, launches in found.items():
        values = list(launches.values())
        wrong = [v for x in values for v in x if not v > 0]
        if not all(values):
            unusable[name] = f"{name} has no {metric}"
        elif wrong:
            unusable[name] = f"{name} has a {metric} of {number(wrong[0])}, which no ratio can be made of"
        else:
            usable[name] = values
    return usable, unusable


def _disturbed(taken: Sequence[Taken], ignored: Sequence[str]) -> dict[str, str]:
    """Guards that tripped, by config, each with the evidence of its first time."""
    found: dict[str, dict[str, str]] = {}
    for t in taken:
        for guard in t.measurement.guards:
            if guard.spoils and guard.name not in ignored:
                found.setdefault(t.name, {}).setdefault(guard.name, guard.evidence)
    return {name: "; ".join(f"{g}: {evidence}" for g, evidence in guards.items()) for name, guards in found.items()}


def _told_apart(workload: Workload, others: Sequence[Workload]) -> str:
    """What this workload has that the ``others`` have not: one field, where one tells all of them apart."""
    mine = workload.identity()
    for key in ("concurrency", "rate", "output_tokens", "prompt_tokens"):
        if len({other.identity().get(key) for other in others}) == len(others) > 1:
            return f"{key}={mine.get(key)}"
    unlike = (k for k, v in mine.items() if any(other.identity().get(k) != v for other in others))
    return ", ".join(f"{key}={mine[key]}" for key in unlike)
