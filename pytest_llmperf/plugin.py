"""The pytest face: options, markers, fixtures, and the switch. What an opted-in session does is in ``active``."""

from __future__ import annotations

import pytest

from pytest_llmperf import hookspecs, markers
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.fixtures import baseline, engine, llm_server, llm_servers
from pytest_llmperf.options import Options, add_options

__all__ = ["baseline", "engine", "llm_server", "llm_servers"]

_DESELECTED: pytest.StashKey[int] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    for line in (markers.PERF_SIGNATURE, markers.SERVER_SIGNATURE, markers.SERVERS_SIGNATURE):
        config.addinivalue_line("markers", line)
    try:
        options = Options.from_pytest_config(config)
        if options.opted_in:
            # here: numpy, scipy and openai are for sessions that measure, not for every pytest of the environment
            from pytest_llmperf.active import Active

            config.pluginmanager.register(Active(config, options), "llmperf-active")
    except ConfigError as e:
        raise pytest.UsageError(str(e)) from None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without opting in no server is ever launched: the tests that need one are deselected, and that is said."""
    if config.pluginmanager.has_plugin("llmperf-active"):
        return
    ours = [i for i in items if {"llm_server", "llm_servers"} & set(getattr(i, "fixturenames", ()))]
    if ours:
        config.hook.pytest_deselected(items=ours)
        items[:] = [i for i in items if i not in set(ours)]
        config.stash[_DESELECTED] = len(ours)


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    count = config.stash.get(_DESELECTED, 0)
    return [f"llmperf: {count} tests need an LLM server and were deselected: run them with --engine NAME"] * bool(count)
