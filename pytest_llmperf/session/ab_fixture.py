"""``@pytest.mark.llm_ab`` and what the ``ab`` fixture does: two builds or configs on interleaved fresh launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pytest_llmperf.engines.base import EngineSettings
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.measure.run import Run
from pytest_llmperf.records.text import plural
from pytest_llmperf.server.pool import Server, ServerPool
from pytest_llmperf.session.llm_server import LlmServer
from pytest_llmperf.stats import Prior
from pytest_llmperf.tuning.ab_plan import AbPlan, AbSide
from pytest_llmperf.tuning.ab_trial import Side, fight, stopped
from pytest_llmperf.tuning.ratios import versus

if TYPE_CHECKING:
    from pytest_llmperf.session.perf_session import PerfSession
    from pytest_llmperf.session.perf_test import PerfTest

_BETTER = {"faster": "b", "slower": "a"}


@dataclass(frozen=True)
class AbResult:
    """``ratio`` is b / a of ``metric`` with its ``interval`` (95 %, valid however often one looked); ``a`` and ``b``
    are the values in the metric's unit. ``better`` is "a", "b", or None where no difference is credible. ``launches``
    of each side were judged; ``stopped`` says why no more were made."""

    metric: str
    a: float
    b: float
    ratio: float
    interval: tuple[float, float]
    better: str | None
    launches: tuple[int, int]
    stopped: str


class Ab:
    """The ``ab`` fixture's value: call it once, with what measures one server."""

    def __init__(self, session: PerfSession, test: PerfTest) -> None:
        self._session = session
        self._test = test
        self._prior = Prior()
        self._tripped: dict[str, list[str]] = {}

    def __call__(self, measure: Callable[[LlmServer], Run]) -> AbResult:
        """Launch a and b by turns (ABBA ...), ``measure`` each launch, until the answer is clear or the budget spent.

        ``measure`` gets a server as the ``llm_server`` fixture gives it and returns the run:
        ``ab(lambda server: server.stream(output_tokens=128))``. Raises ``LaunchError`` or ``MeasurementError`` that
        names the side, and ``ConfigError`` for a second call: the budget is the test's.
        """
        __tracebackhide__ = True
        test, plan, session = self._test, self._test.ab, self._session
        assert plan is not None
        if test.gaps:
            raise ConfigError(f"{test.nodeid}: ab was called already; its budget is the test's: parametrize the test")
        a, b = self._launched("side A", plan.a), self._launched("side B", plan.b)
        try:
            duel = fight(
                a,
                b,
                partial(self._run, plan, measure),
                plan.metric,
                budget=plan.budget,
                min_effect=plan.min_effect,
                prior=lambda: self._prior,
                say=session.say,
            )
        finally:
            test.notes += [*a.pool.notices, *b.pool.notices]
            for guard, seen in self._tripped.items():
                test.notes.append(f"{test.nodeid}, {guard} on {plural(len(seen), 'launch')}: {seen[-1]}")
        if duel.error is not None:
            test.failed = duel.failed.config if duel.failed else None
            raise duel.error
        assert duel.trial is not None
        assert duel.trial.ratio is not None
        why = stopped(duel.trial, plan.min_effect)
        note = f"A: {plan.a.said}; B: {plan.b.said}; {why}"
        gap = versus(test.test, plan.metric, test.engine, duel.a, duel.b, duel.trial.ratio, note)
        test.gaps.append(gap)
        assert gap.interval is not None
        return AbResult(
            metric=plan.metric.name,
            a=gap.reference_value,
            b=gap.value,
            ratio=gap.ratio,
            interval=gap.interval,
            better=_BETTER.get(duel.trial.verdict),
            launches=(gap.launches[1], gap.launches[0]),
            stopped=why,
        )

    def _launched(self, name: str, side: AbSide) -> Side:
        """A side with a pool of its own: its command may differ, and each of its launches is fresh."""
        session, engine = self._session, side.config.engine
        settings = replace(session.pool_settings, keep=False)
        if side.command:
            own = replace(settings.engines.get(engine, EngineSettings()), command=side.command)
            settings = replace(settings, engines={**settings.engines, engine: own})
        return Side(name, side.config, session.engines[engine], ServerPool(settings, session.engines, session.say))

    def _run(self, plan: AbPlan, measure: Callable[[LlmServer], Run], side: Side, server: Server) -> Run:
        __tracebackhide__ = True
        test = self._test
        server = self._session.counting(test, server, side.pool, f"{test.nodeid} {side.label}")
        test.launches[server.launch.id] = server.launch
        seen = self._session.seen(test, server)
        try:
            run = measure(seen)
        finally:
            seen.close()
        if not isinstance(run, Run) or run.measurement.launch_id != server.launch.id:
            raise ConfigError(
                f"{test.nodeid}: what ab calls must return its server's run, like ab(lambda server: server.stream()), "
                f"not {run!r}"
            )
        self._prior = self._session.prior(server.launch, run.measurement.workload, plan.metric)
        ignored = self._session.options.ignore_guards
        for guard in run.measurement.guards:
            if guard.spoils and guard.name not in ignored:
                self._tripped.setdefault(f"{side.label}: {guard.name}", []).append(guard.evidence)
        return run
