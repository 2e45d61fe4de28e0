"""The launches of a sweep as rounds of its test: one run each, and one report at the end.

Every launch but the last is reported as a rerun: ``m`` measured, ``u`` unfit (its config did not start, died, gave
invalid answers, or fails the test). An unfit variation is a result; an unfit base ends the sweep, since nothing is left
to compare with. Each report carries all that was measured until then, so that nothing is lost when pytest is stopped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from _pytest.runner import runtestprotocol  # as in rounds

from pytest_llmperf.errors import LaunchError, LlmperfError, MeasurementError, ServerDiedError
from pytest_llmperf.records.encode import plain
from pytest_llmperf.session.launch_rounds import (
    MEASURED,
    again,
    as_protocol,
    as_rerun,
    reporting_as,
    stop_timer,
    tear_down,
)
from pytest_llmperf.session.makereport import headline, in_short
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.session.server_records import server_record
from pytest_llmperf.session.sweep_test import PriorOf, SweepTest
from pytest_llmperf.tuning.plan import BASE

#: What a launch is that gave no value, or one that the test refuses.
UNFIT = "unfit"
#: What a config does wrong by itself, rather than the test.
_RESULTS = (LaunchError, MeasurementError)


def run(item: pytest.Item, nextitem: pytest.Item | None, test: SweepTest, session: PerfSession) -> None:
    """Run ``item`` on every launch of its sweep."""
    stop_timer(item)  # each launch is timed for itself
    for _ in test.slots():
        as_protocol(item, test, partial(_once, item, test))
        if not test.goes_on:
            break
    tear_down(item, nextitem)
    session.release(test.group)


def _once(item: pytest.Item, test: SweepTest) -> None:
    """Run ``item`` on one launch, and note whether the sweep goes on after it."""
    known = len(item.user_properties)
    item._report_sections.clear()  # or each report would carry what all launches before it have printed
    with reporting_as(item):
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, nextitem=again(item), log=False)
        test.goes_on = not test.last and all(r.passed or _is_unfit(r) for r in reports)
        if test.goes_on:
            del item.user_properties[known:]  # the next launch records them anew
            reports = [r for r in reports if r.when == "call" or _is_unfit(r)]
            for report in reports:
                as_rerun(report, UNFIT if _is_unfit(report) else MEASURED)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _is_unfit(report: pytest.TestReport) -> bool:
    return getattr(report, "llmperf", {}).get("round") == UNFIT


def conclude(
    test: SweepTest,
    report: pytest.TestReport,
    error: BaseException | None,
    prior: PriorOf,
    ignored: Sequence[str],
) -> None:
    """Say what became of this launch, and give ``report`` what the sweep has found so far."""
    if report.when != "call" and report.passed:
        return
    if isinstance(error, LlmperfError):
        report.longrepr = str(error)
    if isinstance(error, _RESULTS):
        test.discard()
    if report.when == "call" and report.passed and test.missing():
        report.outcome = "failed"
        report.longrepr = (
            f"{test.nodeid}: is a sweep and has measured {', '.join(test.missing())}: "
            "call llm_server.stream(...) or llm_server.load(...)"
        )
    unfit = report.when != "teardown" and not report.passed and test.slot.name != BASE
    if unfit:
        _unfit(test, report, error)
    if report.when == "call" and report.passed and test.last and test.complaints:
        report.outcome = "failed"
        report.longrepr = "\n\n".join(test.complaints)
    vars(report)["llmperf"] = _payload(test, error, prior, ignored)
    if unfit:
        as_rerun(report, UNFIT)


def _unfit(test: SweepTest, report: pytest.TestReport, error: BaseException | None) -> None:
    name = test.slot.name
    if isinstance(error, _RESULTS):
        cause = _cause(error, test)
    elif report.skipped:
        cause = f"skipped: {error}"
        test.discard()
    else:
        cause = "the test fails with it"
        test.complaints.append(f"with {name}:\n{report.longreprtext}")
    test.failures[name] = cause


def _cause(error: LaunchError | MeasurementError, test: SweepTest) -> str:
    """The error in one line, without the names of server, launch and request: the sweep's row says whose it is."""
    said = headline(error).removeprefix(test.members[test.slot.name].label).lstrip(": ,")
    if isinstance(error, MeasurementError):
        return re.sub(r"^the measurement is invalid: (request \S+: )?", "invalid: ", said)
    if isinstance(error, ServerDiedError):
        return re.sub(r"^launch \S+, died: ", "died: ", said)
    if said.startswith("is up"):
        return said
    return "did not start: " + re.sub(r"^did not start \([\d.]+ s\): ", "", said)


def _payload(
    test: SweepTest,
    error: BaseException | None,
    prior: PriorOf,
    ignored: Sequence[str],
) -> dict[str, Any]:
    failure = in_short(error) if isinstance(error, LaunchError) else None
    records = [
        server_record(config, test.launched(name), failure if name == test.slot.name else None)
        for name, config in test.members.items()
        if test.launched(name) or (failure and name == test.slot.name)
    ]
    return {
        "results": [],
        "servers": [plain(record) for record in records],
        "fresh": [],
        "notes": [*(f"{x.config.label}: {note}" for x in test.launches.values() for note in x.notes), *test.notes],
        "sweeps": [plain(s) for s in test.sweeps(prior, ignored)],
        "slot": test.slot.name,
        "error": isinstance(error, LaunchError),
    }
