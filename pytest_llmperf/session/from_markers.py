"""What one collected test asks for, read from its markers: its servers, and whether it is a gate, a sweep or an A/B."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_llmperf.engines.base import Engine
from pytest_llmperf.errors import ConfigError, nearest
from pytest_llmperf.options import Options
from pytest_llmperf.server_config import ServerConfig
from pytest_llmperf.session import markers
from pytest_llmperf.session.perf_test import PerfTest
from pytest_llmperf.session.selection import compares
from pytest_llmperf.session.sweep_test import SweepTest, members
from pytest_llmperf.tuning.plan import OPTIONS, SweepPlan, plan
from pytest_llmperf.tuning.presets import expand

if TYPE_CHECKING:
    from pytest_llmperf.session.ab_fixture import AbPlan

_T = TypeVar("_T")


def planned(
    item: pytest.Item, nodeid: str, engine: str | None, options: Options, engines: Mapping[str, Engine]
) -> PerfTest:
    """The performance test that ``item`` is. Raises ``ConfigError`` with a line for each thing that is wrong."""
    reader = _Reader(item, engine, options, engines)
    problems: list[str] = []
    perf = _sound(problems, lambda: markers.Perf.from_item(item))
    configs = _sound(problems, reader.configs)
    compared = _sound(problems, reader.ab) if configs else None
    sweep = _sound(problems, reader.sweep) if configs else None
    if problems or configs is None:
        raise ConfigError("\n".join(problems))
    path, line, _ = item.location
    place = f"{path}:{(line or 0) + 1}"
    if sweep is not None:
        return SweepTest(nodeid, perf, engine or "", *sweep, place)
    if compared is not None:
        perf, configs = None, (None, {"a": compared.a.config, "b": compared.b.config})
    test = PerfTest(nodeid, perf, engine or "", *configs, place)
    test.ab = compared
    return test


class _Reader:
    """The markers of one test that runs on ``engine``."""

    def __init__(self, item: pytest.Item, engine: str | None, options: Options, engines: Mapping[str, Engine]) -> None:
        self._item, self._engine, self._options, self._engines = item, engine, options, engines
        self._fixtures = frozenset(getattr(item, "fixturenames", ()))
        self._declaration: dict[str, Any] | None = None

    def configs(self) -> tuple[ServerConfig | None, Mapping[str, ServerConfig]]:
        """The config of ``llm_server`` and those of ``llm_servers``, as far as the test uses them."""
        presets = self._options.presets
        declaration = self._declaration = markers.declared(self._item, self._options.profiles, presets)
        if declaration is None:
            raise ConfigError("uses a server, and no @pytest.mark.llm_server(model=...) declares one")
        markers.engines_of(declaration)
        if self._engine is None:
            raise ConfigError("no engine chosen: pass --engine NAME, or set engine in [tool.llmperf]")
        extras = markers.named(self._item, presets) if "llm_servers" in self._fixtures else {}
        if "llm_servers" in self._fixtures and not extras:
            raise ConfigError("llm_servers needs @pytest.mark.llm_servers(name={...overrides}, ...)")
        config = self._config_of(declaration) if "llm_server" in self._fixtures else None
        return config, {name: self._config_of(markers.merged(declaration, x), x) for name, x in extras.items()}

    def ab(self) -> AbPlan | None:
        """What ``llm_ab`` says, after ``configs``; None for a test that is no A/B."""
        if not compares(self._item):
            return None
        from pytest_llmperf.session.ab_fixture import (
            AbPlan,  # here: it needs the measuring room, whose import takes a while
        )

        if self._options.url:
            raise ConfigError("ab launches servers of its own, and --llmperf-url attaches to one: run it without")

        def config_of(side: Mapping[str, Any]) -> ServerConfig:
            said = expand(side, self._options.presets, "llm_server")
            return self._config_of(markers.merged(self._declaration or {}, said))

        return AbPlan.from_item(self._item, config_of)

    def sweep(self) -> tuple[SweepPlan, Mapping[str, ServerConfig]] | None:
        """The plan of a test with ``llm_sweep`` and its configs by name, after ``configs``; None without the marker."""
        marker = markers.swept(self._item)
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
        name = next(iter(markers.engines_of(own)), self._engine or "")
        if name not in self._engines:
            raise ConfigError(f"no engine {name!r}{nearest(name, self._engines)}")
        return markers.server_config(declaration, self._engines[name], frozenset(self._engines))


def _sound(problems: list[str], read: Callable[[], _T]) -> _T | None:
    """What ``read`` gives; None, with its words in ``problems``, when something is wrong."""
    try:
        return read()
    except ConfigError as e:
        problems += str(e).splitlines()
        return None
