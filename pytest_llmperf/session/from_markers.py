"""What one collected test asks for, read from its markers: its servers, and whether it is a gate, a sweep or an A/B."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from pytest_llmperf.engines.base import Engine, EngineSettings
from pytest_llmperf.engines.declaration import engines_of, lease_problems, merged, server_config
from pytest_llmperf.errors import ConfigError, nearest
from pytest_llmperf.measure.metrics import Metric
from pytest_llmperf.options import Options
from pytest_llmperf.server_config import ServerConfig
from pytest_llmperf.session.perf_marker import Perf
from pytest_llmperf.session.perf_test import PerfTest, test_name
from pytest_llmperf.session.selection import SERVER_FIXTURES, compares
from pytest_llmperf.session.sweep_test import SweepTest, members
from pytest_llmperf.tuning.ab_plan import AbPlan
from pytest_llmperf.tuning.plan import OPTIONS, SweepPlan, plan
from pytest_llmperf.tuning.presets import Presets, expand

_T = TypeVar("_T")
#: Fixtures of ours that a test has to itself.
_PER_TEST = SERVER_FIXTURES | {"baseline", "ab", "engine"}


class Declarations:
    """What the ``llm_server`` markers of tests come to. Tests share markers: each chain of them is read once."""

    def __init__(self, options: Options, engines: Mapping[str, Engine], metrics: Mapping[str, Metric]) -> None:
        self.options, self.engines, self.metrics = options, engines, metrics
        self._names = frozenset(engines)
        self._said: dict[tuple[int, ...], tuple[list[pytest.Mark], dict[str, Any]]] = {}
        self._configs: dict[tuple[int, str], ServerConfig] = {}

    def of(self, item: pytest.Item) -> dict[str, Any] | None:
        """The markers of ``item`` merged from outer to inner; None without one. Raises ``ConfigError``."""
        marks = list(item.iter_markers("llm_server"))
        if not marks:
            return None
        chain = tuple(map(id, marks))
        if chain not in self._said:
            self._said[chain] = marks, self._merged(marks)  # marks that are kept keep their ids
        return self._said[chain][1]

    def _merged(self, marks: Sequence[pytest.Mark]) -> dict[str, Any]:
        profiles, presets = self.options.profiles, self.options.presets
        out: dict[str, Any] = {}
        for mark in reversed(marks):
            for name in mark.args:
                if name not in profiles:
                    near = nearest(str(name), profiles)
                    raise ConfigError(f"llm_server names no profile of [tool.llmperf.profiles]: {name!r}{near}")
                out = merged(out, expand(profiles[name], presets, f"profile {name}"))
            out = merged(out, expand(mark.kwargs, presets, "llm_server"))
        return out

    def config(self, said: Mapping[str, Any], engine: str) -> ServerConfig:
        """The config that ``said`` means for ``engine``. Raises ``ConfigError``."""
        if engine not in self.engines:
            raise ConfigError(f"no engine {engine!r}{nearest(engine, self.engines)}")
        return server_config(said, self.engines[engine], self._names, self.options.engines.get(engine))

    def shared(self, said: Mapping[str, Any], engine: str) -> ServerConfig:
        """``config`` of what ``of`` gave, made once for each engine."""
        key = id(said), engine
        if key not in self._configs:
            self._configs[key] = self.config(said, engine)
        return self._configs[key]


def planned(item: pytest.Item, nodeid: str, engine: str | None, declarations: Declarations) -> PerfTest:
    """The performance test that ``item`` is. Raises ``ConfigError`` with a line for each thing that is wrong."""
    reader = _Reader(item, engine, declarations)
    problems: list[str] = []
    perf = _sound(problems, lambda: Perf.from_item(item, declarations.metrics))
    problems += _too_wide(item)
    configs = _sound(problems, reader.configs)
    compared = _sound(problems, reader.ab) if configs else None
    sweep = _sound(problems, reader.sweep) if configs else None
    if problems or configs is None:
        raise ConfigError("\n".join(problems))
    if sweep is not None:
        return SweepTest(nodeid, test_name(item, nodeid, engine or ""), perf, engine or "", *sweep)
    if compared is not None:
        perf, configs = None, (None, {"a": compared.a.config, "b": compared.b.config})
    test = PerfTest(nodeid, test_name(item, nodeid, engine or ""), perf, engine or "", *configs)
    test.ab = compared
    return test


def _too_wide(item: pytest.Item) -> Iterator[str]:
    """Fixtures that hold on to what each test gets anew; pytest's own word for it is ScopeMismatch, in each test."""
    info = getattr(item, "_fixtureinfo", None)  # pytest offers no public way to a test's fixtures
    known = {name: found[-1] for name, found in info.name2fixturedefs.items()} if info else {}
    ours = {name for name in _PER_TEST if name in known and known[name].scope == "function"}
    for name, fixture in known.items():
        asked = ours.intersection(fixture.argnames)
        if asked and fixture.scope != "function":
            yield (
                f"its fixture {name!r} of scope {fixture.scope!r} asks for {', '.join(sorted(asked))}, which each test "
                "gets for itself: leave the scope out; the server lives on between the tests that share it all the same"
            )


