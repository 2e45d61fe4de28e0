"""From a measured value to a verdict: what ``value in baseline`` and ``baseline.check(run)`` do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmperf.baselines import fingerprint, fitted_priors, provenance, store
from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.fitted_priors import Priors
from pytest_llmperf.baselines.metric_verdict import GateTerms, MetricVerdict, verdict_of
from pytest_llmperf.baselines.series import Series, StoredLaunch, utc
from pytest_llmperf.baselines.speculative_loss import LENGTH, SPEEDS
from pytest_llmperf.engines.base import Engine
from pytest_llmperf.errors import BaselineError, ConfigError
from pytest_llmperf.hardware import Hardware
from pytest_llmperf.measure.metrics import Guard, Metric, MetricValue
from pytest_llmperf.options import Options
from pytest_llmperf.records.results import Result
from pytest_llmperf.report.explain import explain
from pytest_llmperf.server.launch import Launch
from pytest_llmperf.server_config import ServerConfig
from pytest_llmperf.session.cold_launches import all_warm
from pytest_llmperf.session.latency_distributions import distributions
from pytest_llmperf.session.perf_marker import Perf
from pytest_llmperf.session.perf_test import GatedMetric, PerfTest
from pytest_llmperf.session.revision import revision
from pytest_llmperf.stats import session_alpha

if TYPE_CHECKING:
    from pytest_llmperf.measure.run import Run


class Verdicts:
    """Knows what every test of this process is judged by: stored series, priors, level, hardware."""

    def __init__(
        self,
        options: Options,
        hardware: Hardware,
        gated: int,
        state: Path,
        root: Path,
        engines: Mapping[str, Engine],
        metrics: Mapping[str, Metric],
        extra: Callable[[ServerConfig], Mapping[str, str]],
    ) -> None:
        self.options = options
        self.alpha = session_alpha(options.level, max(gated, 1))
        self._hardware = hardware
        self._host = fingerprint.host_identity(hardware)
        self._cache = state / "priors"
        self._root = root
        self._engines = engines
        self._metrics = metrics
        self._extra = extra
        self._series: dict[tuple[str, str], list[Series]] = {}
        self._priors: dict[tuple[str, str], Priors] = {}

    def fingerprint(self, launch: Launch, workload: Mapping[str, Any]) -> Fingerprint:
        """Under which a measurement on ``launch`` compares."""
        config = launch.config
        return fingerprint.of(
            self._hardware,
            config,
            self._engines[config.engine].gpu_count(config),
            workload,
            self.options.runner_pool,
            gpus=launch.gpus,
            extra=self._extra(config),
        )

    def stored(self, value: MetricValue, launch: Launch) -> StoredLaunch:
        """The launch as a baseline would hold it, with this metric alone; a speed with the acceptance length behind it,
        gated or not, so that a loss can be told to be the drafter's or the kernels'."""
        measured = value.measurement.values
        metrics = {value.metric.name: value.values}
        names = ", ".join(sorted(self.options.ignore_guards))
        ignored = {"guards ignored": names} if names else {}
        if value.metric.name in SPEEDS and LENGTH in measured:
            metrics[LENGTH] = measured[LENGTH]
        return StoredLaunch(
            id=launch.id,
            recorded=utc(launch.started_at),
            host=self._host,
            cache=None if launch.cache_state == "none" else launch.cache_state,
            metrics=metrics,
            provenance=provenance.of(
                self._hardware, launch.effective, commit=self._commit, extra={**launch.circumstances, **ignored}
            ),
        )

    def known(self, test: str, engine: str) -> list[Series]:
        """Every stored series of ``test``, read once. Raises ``BaselineError`` that names a broken file."""
        if (test, engine) not in self._series:
            self._series[test, engine] = store.find(self.options.baselines, test, engine)
        return self._series[test, engine]

    def warm(self, test: str, launch: Launch) -> bool:
        """Whether ``test`` has a baseline of warm launches for servers like this one, whatever its workload."""
        mine = self.fingerprint(launch, {}).fields.items()
        try:
            known = self.known(test, launch.config.engine)
        except BaselineError:
            return False  # said by the test whose file it is
        return any(all_warm(s.current.launches) for s in known if mine <= s.fingerprint.fields.items())

    def priors(self, engine: str, mark: Fingerprint) -> Priors:
        """How much launches of ``engine`` on this hardware differ, as the stored ones tell."""
        kind = engine, mark.label
        if kind not in self._priors:
            usual = self._engines[engine].launch_spread
            folder = self.options.baselines
            self._priors[kind] = fitted_priors.fit(folder, engine, mark, usual, self._cache, self._metrics)
        return self._priors[kind]

    def decide(self, test: PerfTest, gated: GatedMetric, *, can_confirm: bool) -> MetricVerdict:
        """The verdict on what ``gated`` holds so far. Raises ``BaselineError`` that names a broken file."""
        options, perf = self.options, test.perf
        assert perf is not None
        engine = gated.config.engine
        priors = self.priors(engine, gated.fingerprint)
        test.notes += [finding for finding in priors.findings if finding not in test.notes]
        terms = GateTerms(
            nodeid=test.nodeid,
            test=test.test,
            engine=engine,
            server=gated.config.key,
            metric=gated.metric,
            fingerprint=gated.fingerprint,
            host=self._host,
            alpha=self.alpha,
            min_effect=_least_effect(options, perf),
            max_regression=perf.max_regression,
            target=dict(perf.target).get(gated.metric.name),
            confirm_launches=options.confirm if can_confirm else 0,
            updating=options.update is not None,
            prior=priors.of(gated.metric, self._engines[engine].launch_spread),
            workload=gated.workload.identity(),
            location=test.location,
        )
        return verdict_of(
            terms,
            gated.screened,
            gated.confirmed,
            known=self.known(test.test, engine),
            folder=options.baselines,
            now=time.time(),
            guards=gated.guards,
        )

    @cached_property
    def _commit(self) -> str | None:
        return revision(self._root, self.options.baselines)


def _least_effect(options: Options, perf: Perf) -> float:
    """Command line over marker over configuration."""
    return options.min_effect if perf.min_effect is None or "min_effect" in options.said else perf.min_effect


class Baseline:
    """The ``baseline`` fixture's value. ``value in baseline`` is True when the test may go on."""

    def __init__(self, verdict_of: Verdicts, test: PerfTest, *, can_confirm: bool) -> None:
        self._verdicts = verdict_of
        self._test = test
        self._can_confirm = can_confirm

    def __repr__(self) -> str:
        return f"<baseline of {self._test.test}>"

    def __contains__(self, value: object) -> bool:
        """Raises ``ConfigError`` for what is not a measured metric or not declared in ``@perf(metric=)``."""
        if not self._test.gates:
            return True  # a sweep compares its launches with each other
        gated = self._gated(value)
        assert isinstance(value, MetricValue)
        launch = self._launch(value)
        gated.add(self._verdicts.stored(value, launch), self._guards(value), value.measurement, self._test.round)
        if not self._test.round.last:
            return True
        if self._test.round.role == "confirm" and not gated.suspect:
            return True  # judged on the screen already: no second look
        found = self._verdicts.decide(self._test, gated, can_confirm=self._can_confirm)
        gated.suspect, gated.recordable_as = found.suspect, found.gate
        noticed = (*found.result.notes, *gated.notes)
        result = replace(
            found.result,
            measurement_s=round(self._test.measuring_s, 3),
            notes=noticed,
            latencies=distributions(m.latencies for m in gated.deciding if m.latencies is not None),
        )
        gated.result = _recorded(result, self._verdicts.options)
        return found.suspect or self._may_pass(gated.result.verdict)

    def check(self, run: Run, *metrics: str) -> None:
        """Gate several metrics of one run: all that ``@perf(metric=)`` names, or ``metrics``.

        Raises ``AssertionError`` that names every failed one.
        """
        __tracebackhide__ = True
        values = [getattr(run, name) for name in metrics or self._perf.names]
        failed = [value for value in values if value not in self]
        if failed:
            raise AssertionError("\n".join(line for value in failed for line in self.explain(value)))

    def explain(self, value: object) -> list[str]:
        """Why ``value`` is not in the baseline, in two lines; the test's report has the rest."""
        result = self._gated(value).result
        return explain(result)[:2] if result else [f"{value!r} was not judged yet"]

    def _guards(self, value: MetricValue) -> list[Guard]:
        """The guards of the measurement; those that the user ignores never trip."""
        ignored = self._verdicts.options.ignore_guards
        return [
            replace(g, tripped=False, ignored=True) if g.tripped and g.name in ignored else g
            for g in value.measurement.guards
        ]

    def _may_pass(self, verdict: str) -> bool:
        """Whether the test's assertion holds; what an inconclusive verdict does is decided when the test ends."""
        options = self._verdicts.options
        if verdict == "no_baseline":
            return options.update is not None
        if verdict == "regressed":
            return options.update is not None and bool(options.accept_regression)
        if verdict == "inconclusive":
            return options.inconclusive == "skip"
        return verdict not in ("invalid", "not_comparable", "below_target")

    @property
    def _perf(self) -> Perf:
        if self._test.perf is None:
            raise ConfigError(f"{self._test.nodeid}: mark the test with @perf to gate it against a baseline")
        return self._test.perf

    def _launch(self, value: MetricValue) -> Launch:
        launch = self._test.launches.get(value.measurement.launch_id)
        if launch is None:
            raise ConfigError(
                f"{self._test.nodeid}: {value!r} was measured on a server that this test does not hold; "
                "measure in the test that judges"
            )
        return launch

    def _gated(self, value: object) -> GatedMetric:
        test, declared = self._test, self._perf.names
        if not isinstance(value, MetricValue):
            raise ConfigError(
                f"{test.nodeid}: {value!r} is no measured metric; use one of a run, like run.decode_tok_s in baseline"
            )
        name = value.metric.name
        if name not in declared:
            raise ConfigError(
                f"{test.nodeid}: {name} is judged but not declared, so the session's level would not count it; "
                f"write @perf(metric={(*declared, name)!r})"
            )
        launch = self._launch(value)
        gated = test.gated.get((name, launch.config.key))
        workload = value.measurement.workload
        if gated is None:
            mark = self._verdicts.fingerprint(launch, workload.identity())
            gated = test.gated[name, launch.config.key] = GatedMetric(value.metric, workload, mark, launch.config)
        elif gated.workload != workload:
            raise ConfigError(
                f"{test.nodeid}: {name} is judged on two workloads; parametrize the test, so that each has a baseline"
            )
        return gated


def _recorded(result: Result, options: Options) -> Result:
    """What ``--update-baselines`` makes of it: a first recording is no failure, an accepted regression says so."""
    if options.update and result.verdict in ("no_baseline", "not_comparable"):
        launches = tuple(replace(x, role="record") for x in result.launches)
        return replace(result, verdict="no_baseline", launches=launches)
    if options.accept_regression and result.verdict == "regressed":
        accepted = f"accepted by --update-baselines --accept-regression: {options.accept_regression}"
        return replace(result, reasons=(*result.reasons, accepted))
    return result
