"""What the report of one performance test says (failed, skipped, an error) and what it carries to the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from pytest_llmperf.baselines.explain import explain
from pytest_llmperf.baselines.series import StoredLaunch
from pytest_llmperf.baselines.update import Fresh
from pytest_llmperf.errors import LaunchError, LlmperfError, MeasurementError
from pytest_llmperf.measure.metrics import METRICS
from pytest_llmperf.records.encode import plain
from pytest_llmperf.records.results import FAILING, Result
from pytest_llmperf.report import junit
from pytest_llmperf.session.perf_test import GatedMetric, PerfTest
from pytest_llmperf.session.server_records import server_record


def conclude(test: PerfTest, item: pytest.Item, report: pytest.TestReport, error: BaseException | None) -> None:
    """Give ``report`` its verdicts: vacuous tests fail, inconclusive ones are skipped, results travel with it."""
    if isinstance(error, LlmperfError):
        report.longrepr = str(error)  # it says what to do; a traceback of ours would not
    if report.when == "call" and report.passed:
        _fail_if_vacuous(test, report)
    results = (*test.results, *_invalid(test, error))
    if report.when == "call" and report.passed and test.decided:
        _skip_if_inconclusive(test, report, results)
    if isinstance(error, AssertionError):
        _explain(report, results)
    vars(report)["llmperf"] = _payload(test, report, error, results)  # pytest serializes all that a report holds
    if report.when == "call":
        properties = [p for r in results for p in junit.properties(r)]
        report.user_properties.extend(properties)
        item.user_properties.extend(properties)  # JUnit takes those of the teardown's report


def _fail_if_vacuous(test: PerfTest, report: pytest.TestReport) -> None:
    """A test that judged nothing would be green for nothing."""
    if test.ab and not test.gaps:
        report.outcome = "failed"
        report.longrepr = (
            f"{test.nodeid}: has compared nothing: write `result = ab(lambda server: server.stream(output_tokens=128))`"
        )
        return
    missing = test.pending() if test.decided else test.unjudged()
    if missing:
        report.outcome = "failed"
        report.longrepr = (
            f"{test.nodeid}: declares {', '.join(missing)} and has not judged it: write "
            f"`assert run.{missing[0]} in baseline` or `baseline.check(run)`"
        )


def _skip_if_inconclusive(test: PerfTest, report: pytest.TestReport, results: tuple[Result, ...]) -> None:
    doubtful = [f"{r.metric}: {r.reasons[0]}" for r in results if r.verdict == "inconclusive"]
    if doubtful:
        path, _, line = test.location.rpartition(":")
        report.outcome = "skipped"
        report.longrepr = (path, int(line), f"Skipped: inconclusive: {'; '.join(doubtful)}")


def _explain(report: pytest.TestReport, results: tuple[Result, ...]) -> None:
    """The whole of each failed verdict; pytest shortens what an assertion says for itself."""
    add = getattr(report.longrepr, "addsection", None)
    failed = [r for r in results if r.verdict in FAILING or r.verdict == "inconclusive"]
    if add is not None and failed:
        add("llmperf", "\n\n".join("\n".join(explain(r)) for r in failed) + "\n")


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
        "fresh": [f.to_json() for f in _to_record(test)] if report.when == "call" and test.decided else [],
        "notes": [*(f"{x.config.label}: {note}" for x in test.launches.values() for note in x.notes), *test.notes],
        "gaps": plain(test.gaps),
        "loads": plain(test.loads),
        "error": isinstance(error, LaunchError),
    }


def in_short(error: LaunchError) -> str:
    """What happened and where the log is: the test's report has the engine's own words already."""
    return "; ".join([headline(error), *(x for x in str(error).splitlines()[-1:] if x.startswith("full log:"))])


def headline(error: LlmperfError) -> str:
    """The first line of a message, with the list that it announces."""
    first, *others = str(error).splitlines()
    items = [line.strip() for line in others if line.startswith("  ")]
    return f"{first} {'; '.join(items)}" if first.endswith(":") else first


def _invalid(test: PerfTest, error: BaseException | None) -> list[Result]:
    """An invalid measurement is a result too, of every declared metric that has none."""
    if not isinstance(error, MeasurementError):
        return []
    first, *reasons = (line.strip() for line in str(error).splitlines())
    return [
        Result(
            nodeid=test.nodeid,
            test=test.test,
            engine=test.engine,
            server=test.configs[0].key,
            metric=name,
            unit=METRICS[name].unit,
            higher_is_better=METRICS[name].higher_is_better,
            verdict="invalid",
            reasons=tuple(reasons) or (first,),
            location=test.location,
        )
        for name in test.pending()
    ]


def _to_record(test: PerfTest) -> Iterable[Fresh]:
    """What ``--update-baselines`` may store of ``test``: one entry per fingerprint, all its gated metrics together."""
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
            verdicts={g.metric.name: g.result.verdict for g in group if g.result},
        )