class _Reader:
    """The markers of one test that runs on ``engine``."""

    def __init__(self, item: pytest.Item, engine: str | None, declarations: Declarations) -> None:
        self._item, self._engine, self._declarations = item, engine, declarations
        self._options, self._engines = declarations.options, declarations.engines
        self._fixtures = frozenset(getattr(item, "fixturenames", ()))
        self._declaration: dict[str, Any] | None = None

    def configs(self) -> tuple[ServerConfig | None, Mapping[str, ServerConfig]]:
        """The config of ``llm_server`` and those of ``llm_servers``, as far as the test uses them."""
        said = self._declaration = self._declarations.of(self._item)
        if said is None:
            raise ConfigError("uses a server, and no @pytest.mark.llm_server(model=...) declares one")
        engines_of(said)
        if self._engine is None and len(self._options.engine) > 1:
            raise ConfigError(
                "is a unittest.TestCase, whose tests pytest cannot run once for each engine: choose one --engine, name "
                "one in llm_server(engine=...), or make it a plain class"
            )
        if self._engine is None:
            raise ConfigError("no engine chosen: pass --engine NAME, or set engine in [tool.llmperf]")
        extras = named(self._item, self._options.presets) if "llm_servers" in self._fixtures else {}
        if "llm_servers" in self._fixtures and not extras:
            raise ConfigError("llm_servers needs @pytest.mark.llm_servers(name={...overrides}, ...)")
        config = self._declarations.shared(said, self._engine) if "llm_server" in self._fixtures else None
        return config, {name: self._config_of(merged(said, x), x) for name, x in extras.items()}

    def ab(self) -> AbPlan | None:
        """What ``llm_ab`` says, inner over outer, after ``configs``; None for a test that is no A/B."""
        item = self._item
        if not compares(item):
            return None
        said: dict[str, Any] = {}
        problems = []
        for mark in reversed(list(item.iter_markers("llm_ab"))):
            said.update(mark.kwargs)
            if mark.args:
                problems.append("llm_ab takes keywords only, like llm_ab(b={'attention_backend': 'fa3'})")
        if self._options.url:
            problems.append("ab launches servers of its own, and --llmperf-url attaches to one: run it without")
        if any(m.name == "perf" for m in item.own_markers):
            problems.append("@perf gates a test with llm_server; a test with ab asserts on its result instead")
        if not SERVER_FIXTURES.isdisjoint(self._fixtures):
            problems.append("ab launches servers of its own: ask for ab without llm_server and llm_servers")
        if item.get_closest_marker("llm_sweep"):
            problems.append("a test is an A/B or a sweep, not both")

        def config_of(side: Mapping[str, Any]) -> ServerConfig:
            whole = merged(self._declaration or {}, expand(side, self._options.presets, "llm_server"))
            return self._config_of(whole)

        plan = _sound(problems, lambda: AbPlan.of(said, config_of, self._declarations.metrics))
        for side in (plan.a, plan.b) if plan else ():
            if side.command:
                name = side.config.engine
                own = replace(self._options.engines.get(name, EngineSettings()), command=side.command)
                problems += lease_problems(side.config, self._engines[name], own)
        if problems:
            raise ConfigError("\n".join(problems))
        return plan

    def sweep(self) -> tuple[SweepPlan, Mapping[str, ServerConfig]] | None:
        """The plan of a test with ``llm_sweep`` and its configs by name, after ``configs``; None without the marker."""
        marker = swept(self._item)
        if marker is None:
            return None
        if self._options.url:
            raise ConfigError("llm_sweep launches servers of its own: leave out --llmperf-url, or deselect this test")
        if "llm_servers" in self._fixtures:
            raise ConfigError("llm_sweep varies the one server of llm_server: use no llm_servers in its test")
        others = self._engines.keys() - {self._engine}
        mine = {knob: values for knob, values in marker.items() if knob.partition("__")[0] not in others}
        if len(mine) < len(marker) and mine.keys() <= set(OPTIONS):
            raise ConfigError(f"llm_sweep has no knob for {self._engine}: say llm_server(engine=...) for whom it is")
        made = plan(mine, self._declaration or {}, self._options.presets)
        return made, members(made, self._config_of)

    def _config_of(self, declaration: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> ServerConfig:
        """``own`` may name another engine than the test's, for one of several servers."""
        return self._declarations.config(declaration, next(iter(engines_of(own)), self._engine or ""))


def _sound(problems: list[str], read: Callable[[], _T]) -> _T | None:
    """What ``read`` gives; None, with its words in ``problems``, when something is wrong."""
    try:
        return read()
    except ConfigError as e:
        problems += str(e).splitlines()
        return None


def named(item: pytest.Item, presets: Presets) -> dict[str, Mapping[str, Any]]:
    """What the ``llm_servers`` markers of ``item`` add to the declaration for each name, inner over outer."""
    out: dict[str, Mapping[str, Any]] = {}
    for mark in reversed(list(item.iter_markers("llm_servers"))):
        if mark.args or not all(isinstance(extra, Mapping) for extra in mark.kwargs.values()):
            raise ConfigError("llm_servers takes a dict of overrides for each name, like fast={'dtype': 'half'}")
        out.update({name: expand(extra, presets, "llm_servers") for name, extra in mark.kwargs.items()})
    return out


def swept(item: pytest.Item) -> dict[str, Any] | None:
    """The keywords of the ``llm_sweep`` markers of ``item``, inner over outer; None without one."""
    out: dict[str, Any] = {}
    marks = list(item.iter_markers("llm_sweep"))
    for mark in reversed(marks):
        if mark.args:
            raise ConfigError(f"llm_sweep takes keywords only, like tp=[4, 8], not {mark.args}")
        out = merged(out, mark.kwargs)
    return {k: v for k, v in out.items() if v is not None} if marks else None
