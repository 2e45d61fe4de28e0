"""What the report of one performance test says (failed, skipped, an error) and what it carries to the end.

A test that fails gives a result for every metric that it declares: those it did not come to judge have verdict
``error``, or ``invalid`` where the measurement was, and the first line of why.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from _pytest.junitxml import xml_key  # pytest offers no public way to its JUnit file

from pytest_llmperf.baselines.series import StoredLaunch
from pytest_llmperf.baselines.update import Fresh
from pytest_llmperf.errors import ConfigError, LaunchError, LlmperfError, MeasurementError
from pytest_llmperf.records.encode import plain
from pytest_llmperf.records.results import FAILING, VERDICTS, Result
from pytest_llmperf.report import junit
from pytest_llmperf.report.explain import explain
from pytest_llmperf.session.perf_test import GatedMetric, PerfTest
from pytest_llmperf.session.server_records import server_record

#: What stands over our words in pytest's report of a failure.
_SECTION = "llmperf"


def conclude(test: PerfTest, item: pytest.Item, report: pytest.TestReport, error: BaseException | None) -> None:
    """Give ``report`` its verdicts: vacuous tests fail, inconclusive ones are skipped, results travel with it."""
    if report.when == "call" and report.passed and (error := _vacuous(test)):
        report.outcome = "failed"
    if isinstance(error, LlmperfError):
        report.longrepr = str(error)  # it says what to do; a traceback of ours would not
    if report.failed and test.ended is None:
        test.ended = _ended(report, error)
    results = test.results
    if report.when == "call" and report.passed and test.decided:
        _skip_if_inconclusive(test, report, results)
    if isinstance(error, AssertionError):
        _explain(report, results)
    vars(report)["llmperf"] = _payload(test, report, error, results)  # pytest serializes all that a report holds
    known = dict(report.user_properties)
    said = [p for r in results for p in junit.properties(r)]
    if report.failed or (report.skipped and results):
        said.append((junit.KIND, _kind(error, results)))
    properties = [(name, value) for name, value in said if name not in known]
    report.user_properties.extend(properties)
    item.user_properties.extend(properties)  # JUnit takes those of the teardown's report


def _vacuous(test: PerfTest) -> ConfigError | None:
    """A test that judged nothing would be green for nothing."""
    if test.ab and not test.gaps:
        return ConfigError(
            f"{test.nodeid}: has compared nothing: write `result = ab(lambda server: server.stream(output_tokens=128))`"
        )
    missing = test.pending() if test.decided else test.unjudged()
    if missing:
        return ConfigError(
            f"{test.nodeid}: declares {', '.join(missing)} and has not judged it: write "
            f"`assert run.{missing[0]} in baseline` or `baseline.check(run)`"
        )
    return None


def _skip_if_inconclusive(test: PerfTest, report: pytest.TestReport, results: tuple[Result, ...]) -> None:
    doubtful = [f"{r.metric}: {r.reasons[0]}" for r in results if r.verdict == "inconclusive"]
    if doubtful:
        path, _, line = test.location.rpartition(":")
        report.outcome = "skipped"
        report.longrepr = (path, int(line), f"Skipped: inconclusive: {'; '.join(doubtful)}")


def _explain(report: pytest.TestReport, results: tuple[Result, ...]) -> None:
    """The whole of each failed verdict; pytest shortens what an assertion says for itself."""
    add = getattr(report.longrepr, "addsection", None)
    failed = [r for r in results if (r.verdict in FAILING or r.verdict == "inconclusive") and r.value is not None]
    if add is not None and failed:
        add(_SECTION, "\n\n".join("\n".join(explain(r)) for r in failed) + "\n")


def is_explained(report: pytest.TestReport) -> bool:
    """Whether ``report`` says all of why its test failed, in our words."""
    sections = getattr(report.longrepr, "sections", ())
    return isinstance(report.longrepr, str) or any(name == _SECTION for name, *_ in sections)


def _payload(
    test: PerfTest, report: pytest.TestReport, error: BaseException | None, results: tuple[Result, ...]
) -> dict[str, Any]:
    failure = in_short(error) if isinstance(error, LaunchError) else None
    servers = [
        server_record(
            c,
            [x for x in test.launches.values() if x.config == c],
            failure if test.failed in (None, c) else None,
        )
        for c in test.configs
    ]
    return {
        "nodeid": test.nodeid,
        "results": [r.to_json() for r in results],
        "servers": [plain(s) for s in servers],
        "fresh": [f.to_json() for f in _to_record(test)]
        if report.when == "call" and (test.decided or test.suspect)
        else [],
        "notes": [*(f"{x.config.label}: {note}" for x in test.launches.values() for note in x.notes), *test.notes],
        "gaps": plain(test.gaps),
        "loads": plain(test.loads),
        "error": isinstance(error, LaunchError),
    }


def in_short(error: LaunchError) -> str:
    """What happened and where the log is: the test's report has the engine's own words already."""
    return "; ".join([headline(error), *(x for x in str(error).splitlines()[-1:] if x.startswith("full log:"))])


def into_junit(config: pytest.Config, report: pytest.TestReport) -> None:
    """Have pytest's JUnit file, which has taken ``report``, call a server's death during the test an error, and tell
    the kind of a crash, whose properties it would look for in a teardown that never comes."""
    xml = config.stash.get(xml_key, None)
    if xml is None:
        return
    if getattr(report, "llmperf", {}).get("error"):
        for node in xml.node_reporter(report).nodes:
            if node.tag == "failure":
                node.tag = "error"
                xml.stats["failure"] -= 1
                xml.stats["error"] += 1
    if report.when not in ("setup", "call", "teardown"):
        for name, value in report.user_properties:
            xml.node_reporter(report).add_property(name, value)


def headline(error: LlmperfError) -> str:
    """The first line of a message, with the list that it announces."""
    first, *others = str(error).splitlines()
    items = [line.strip() for line in others if line.startswith("  ")]
    return f"{first} {'; '.join(items)}" if first.endswith(":") else first


def _to_record(test: PerfTest) -> Iterable[Fresh]:
    """What ``--update-baselines`` may store of ``test``: one entry per fingerprint, all its gated metrics together. A
    suspect that waits for fresh launches is one for good where the session ends before."""
    by_mark: dict[str, list[GatedMetric]] = {}
    for gated in test.gated.values():
        if gated.result is not None:
            by_mark.setdefault(gated.fingerprint.key, []).append(gated)
    for group in by_mark.values():
        launches: dict[str, StoredLaunch] = {}
        for gated in group:
            for launch in (*gated.screened, *gated.confirmed):
                known = launches.get(launch.id, launch)
                launches[launch.id] = replace(known, metrics={**known.metrics, **launch.metrics})
        yield Fresh(
            test=test.test,
            engine=group[0].config.engine,
            fingerprint=group[0].fingerprint,
            launches=tuple(launches.values()),
            verdicts={g.metric.name: g.recordable_as for g in group},
        )


def _ended(report: pytest.TestReport, error: BaseException | None) -> tuple[str, tuple[str, ...]]:
    """The verdict of what a failing test has not judged, and why."""
    if isinstance(error, MeasurementError):
        first, *reasons = (line.strip() for line in str(error).splitlines())
        return "invalid", tuple(reasons) or (first,)
    if isinstance(error, LlmperfError):
        return "error", (headline(error),)
    first = next(iter((str(error) if error else report.longreprtext).splitlines()), "")
    if error is None or isinstance(error, pytest.fail.Exception):
        return "error", (first or "failed",)
    return "error", (f"{type(error).__name__}: {first}".removesuffix(": "),)


#: What a CI may want to know of a test that is not green, where its worst verdict does not say so by itself.
_KINDS = {"regressed": "regression", "error": "test"}


def _kind(error: BaseException | None, results: tuple[Result, ...]) -> str:
    """``infrastructure`` (a server that did not start, or died), ``misuse``, ``regression``, another verdict's word, or
    ``test``: something else that the test did."""
    if isinstance(error, LaunchError):
        return "infrastructure"
    if isinstance(error, LlmperfError) and not isinstance(error, MeasurementError):
        return "misuse"
    found = {r.verdict for r in results}
    worst = next((v for v in (*VERDICTS[1:], "error") if v in found and v not in ("passed", "improved")), "error")
    return _KINDS.get(worst, worst)
