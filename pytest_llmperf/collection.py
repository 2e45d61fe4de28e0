"""From collected items to performance tests: engines, opt-in, order, and what is said about it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_llmperf import markers
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.schedule import Plan, neighbours
from pytest_llmperf.session import Session


def parametrize(metafunc: pytest.Metafunc, session: Session) -> None:
    """Run a test that needs an engine once per engine, always with the engine in its id (``test_x[sglang]``)."""
    if "engine" not in metafunc.fixturenames or any(
        "engine" in str(m.args[:1]) for m in metafunc.definition.iter_markers("parametrize")
    ):
        return
    try:
        declaration = markers.declared(metafunc.definition, session.options.profiles)
    except ConfigError as e:
        raise pytest.UsageError(str(e)) from None
    engines = session.engines_for(declaration)
    if engines:
        metafunc.parametrize("engine", engines, indirect=True, scope="session")


def arrange(session: Session, config: pytest.Config, items: list[pytest.Item]) -> tuple[list[str], list[str]]:
    """Keep, check, group and order the performance tests among ``items``, in place.

    Returns what to say about it, and every misuse found.
    """
    said, errors, elsewhere = [], [], []
    for item in items:
        if not {"llm_server", "llm_servers"} & set(getattr(item, "fixturenames", ())):
            continue
        engine = _engine(item)
        if engine is None:
            errors.append(f"{item.nodeid}: no engine chosen: pass --engine NAME, or set engine in [tool.llmperf]")
        elif session.options.engine and engine not in session.options.engine:
            elsewhere.append(item)
        else:
            path, line, _ = item.location
            try:
                session.add(item, engine, f"{path}:{(line or 0) + 1}")
            except ConfigError as e:
                errors.append(str(e))
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [i for i in items if i not in set(elsewhere)]
        said.append(f"llmperf: {len(elsewhere)} tests are for other engines than {', '.join(session.options.engine)}")
    session.regroup()
    items[:] = neighbours(items, session.groups)
    tests = session.tests.values()
    if tests:
        servers = len({c for t in tests for c in t.configs})
        said.append(f"llmperf: {len(tests)} tests on {servers} servers, {session.gated} gated metrics")
    else:
        said.append("llmperf: no performance test was selected, so nothing is gated")
    return said, errors


def plan_of(session: Session, errors: Sequence[str] = ()) -> Plan:
    """What the controller needs to know of this process's collection."""
    tests = tuple((t.test, t.engine) for t in session.tests.values() if t.perf)
    return Plan(session.groups, tests, session.gated, tuple(errors))


def _engine(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("engine") if callspec else None
