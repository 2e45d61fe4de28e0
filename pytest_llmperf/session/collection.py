"""From collected items to performance tests: engines, misuses, order, and what is said about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.records.text import plural
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.session.perf_test import test_name
from pytest_llmperf.session.schedule import Plan, neighbours
from pytest_llmperf.session.selection import needs_server
from pytest_llmperf.session.sweep_test import SweepTest

#: Tests named in one misuse; the others are counted.
_NAMED = 3


def parametrize(metafunc: pytest.Metafunc, session: PerfSession) -> None:
    """Run a test with a server once per engine, always with the engine in its id (``test_x[sglang]``)."""
    ours = needs_server(metafunc.definition)
    if "engine" not in metafunc.fixturenames or not ours or _chooses_engine(metafunc):
        return
    try:
        engines = session.engines_for(metafunc.definition)
    except ConfigError:  # told with every other misuse, once all tests are there
        engines = session.options.engine
    if engines:
        metafunc.parametrize("engine", engines, indirect=True)


def _chooses_engine(metafunc: pytest.Metafunc) -> bool:
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs.get("argnames", ())
        if "engine" in (names.replace(",", " ").split() if isinstance(names, str) else names):
            return True
    return False


def arrange(
    session: PerfSession, config: pytest.Config, items: list[pytest.Item], collected: Mapping[int, str]
) -> Plan:
    """Keep, check, group and order the performance tests among ``items``, in place.

    ``collected`` has the nodeid of every item by its ``id()``, as it was before anyone renamed one.
    """
    misuses: dict[str, list[str]] = {}
    elsewhere = []
    serverless = 0
    for item in items:
        if not needs_server(item):
            serverless += item.get_closest_marker("perf") is not None
            if item.get_closest_marker("llm_sweep"):
                misuses.setdefault("llm_sweep needs the fixture llm_server in its test", []).append(item.nodeid)
            continue
        nodeid, engine = collected.get(id(item), item.nodeid), _engine(item, session)
        if engine in session.engines and session.options.engine and engine not in session.options.engine:
            elsewhere.append(item)
            continue
        try:
            session.add(item, nodeid, engine)
        except ConfigError as e:
            for problem in str(e).splitlines():
                misuses.setdefault(problem, []).append(nodeid)
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        gone = set(map(id, elsewhere))
        items[:] = [i for i in items if id(i) not in gone]
    session.regroup()
    items[:] = neighbours(items, session.groups)
    said = list(_said(session, len(elsewhere), serverless))
    errors = [f"{_some(nodeids)}: {problem}" for problem, nodeids in misuses.items()]
    planned = {key: test.planned for key, test in session.tests.items() if test.planned}
    return Plan(session.groups, (), session.gated, said, errors, planned)


def everything(session: PerfSession, items: Iterable[pytest.Item]) -> list[tuple[str, str]]:
    """(test, engine) of every performance test among ``items`` on the chosen engines: whose baselines are in use."""
    chosen = session.options.engine
    found = []
    for item in items:
        engine = _engine(item, session) if needs_server(item) and item.get_closest_marker("perf") else None
        if engine and (not chosen or engine in chosen):
            found.append((test_name(item, item.nodeid, engine), engine))
    return found


def _said(session: PerfSession, elsewhere: int, serverless: int) -> Iterable[str]:
    if elsewhere:
        engines = ", ".join(session.options.engine)
        yield f"{plural(elsewhere, 'test')} for other engines than {engines}, so deselected"
    if serverless:
        yield f"{plural(serverless, 'test')} marked perf without llm_server or llm_servers: nothing to gate"
    if not session.tests:
        yield "no performance test was selected, so nothing is gated"


def counted(session: PerfSession) -> str:
    """How much there is to run."""
    sweeps = [t for t in session.tests.values() if isinstance(t, SweepTest)]
    servers = {c for t in session.tests.values() if t not in sweeps for c in t.configs}
    said = []
    if len(sweeps) < len(session.tests):
        tests = plural(len(session.tests) - len(sweeps), "test")
        said.append(f"{tests} on {plural(len(servers), 'server')}, {plural(session.gated, 'gated metric')}")
    if sweeps:
        configs, launches = sum(len(t.members) for t in sweeps), sum(len(t.order) for t in sweeps)
        said.append(f"{plural(len(sweeps), 'sweep')} of {plural(configs, 'config')} in {plural(launches, 'launch')}")
    return "; ".join(said)


def _some(nodeids: Sequence[str]) -> str:
    more = len(nodeids) - _NAMED
    return ", ".join(nodeids[:_NAMED]) + (f" and {plural(more, 'more test')}" if more > 0 else "")


def _engine(item: pytest.Item, session: PerfSession) -> str | None:
    """The engine that a test runs on; the only one for a ``unittest.TestCase``, which pytest does not parametrize."""
    callspec = getattr(item, "callspec", None)
    if callspec is not None:
        engine = callspec.params.get("engine")
        return engine if isinstance(engine, str) else None
    try:
        engines = session.engines_for(item)
    except ConfigError:  # told when the test is added
        return None
    return engines[0] if len(engines) == 1 else None
