"""The end of a session, in the one process that saw every report: baselines updated, reports written."""

from __future__ import annotations

import os
import platform
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import pytest

import pytest_llmperf
from pytest_llmperf.baselines import store, unused
from pytest_llmperf.baselines.series import utc
from pytest_llmperf.baselines.update import Fresh
from pytest_llmperf.engines.base import Engine
from pytest_llmperf.errors import BaselineError, ConfigError, nearest
from pytest_llmperf.hardware import Hardware
from pytest_llmperf.measure.metrics import Metric
from pytest_llmperf.options import Options
from pytest_llmperf.records import jsonfile
from pytest_llmperf.records.gaps_and_sweeps import Sweep
from pytest_llmperf.records.histories import History
from pytest_llmperf.records.results import Result, ServerRecord, SessionRecord, message
from pytest_llmperf.records.text import plural
from pytest_llmperf.report import github
from pytest_llmperf.report.formats import ReportFormat
from pytest_llmperf.server_config import without_login
from pytest_llmperf.session.schedule import Plan
from pytest_llmperf.session.server_records import merged
from pytest_llmperf.session.session_gaps import SessionGaps

#: Why there is no verdict on a test that no report tells of.
NOT_RUN = "the session ended before it was judged"


class SessionFinish:
    """Gathers what the test reports carry and turns it into a ``SessionRecord``, baselines and report files."""

    def __init__(
        self,
        options: Options,
        rootpath: Path,
        state_dir: Path,
        args: Sequence[str],
        engines: Mapping[str, Engine],
        metrics: Mapping[str, Metric],
        formats: Mapping[str, ReportFormat],
    ) -> None:
        """Raises ``ConfigError`` for an export in a format that is not in ``formats``."""
        for name, _ in options.export:
            if name not in formats:
                raise ConfigError(f"--llmperf-export {name}: no such report format{nearest(name, formats)}")
        self._formats = formats
        self._metrics = metrics
        self._options = options
        self._root = rootpath
        self._state_dir = state_dir
        self._command = shlex.join(["pytest", *map(without_login, args)])
        self._started = time.time()
        self._results: dict[tuple[str, str, str, str], Result] = {}
        self._servers: dict[str, ServerRecord] = {}
        self._fresh: dict[tuple[str, str, str], Fresh] = {}
        self._tuned = SessionGaps(options, state_dir, engines, metrics)
        self._sweeps: dict[tuple[str, str], list[Sweep]] = {}
        self._messages: list[dict[str, str]] = []
        self._past: list[History] = []
        self._skipped: set[str] = set()
        self._lost: dict[str, str] = {}
        self.record: SessionRecord | None = None
        self._previous: SessionRecord | None = None
        if options.previous and options.previous.exists():  # now: it may be where this run's JSON goes
            self._previous = jsonfile.load(options.previous)
        elif options.previous:
            self.say("note", f"--llmperf-previous {options.previous}: no such file, so this counts as a first run")

    def take(self, payload: Mapping[str, Any]) -> None:
        """Take one report's payload. A later one of the same test replaces the earlier one (its confirmation)."""
        for data in payload["results"]:
            result = Result.from_json(data)
            self._results[result.nodeid, result.engine, result.server, result.metric] = result
        for data in payload["servers"]:
            server = ServerRecord.from_json(data)
            known = self._servers.get(server.key)
            self._servers[server.key] = merged(known, server) if known else server
        for data in payload["fresh"]:
            fresh = Fresh.from_json(data)
            self._fresh[fresh.test, fresh.engine, fresh.fingerprint.key] = fresh
        self._tuned.take(payload)
        sweeps = [Sweep.from_json(data) for data in payload.get("sweeps", ())]
        if sweeps:
            self._sweeps[sweeps[0].test, sweeps[0].engine] = sweeps
        for note in payload["notes"]:
            self.say("note", note)

    def skipped(self, nodeid: str) -> None:
        """A test that its author skips plans nothing."""
        self._skipped.add(nodeid)

    def lost(self, nodeid: str, why: str) -> None:
        """A test that its worker took along when it crashed."""
        self._lost[nodeid] = why

    def say(self, kind: str, text: str) -> None:
        """One message for the end of the session, once; see ``report.records.MESSAGE_KINDS``."""
        said = message(kind, text)
        if said not in self._messages:
            self._messages.append(said)

    @property
    def errors(self) -> list[str]:
        """What was asked for and could not be written."""
        return [m["text"] for m in self._messages if m["kind"] == "error"]

    def finish(
        self, plan: Plan, *, hardware: Hardware, interrupted: bool, scope: Sequence[PurePath] | None = None
    ) -> None:
        """Update baselines, then build the record and write the files asked for.

        ``plan`` is what was collected, from everything under the paths in ``scope``; None when that says nothing about
        which baselines are still in use.
        """
        for result in self._unjudged(plan):
            self._results[result.nodeid, result.engine, result.server, result.metric] = result
        if self._options.html:
            self._try(self._histories)  # before this run joins them
        if self._fresh:
            self._try(self._baselines)
        if plan.tests and scope is not None:
            self._try(lambda: self._unused(plan.tests, scope))
        for result in self._results.values():
            if result.drift:
                self.say("drift", f"{result.nodeid}: {result.drift}")
        record = self.record = self._record(plan, hardware, interrupted)
        for write in (self._html, self._github, self._json):  # the last one tells of the others' errors
            self._try(partial(write, record))
        for name, path in self._options.export:  # after ours: a plugin's mistake costs no report but its own
            self._try(partial(self._export, record, name, path))

    def _record(self, plan: Plan, hardware: Hardware, interrupted: bool) -> SessionRecord:
        from pytest_llmperf.stats import session_alpha  # here: scipy is for sessions that judge

        return SessionRecord(
            session={
                "started": utc(self._started),
                "duration_s": round(time.time() - self._started, 3),
                "command": self._command,
                "gated": plan.gated,
                "level": self._options.level,
                "alpha": session_alpha(self._options.level, max(plan.gated, 1)),
                "host": hardware.host,
                "hardware": asdict(hardware),
                "versions": {
                    "python": platform.python_version(),
                    "pytest": pytest.__version__,
                    "pytest-llmperf": pytest_llmperf.__version__,
                },
                "ignored_guards": sorted(self._options.ignore_guards),
                "interrupted": interrupted,
                "messages": self._messages,
            },
            servers=tuple(self._servers.values()),
            results=tuple(self._results.values()),
            gaps=self._tuned.gaps(tuple(self._results.values())),
            curves=self._tuned.curves(),
            sweeps=tuple(s for found in self._sweeps.values() for s in found),
        )

    def _unjudged(self, plan: Plan) -> list[Result]:
        """What was planned, and no report has told of: its worker crashed, or it was not run any more."""
        judged = {(r.nodeid, r.metric) for r in self._results.values()}
        crashes = {plan.groups[nodeid]: why for nodeid, why in self._lost.items() if nodeid in plan.groups}
        return [
            metric.unjudged("error", (self._lost.get(nodeid) or crashes.get(plan.groups[nodeid]) or NOT_RUN,))
            for nodeid, metrics in plan.planned.items()
            if nodeid not in self._skipped
            for metric in metrics
            if (metric.nodeid, metric.metric) not in judged
        ]

    def _try(self, step: Callable[[], None]) -> None:
        """One thing that cannot be done keeps no other from being done."""
        try:
            step()
        except (BaselineError, ConfigError) as e:
            self.say("error", str(e))

    def _baselines(self) -> None:
        from pytest_llmperf.baselines.record_session import SessionRecording  # here: scipy is for sessions that judge

        o = self._options
        recording = SessionRecording(
            o.baselines,
            self._state_dir,
            utc(self._started),
            update=o.update is not None,
            accept_regression=o.accept_regression,
            ci=o.ci,
            force=o.update == "force",
        )
        for kind, text in recording.run(tuple(self._fresh.values()), self._tuned.usual):
            self.say(kind, text)

    def _unused(self, tests: Sequence[tuple[str, str]], scope: Sequence[PurePath]) -> None:
        folder = self._options.baselines
        homes = [_home(folder, engine, path) for engine in {e for _, e in tests} for path in scope]

        def within(path: Path) -> bool:
            return any(home in (path, *path.parents) for home in homes)

        found = [path for path in unused.unused(folder, tests) if within(path)]
        if not found:
            return
        self.say(
            "unused",
            f"{plural(len(found), 'baseline file')} of no collected test, like {_relative(found[0], self._root)}: "
            "see `llmperf baselines unused`",
        )
        for pair in unused.renamed(folder, tests):
            if within(store.place(folder, pair.old, pair.engine)):
                self.say("unused", f"{pair.old} [{pair.engine}] is gone; its baseline may be {pair.new}'s: "
                         f"llmperf baselines rename '{pair.old}' '{pair.new}'")  # fmt: skip

    def _json(self, record: SessionRecord) -> None:
        if self._options.json:
            jsonfile.dump(record, self._options.json)

    def _export(self, record: SessionRecord, name: str, path: Path) -> None:
        jsonfile.write(path, self._formats[name](record))

    def _html(self, record: SessionRecord) -> None:
        if self._options.html:
            from pytest_llmperf.report import html  # needs the extra "report"

            page = html.page(record, self._past, html.tails(record, self._root), self._previous)
            jsonfile.write(self._options.html, page)

    def _histories(self) -> None:
        from pytest_llmperf.baselines import history

        for r in self._results.values():
            if r.baseline is not None:
                series = store.read(self._options.baselines / r.baseline.path)
                metric = self._metrics[r.metric]
                self._past.append(history.of(series, metric, self._options.baselines, self._tuned.prior(r)))

    def _github(self, record: SessionRecord) -> None:
        path = os.environ.get("GITHUB_STEP_SUMMARY")
        if not path:
            return
        try:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(github.summary(record))
        except OSError as e:
            raise ConfigError(f"GITHUB_STEP_SUMMARY={path} cannot be written: {e.strerror or e}") from e


def _home(folder: Path, engine: str, path: PurePath) -> Path:
    """Where the baselines of all tests under ``path`` (a folder or module, relative to the root) lie."""
    parts = path.with_suffix("").parts if path.suffix == ".py" else path.parts
    return folder.joinpath(*map(store.slug, (engine, *parts)))


def _relative(path: Path, root: Path) -> Path:
    return path.relative_to(root) if root in path.parents else path
