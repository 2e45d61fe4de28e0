"""The hooks of a session that measures. Everything they do is in the rooms."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf import collection, console
from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.finish import Ending
from pytest_llmperf.fixtures import SESSION
from pytest_llmperf.gating import Baseline
from pytest_llmperf.options import Options
from pytest_llmperf.rounds import MEASURED, SUSPECT, Rounds
from pytest_llmperf.schedule import GroupScheduling, Plan
from pytest_llmperf.session import Session

#: Category in the summary, letter, word with its style.
Status = tuple[str, str, tuple[str, dict[str, bool]]]


class Active:
    """One per process: serial pytest, xdist's controller and each of its workers. Raises ``ConfigError``."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self._config = config
        self._options = options
        self._session = config.stash[SESSION] = Session(config, options, console.live(config))
        self._rounds = Rounds(self._session.tests, self._session, options.launches, options.confirm)
        self._said: list[str] = []
        self._ending: Ending | None = None
        if hasattr(config, "workerinput"):
            self._plan = Path(config.workerinput["llmperf_plan"])
            return
        folder = tempfile.TemporaryDirectory(prefix="llmperf-")
        config.add_cleanup(folder.cleanup)
        self._plan = Path(folder.name, "plan.json")
        self._ending = Ending(options, config.rootpath, self._session.state_dir)

    # -- xdist

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["llmperf_plan"] = str(self._plan)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> GroupScheduling | None:
        """Whatever ``--dist`` says, a config's tests stay on one worker (``each`` runs all everywhere on purpose)."""
        return None if config.getoption("dist") == "each" else GroupScheduling(config, log, self._plan)

    # -- collection

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        collection.parametrize(metafunc, self._session)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        said, errors = collection.arrange(self._session, config, items)
        self._said += said
        if self._ending is None:
            collection.plan_of(self._session, errors).write(self._plan)
        elif errors:
            raise pytest.UsageError("\n".join(errors))
        self._rounds.expect()

    def pytest_report_header(self) -> str:
        o = self._options
        doing = {None: "gate", "yes": "update baselines", "force": "update baselines (forced)"}[o.update]
        where = o.url or ", ".join(o.engine) or "the markers' engines"
        return f"llmperf: {doing}; {where}; baselines in {o.baselines}"

    def pytest_report_collectionfinish(self) -> list[str]:
        return self._said

    # -- running

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if item.nodeid not in self._session.tests:
            return None
        self._rounds.run(item, nextitem)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        test = self._session.tests.get(item.nodeid)
        if test is not None:
            error = call.excinfo.value if call.excinfo else None
            if isinstance(error, LlmperfError):
                report.longrepr = str(error)
            if report.when == "call" or report.failed:
                self._session.conclude(test, report, error)
        return report

    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        outcome = str(report.outcome)
        if outcome == SUSPECT:
            return "suspect", "S", ("SUSPECT", {"yellow": True})
        if outcome == MEASURED:
            return "", "m", ("MEASURED", {"cyan": True})
        return None

    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> list[str] | None:
        return right.explain(left) if isinstance(right, Baseline) and op == "in" else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        payload = getattr(report, "llmperf", None)
        if self._ending is not None and payload is not None:
            self._ending.take(payload)

    # -- the end

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._session.close()
        if self._ending is not None:
            plan = collection.plan_of(self._session) if self._session.tests else Plan.read(self._plan)
            self._ending.finish(
                plan, hardware=self._session.hardware, interrupted=exitstatus == pytest.ExitCode.INTERRUPTED
            )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        record = self._ending.record if self._ending else None
        if record is not None and (record.results or record.servers or record.session["messages"]):
            console.show(record, terminalreporter)

    def pytest_unconfigure(self) -> None:
        self._session.close()
