"""``@pytest.mark.llm_ab`` and what the ``ab`` fixture does: two builds or configs on interleaved fresh launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmperf.engines.base import EngineSettings
from pytest_llmperf.errors import ConfigError, nearest
from pytest_llmperf.measure.metrics import METRICS
from pytest_llmperf.measure.run import Run
from pytest_llmperf.records.text import plural
from pytest_llmperf.server.pool import Server, ServerPool
from pytest_llmperf.server_config import ServerConfig
from pytest_llmperf.session.llm_server import LlmServer
from pytest_llmperf.stats import Prior
from pytest_llmperf.tuning.plan import label
from pytest_llmperf.tuning.ratios import versus
from pytest_llmperf.tuning.trial import Side, fight, stopped

if TYPE_CHECKING:
    from pytest_llmperf.session.perf_session import PerfSession
    from pytest_llmperf.session.perf_test import PerfTest

_KEYS = frozenset({"a", "b", "metric", "budget", "min_effect"})
_BETTER = {"faster": "b", "slower": "a"}


@dataclass(frozen=True)
class AbSide:
    """``command`` replaces the engine's own (another build); ``said`` is what the marker says of this side."""

    config: ServerConfig
    command: tuple[str, ...] | None
    said: str


@dataclass(frozen=True)
class AbPlan:
    """``@llm_ab(...)``. ``budget`` is the most launches of each side, ``min_effect`` a fraction."""

    a: AbSide
    b: AbSide
    metric: str = "decode_tok_s"
    budget: int = 6
    min_effect: float = 0.01

    @classmethod
    def from_item(cls, item: pytest.Item, config_of: Callable[[Mapping[str, Any]], ServerConfig]) -> AbPlan:
        """The ``llm_ab`` markers of ``item`` merged, inner over outer. ``config_of`` makes a config of what a side says
        over the test's ``llm_server``. Raises ``ConfigError`` that holds one problem a line."""
        said: dict[str, Any] = {}
        positional = False
        for mark in reversed(list(item.iter_markers("llm_ab"))):
            said.update(mark.kwargs)
            positional |= bool(mark.args)
        problems = list(_problems(said, positional))
        if any(m.name == "perf" for m in item.own_markers):
            problems.append("@perf gates a test with llm_server; a test with ab asserts on its result instead")
        if not {"llm_server", "llm_servers"}.isdisjoint(getattr(item, "fixturenames", ())):
            problems.append("ab launches servers of its own: ask for ab without llm_server and llm_servers")
        if item.get_closest_marker("llm_sweep"):
            problems.append("a test is an A/B or a sweep, not both")
        if problems:
            raise ConfigError("\n".join(problems))
        a, b = (_side(name, said.get(name, {}), config_of) for name in ("a", "b"))
        if a.config == b.config and a.command == b.command:
            raise ConfigError("llm_ab compares a server with itself: let a or b override something")
        return cls(a, b, **{k: v for k, v in said.items() if k not in ("a", "b")})


def _problems(said: Mapping[str, Any], positional: bool) -> Iterator[str]:
    if positional:
        yield "llm_ab takes keywords only, like llm_ab(b={'attention_backend': 'fa3'})"
    for key in said:
        if key not in _KEYS:
            yield f"llm_ab has no {key!r}{nearest(key, _KEYS)}"
    for name in ("a", "b"):
        side = said.get(name, {})
        if not isinstance(side, Mapping):
            yield f"llm_ab({name}={side!r}) must be a dict of llm_server's keywords"
            continue
        if "engine" in side:
            yield "llm_ab compares two of one engine; --engine X --engine Y tells the gap between two engines"
        command = side.get("command", ("x",))
        if not isinstance(command, (list, tuple)) or not command or not all(isinstance(w, str) for w in command):
            yield f"llm_ab({name}={{'command': {command!r}}}) must be the list of words that starts the engine"
    metric = said.get("metric", "decode_tok_s")
    if not isinstance(metric, str) or metric not in METRICS:
        yield f"llm_ab names no known metric: {metric!r}{nearest(str(metric), METRICS)}"
    if type(said.get("budget", 1)) is not int or said.get("budget", 1) < 1:
        yield f"llm_ab(budget={said['budget']!r}) must be a whole number from 1: most launches of each side"
    effect = said.get("min_effect", 0.01)
    if isinstance(effect, bool) or not isinstance(effect, (int, float)) or not 0 < effect < 1:
        yield f"llm_ab(min_effect={effect!r}) must be a fraction between 0 and 1 (0.01 is 1 %)"


def _side(name: str, said: Mapping[str, Any], config_of: Callable[[Mapping[str, Any]], ServerConfig]) -> AbSide:
    command = said.get("command")
    try:
        config = config_of({k: v for k, v in said.items() if k != "command"})
    except ConfigError as error:
        raise ConfigError("\n".join(f"llm_ab({name}=...): {line}" for line in str(error).splitlines())) from error
    words = ", ".join(f"{k}={label(v)}" for k, v in _shown(said, config))
    return AbSide(config, tuple(command) if command else None, words or "as declared")


def _shown(said: Mapping[str, Any], config: ServerConfig) -> Iterator[tuple[str, Any]]:
    """What a side says, secrets masked as the config masks them."""
    shown = config.canonical()
    for key, value in said.items():
        if key == "command":
            yield key, " ".join(value)
        elif key == config.engine:
            yield key, {k: v for k, v in shown.get("flags", {}).items() if k in value}
        else:
            yield key, shown.get(key, value if not isinstance(value, Mapping) else {})


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
        metric = METRICS[plan.metric]
        a, b = self._launched("side A", plan.a), self._launched("side B", plan.b)
        try:
            duel = fight(
                a,
                b,
                partial(self._run, plan, measure),
                metric,
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
        gap = versus(test.test, metric, test.engine, duel.a, duel.b, duel.trial.ratio, note)
        test.gaps.append(gap)
        assert gap.interval is not None
        return AbResult(
            metric=metric.name,
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
        server = self._session.warmed(server, side.pool, f"{test.nodeid} {side.label}")
        test.launches[server.launch.id] = server.launch
        seen = LlmServer(self._session, test, server)
        try:
            run = measure(seen)
        finally:
            seen.close()
        if not isinstance(run, Run) or run.measurement.launch_id != server.launch.id:
            raise ConfigError(
                f"{test.nodeid}: what ab calls must return its server's run, like ab(lambda server: server.stream()), "
                f"not {run!r}"
            )
        metric, engine = METRICS[plan.metric], side.engine
        self._prior = self._session.priors(server.launch, run.measurement.workload).of(metric, engine.launch_spread)
        ignored = self._session.options.ignore_guards
        for guard in run.measurement.guards:
            if guard.tripped and guard.name not in ignored:
                self._tripped.setdefault(f"{side.label}: {guard.name}", []).append(guard.evidence)
        return run
