"""The end of a session, in the one process that saw every report: baselines updated, reports written."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pytest_llmperf.baselines import store, unused, update
from pytest_llmperf.baselines.series import utc
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.options import Options
from pytest_llmperf.report import github, jsonfile
from pytest_llmperf.report.records import LaunchRecord, Result, ServerRecord, SessionRecord, message
from pytest_llmperf.schedule import Plan
from pytest_llmperf.server.config import ServerConfig
from pytest_llmperf.server.gpus import Hardware
from pytest_llmperf.server.launch import Launch
from pytest_llmperf.stats import session_alpha


class Ending:
    """Gathers what the test reports carry and turns it into a ``SessionRecord``, baselines and report files."""

    def __init__(self, options: Options, rootpath: Path, state_dir: Path) -> None:
        self._options = options
        self._state_dir = state_dir
        self._root = rootpath
        self._started = time.time()
        self._results: dict[tuple[str, str, str], Result] = {}
        self._servers: dict[str, ServerRecord] = {}
        self._fresh: dict[tuple[str, str, str], update.Fresh] = {}
        self._messages: list[dict[str, str]] = []
        self.record: SessionRecord | None = None

    def take(self, payload: Mapping[str, Any]) -> None:
        """Take one report's payload. A later one of the same test replaces the earlier one (its confirmation)."""
        for data in payload["results"]:
            result = Result.from_json(data)
            # A result that never reached a fingerprint (an invalid one) gives way to one that did.
            self._results[result.nodeid, result.metric, str(sorted(result.fingerprint.items()))] = result
        for data in payload["servers"]:
            server = ServerRecord.from_json(data)
            known = self._servers.get(server.key)
            self._servers[server.key] = _merged(known, server) if known else server
        for data in payload["fresh"]:
            fresh = update.Fresh.from_json(data)
            self._fresh[fresh.test, fresh.engine, fresh.fingerprint.key] = fresh

    def say(self, kind: str, text: str) -> None:
        """One message for the end of the session; see ``report.records.MESSAGE_KINDS``."""
        self._messages.append(message(kind, text))

    def finish(self, plan: Plan, *, hardware: Hardware, interrupted: bool) -> None:
        """Update baselines, then build the record and write the files asked for. ``plan`` is what was collected."""
        if self._options.update:
            self._update()
        if plan.tests and not interrupted:
            self._unused(plan.tests)
        o = self._options
        self.record = SessionRecord(
            session={
                "started": utc(self._started),
                "duration_s": round(time.time() - self._started, 3),
                "command": shlex.join(["pytest", *sys.argv[1:]]),
                "gated": plan.gated,
                "level": o.level,
                "alpha": session_alpha(o.level, plan.gated),
                "host": hardware.host,
                "hardware": asdict(hardware),
                "interrupted": interrupted,
                "messages": self._messages,
            },
            servers=tuple(self._servers.values()),
            results=tuple(self._results.values()),
        )
        if o.json:
            jsonfile.dump(self.record, o.json)
        if o.html:
            from pytest_llmperf.report import html  # needs the extra "report"

            o.html.parent.mkdir(parents=True, exist_ok=True)
            o.html.write_text(html.page(self.record), encoding="utf-8")
        self._github()

    def _update(self) -> None:
        o = self._options
        changes: list[update.Change] = []
        for fresh in self._fresh.values():
            path = store.path_of(o.baselines, fresh.test, fresh.engine, fresh.fingerprint)
            try:
                series = store.read(path) if path.exists() else None
                planned = update.plan(
                    series, fresh, accept_regression=o.accept_regression, ci=o.ci, force=o.update == "force"
                )
            except BaselineError as e:
                self.say("error", str(e))
                continue
            if isinstance(planned, update.Refusal):
                self.say("refused", str(planned))
            else:
                changes.append(planned)
        if not changes:
            return
        try:
            for line in update.apply(o.baselines, changes, self._state_dir):
                self.say("update", line)
        except BaselineError as e:
            self.say("error", str(e))

    def _unused(self, tests: Sequence[tuple[str, str]]) -> None:
        folder = self._options.baselines
        try:
            found = unused.unused(folder, tests)
            renames = unused.renamed(folder, tests) if found else []
        except BaselineError as e:
            self.say("error", str(e))
            return
        if found:
            self.say(
                "unused",
                f"{len(found)} baseline files belong to no collected test, like {found[0].relative_to(self._root)}: "
                "see `llmperf baselines unused`",
            )
        for pair in renames:
            self.say("unused", f"{pair.old} [{pair.engine}] is gone; its baseline may be {pair.new}'s: "
                     f"llmperf baselines rename '{pair.old}' '{pair.new}'")  # fmt: skip

    def _github(self) -> None:
        path = os.environ.get("GITHUB_STEP_SUMMARY")
        if path and self.record:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(github.summary(self.record))


def server_record(config: ServerConfig, launches: Sequence[Launch], failure: str | None = None) -> ServerRecord:
    """What the session says about one config and its ``launches``; ``failure`` is a launch that did not come up."""
    newest = launches[-1] if launches else None
    return ServerRecord(
        key=config.key,
        engine=config.engine,
        config=config.canonical(),
        effective=asdict(newest.effective) if newest else {},
        launches=tuple(
            LaunchRecord(
                id=x.id,
                startup_s=round(x.startup_s, 3),
                cache_state=x.cache_state,
                log=str(x.log_path) if x.log_path else None,
                reused=x.reused,
            )
            for x in launches
        ),
        failures=(failure,) if failure else (),
    )


def _merged(known: ServerRecord, more: ServerRecord) -> ServerRecord:
    """Both reports' launches, each once, in the order of their ids (which is that of time)."""
    launches = {x.id: x for x in (*known.launches, *more.launches)}
    return replace(
        more,
        effective=more.effective or known.effective,
        launches=tuple(launches[i] for i in sorted(launches)),
        failures=tuple(dict.fromkeys((*known.failures, *more.failures))),
    )
