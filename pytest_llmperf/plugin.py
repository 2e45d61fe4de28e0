"""The pytest face: hooks only. Everything they do is in the rooms."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf import collection, hookspecs, markers
from pytest_llmperf.collection import PLAN
from pytest_llmperf.errors import ConfigError, LlmperfError
from pytest_llmperf.finish import Outcome
from pytest_llmperf.fixtures import baseline, engine, llm_server, llm_servers
from pytest_llmperf.gating import Baseline
from pytest_llmperf.options import Options, add_options
from pytest_llmperf.report.live import LiveLine
from pytest_llmperf.rounds import Rounds
from pytest_llmperf.schedule import GroupScheduling
from pytest_llmperf.session import SESSION, Session

__all__ = ["baseline", "engine", "llm_server", "llm_servers"]

ROUNDS: pytest.StashKey[Rounds] = pytest.StashKey()
OUTCOME: pytest.StashKey[Outcome] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    for line in (markers.PERF_SIGNATURE, markers.SERVER_SIGNATURE, markers.SERVERS_SIGNATURE):
        config.addinivalue_line("markers", line)
    try:
        options = Options.from_pytest_config(config)
        session = Session(config, options, LiveLine.of(config).say)
    except ConfigError as e:
        raise pytest.UsageError(str(e)) from None
    config.stash[SESSION] = session
    if not hasattr(config, "workerinput"):
        config.stash[OUTCOME] = Outcome(config, options)
        config.stash[PLAN] = Path(tempfile.mkdtemp(prefix="llmperf-")) / "plan.json"
        config.add_cleanup(lambda: shutil.rmtree(config.stash[PLAN].parent, ignore_errors=True))
    else:
        config.stash[PLAN] = Path(config.workerinput["llmperf_plan"])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["llmperf_plan"] = str(node.config.stash[PLAN])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    """Whatever ``--dist`` says, a config's tests stay on one worker (``each`` runs everything everywhere on purpose)."""
    if config.getoption("dist") == "each" or not config.stash[SESSION].options.opted_in:
        return None
    return GroupScheduling(config, log, config.stash[PLAN])


# -- collection


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    collection.parametrize(metafunc, metafunc.config.stash[SESSION])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = config.stash[SESSION]
    collection.arrange(ours, config, items)
    config.stash[ROUNDS] = Rounds(ours.tests, ours, ours.options.launches, ours.options.confirm)


def pytest_report_header(config: pytest.Config) -> list[str]:
    return collection.header(config.stash[SESSION].options)


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    return collection.said(config)


# -- running


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if item.nodeid not in item.config.stash[SESSION].tests:
        return None
    item.config.stash[ROUNDS].run(item, nextitem)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    session = item.config.stash[SESSION]
    test = session.tests.get(item.nodeid)
    if test is None:
        return report
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, LlmperfError):
        report.longrepr = str(error)
    if report.when == "call" or report.failed:
        session.conclude(test, report, error)
    return report


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    if report.outcome == "suspect":
        return "suspect", "S", ("SUSPECT", {"yellow": True})
    if report.outcome == "measured":
        return "", "m", ("MEASURED", {"cyan": True})
    return None


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    return right.explain(left) if isinstance(right, Baseline) and op in ("in", "not in") else None


# -- the end


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    raise NotImplementedError


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    ours = session.config.stash[SESSION]
    ours.close()
    if OUTCOME in session.config.stash:
        session.config.stash[OUTCOME].finish(ours)


def pytest_unconfigure(config: pytest.Config) -> None:
    if SESSION in config.stash:
        config.stash[SESSION].close()
