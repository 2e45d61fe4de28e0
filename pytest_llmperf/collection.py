"""From collected items to performance tests: engines, opt-in, order, and what is said about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmperf import markers
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.options import Options
from pytest_llmperf.schedule import Plan, neighbours
from pytest_llmperf.session import Session

#: Where the workers leave their plan for the controller.
PLAN: pytest.StashKey[Path] = pytest.StashKey()
_SAID: pytest.StashKey[list[str]] = pytest.StashKey()


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


def arrange(session: Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep, check, group and order the performance tests among ``items``, in place.

    Raises ``pytest.UsageError`` with every misuse found; an xdist worker leaves them to the controller instead.
    """
    said = config.stash.setdefault(_SAID, [])
    ours = [i for i in items if "llm_server" in _fixtures(i) or "llm_servers" in _fixtures(i)]
    if not session.options.opted_in:
        _drop(config, items, ours)
        if ours:
            said.append(
                f"llmperf: {len(ours)} tests need an LLM server and were deselected; run them with --engine NAME or -m perf"
            )
        return
    errors, elsewhere = [], []
    for item in ours:
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
    _drop(config, items, elsewhere)
    if elsewhere:
        said.append(f"llmperf: {len(elsewhere)} tests are for other engines than {', '.join(session.options.engine)}")
    if not session.tests and not errors:
        said.append("llmperf: no performance test was selected, so nothing is gated")
    groups = session.regroup()
    items[:] = neighbours(items, groups)
    if hasattr(config, "workerinput"):
        Plan(groups, tuple(errors)).write(config.stash[PLAN])
    elif errors:
        raise pytest.UsageError("\n".join(errors))
    if session.tests:
        said.append(
            f"llmperf: {len(session.tests)} tests on {len(set(groups.values()))} servers, {session.gated} gated metrics"
        )


def header(options: Options) -> list[str]:
    """One line for pytest's header when performance tests are opted in."""
    if not options.opted_in:
        return []
    doing = {None: "gate", "yes": "update baselines", "force": "update baselines (forced)"}[options.update]
    where = options.url or ", ".join(options.engine) or "engines of the markers"
    return [f"llmperf: {doing}, {where}, baselines in {options.baselines}"]


def said(config: pytest.Config) -> list[str]:
    """Lines to print after collection."""
    return config.stash.get(_SAID, [])


def _drop(config: pytest.Config, items: list[pytest.Item], gone: list[pytest.Item]) -> None:
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [i for i in items if i not in set(gone)]


def _fixtures(item: pytest.Item) -> tuple[str, ...]:
    return tuple(getattr(item, "fixturenames", ()))


def _engine(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("engine") if callspec else None
