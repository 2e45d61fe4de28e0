"""The pytest face: options, markers, fixtures, and the switch. What an opted-in session does is in ``active``."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmperf import hookspecs
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.fixtures import ab, baseline, engine, llm_server, llm_servers
from pytest_llmperf.options import Options, add_options
from pytest_llmperf.session.selection import PLUGIN, needs_server, opted_in

__all__ = ["ab", "baseline", "engine", "llm_server", "llm_servers"]

MARKERS = (
    "perf(target=None, metric='decode_tok_s', max_regression=None, min_effect=None, precision=None, repetitions=None, "
    "max_repetitions=None): gate this test's metrics against its baseline and, if given, a target; see pytest-llmperf",
    "llm_server(*profiles, engine=None, model=..., tp=1, attention_backend=None, nccl={}, env={}, sglang={}, vllm={}, "
    "...): the server this test needs; inner markers override outer ones key by key; see pytest-llmperf",
    "llm_sweep(base={}, full=False, name=None, launches=2, **knobs=[values]): run this test on fresh launches of its "
    "server as declared and with each value of each knob, and report what each does to speed; see pytest-llmperf",
    "llm_servers(name={...}, ...): several servers at once, each the declared llm_server with these keys overridden; "
    "see pytest-llmperf",
    "llm_ab(a={}, b={}, metric='decode_tok_s', budget=6, min_effect=0.01): the two sides of fixture ab, each the "
    "declared llm_server with these keys overridden, and command=[...] for another build; see pytest-llmperf",
)
_DESELECTED = pytest.StashKey[int]()
_OUTPUT = "llmperf_deselected"


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    if not opted_in(config):
        return
    # here: numpy, scipy and openai are for sessions that measure, not for every pytest of the environment
    from pytest_llmperf.session.hooks import SessionHooks

    try:
        config.pluginmanager.register(SessionHooks(config, Options.from_pytest_config(config)), PLUGIN)
    except ConfigError as e:
        raise pytest.UsageError(str(e)) from None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without opting in no server is ever launched: the tests that need one are deselected, and that is said."""
    if config.pluginmanager.has_plugin(PLUGIN):
        return
    ours = {i for i in items if needs_server(i)}
    if ours:
        config.hook.pytest_deselected(items=[i for i in items if i in ours])
        items[:] = [i for i in items if i not in ours]
        config.stash[_DESELECTED] = len(ours)
        if hasattr(config, "workeroutput"):
            config.workeroutput[_OUTPUT] = len(ours)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Under xdist only the workers know; a crashed one has left no output."""
    count = getattr(node, "workeroutput", {}).get(_OUTPUT, 0)
    node.config.stash[_DESELECTED] = max(count, node.config.stash.get(_DESELECTED, 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    count = config.stash.get(_DESELECTED, 0)
    if count:
        need = "1 test needs" if count == 1 else f"{count} tests need"
        terminalreporter.write_line(f"llmperf: {need} an LLM server, so deselected: to run, pass --engine NAME")
