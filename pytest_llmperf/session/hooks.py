"""The hooks of a session that measures. Everything they do is in the rooms."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import pytest

from pytest_llmperf.options import Options
from pytest_llmperf.records.text import clean
from pytest_llmperf.report import junit
from pytest_llmperf.session import collection, console, extensions, option_checks, sweep_rounds
from pytest_llmperf.session.launch_rounds import MEASURED, SUSPECT, LaunchRounds
from pytest_llmperf.session.makereport import conclude, into_junit
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.session.schedule import GroupScheduling, Plan
from pytest_llmperf.session.sessionfinish import SessionFinish
from pytest_llmperf.session.sweep_test import SweepTest

#: Category in the summary, letter, word with its style.
Status = tuple[str, str, str | tuple[str, dict[str, bool]]]
_NOTICES = "llmperf_notices"


class SessionHooks:
    """One per process: serial pytest, xdist's controller and each of its workers. Raises ``ConfigError``."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self._config = config
        self._options = options
        self._status = console.Status(config)
        self.session = PerfSession(config, options, self._status.say, self._status.measuring)
        self._rounds = LaunchRounds(self.session.tests, self.session, options.launches, options.confirm)
        self._plan = Plan({})
        self._ending: SessionFinish | None = None
        self._interrupted = False
        self._begun: dict[str, None] = {}
        """Tests that have begun, in the order of their latest rounds."""
        if hasattr(config, "workerinput"):
            self._plan_path = Path(config.workerinput["llmperf_plan"])
            return
        option_checks.check(options)
        folder = tempfile.TemporaryDirectory(prefix="llmperf-")
        config.add_cleanup(folder.cleanup)
        self._plan_path = Path(folder.name, "plan.json")
        known = self.session.engines, self.session.metrics, extensions.report_formats(config)
        where, args = self.session.state_dir, config.invocation_params.args
        self._ending = SessionFinish(options, config.rootpath, where, args, *known)

    # -- xdist

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["llmperf_plan"] = str(self._plan_path)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> GroupScheduling | None:
        """Whatever ``--dist`` says, a config's tests stay on one worker (``each`` runs all everywhere on purpose)."""
        return None if config.getoption("dist") == "each" else GroupScheduling(config, log, self._plan_path)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for notice in getattr(node, "workeroutput", {}).get(_NOTICES, ()):
            self._tell("note", notice)

    # -- collection

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        collection.parametrize(metafunc, self.session)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        """Around everyone else: before names are changed and tests deselected, and after tests are put in an order."""
        names = {id(item): item.nodeid for item in items}
        tests = collection.everything(self.session, items)
        result = yield
        self._plan = replace(collection.arrange(self.session, config, items, names), tests=tests)
        if self._ending is None:
            self._plan.write(self._plan_path)
        elif self._plan.errors:
            raise pytest.UsageError("\n".join(self._plan.errors))
        return result

    def pytest_report_header(self) -> str:
        o = self._options
        doing = {None: "gate", "yes": "update baselines", "force": "update baselines (forced)"}[o.update]
        where = o.url or ", ".join(o.engine) or "the markers' engines"
        return f"llmperf: {doing}; {where}; baselines in {o.baselines}"

    def pytest_report_collectionfinish(self) -> Sequence[str]:
        said = [*self._plan.said, *([collection.counted(self.session)] if self.session.tests else [])]
        return [f"llmperf: {line}" for line in said]

    # -- running

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        test = self.session.tests.get(item.nodeid)
        if test is None:
            return None
        path, line, _ = item.location
        test.location = f"{path}:{(line or 0) + 1}"
        if test.another is not None:
            test.another()
        elif isinstance(test, SweepTest):
            sweep_rounds.run(item, nextitem, test, self.session)
        else:
            self._rounds.run(item, nextitem)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self._status.clear()
        test = self.session.tests.get(item.nodeid)
        error = call.excinfo.value if call.excinfo else None
        if isinstance(test, SweepTest):
            sweep_rounds.conclude(test, report, error, self.session.prior, self._options.ignore_guards)
        elif test is not None and (report.when == "call" or report.failed):
            conclude(test, item, report, error)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._status.clear()
        self._begun.pop(nodeid, None)
        self._begun[nodeid] = None

    @pytest.hookimpl(tryfirst=True)  # a plugin that knows reruns would have its own word for our rounds
    def pytest_report_teststatus(self, report: pytest.TestReport) -> Status | None:
        payload = getattr(report, "llmperf", {})
        which = clean(f" {payload.get('slot', '')}").rstrip()
        if (round_ := payload.get("round")) == SUSPECT:
            return "suspect", "S", ("SUSPECT", {"yellow": True})
        if round_ == MEASURED:
            return "", "m", (f"MEASURED{which}", {"cyan": True})
        if round_ == sweep_rounds.UNFIT:
            return "unfit", "u", (f"UNFIT{which}", {"yellow": True})
        if report.failed and payload.get("error"):
            return "error", "E", "ERROR"  # a server that died is no verdict on its speed
        return None

    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> list[str] | None:
        if op != "in":
            return None
        from pytest_llmperf.session.verdicts import Baseline  # here: scipy is for sessions that judge

        return right.explain(left) if isinstance(right, Baseline) else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, None, None]:
        """Before everyone else: what a terminal shows as done must not be lost to a Ctrl-C in the next moment."""
        payload = getattr(report, "llmperf", None)
        if self._ending is not None:
            if payload is not None:
                self._ending.take(payload)
            if report.skipped:
                self._ending.skipped(report.nodeid)
        yield
        into_junit(self._config, report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        plan = Plan.read(self._plan_path)
        if self._ending is None or crashitem not in plan.planned:
            return
        # xdist's worker stays at the last test of a group while the others have their later rounds
        running = next(n for n in (*reversed(self._begun), crashitem) if plan.groups.get(n) == plan.groups[crashitem])
        report.nodeid, report.longrepr = running, str(report.longrepr).replace(crashitem, running)
        self._ending.lost(running, report.longrepr)
        report.user_properties.append((junit.KIND, "infrastructure"))

    # -- the end

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Ctrl-C or ``pytest.exit``; what pytest raises to stop itself (``-x``) is a subclass."""
        self._interrupted = excinfo.type in (KeyboardInterrupt, pytest.exit.Exception)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        notices = self.session.close()
        self._status.clear()
        if self._ending is None:
            vars(self._config)["workeroutput"][_NOTICES] = notices  # what xdist sends from a worker at its end
            return
        for notice in notices:
            self._tell("note", notice)
        plan = self._plan
        if self._plan_path.exists():  # xdist: this process has collected nothing
            plan = Plan.read(self._plan_path)
            for line in plan.said:
                self._tell("note", line)
        if exitstatus == pytest.ExitCode.USAGE_ERROR or self._config.option.collectonly:
            return
        done = exitstatus not in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
        self._ending.finish(
            plan,
            hardware=self.session.hardware,
            interrupted=self._interrupted,
            scope=_scope(self._config) if done else None,
        )
        if not self._config.pluginmanager.has_plugin("terminalreporter"):
            for error in self._ending.errors:
                print(f"llmperf: error: {error}", file=sys.stderr)
        if self._ending.errors and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def _tell(self, kind: str, text: str) -> None:
        if self._ending is not None:
            self._ending.say(kind, text)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        record = self._ending.record if self._ending else None
        if record is not None and (record.results or record.servers or record.sweeps or record.session["messages"]):
            console.show(record, terminalreporter)

    def pytest_unconfigure(self) -> None:
        self.session.close()


def _scope(config: pytest.Config) -> list[PurePath] | None:
    """Folders and modules, relative to the root, of which this session collected every test; None where unknown."""
    if config.getoption("lf", False):  # modules without a failure are not even looked at
        return None
    paths = [Path(config.invocation_params.dir, arg).resolve() for arg in config.args if "::" not in arg]
    return [p.relative_to(config.rootpath) for p in paths if p == config.rootpath or config.rootpath in p.parents]
