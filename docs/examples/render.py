"""Writes what the example pages show out of the stored reports: python docs/examples/render.py

For each folder of reports: the terminal output in the page of its name (each block after ``<!-- report: NAME -->``),
and an HTML page beside each JSON. The launches are those of the report; the verdicts on them are today's, against the
launches that were stored when it was made. Where fresh launches would confirm a suspect now and did not then, it is
judged as with ``--llmperf-confirm 0``, which says so.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pytest_llmperf.baselines import history, store
from pytest_llmperf.baselines.fitted_priors import usual_spread
from pytest_llmperf.baselines.metric_verdict import GateTerms, verdict_of
from pytest_llmperf.baselines.series import Series, StoredLaunch, seconds
from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.measure.metrics import METRICS, Guard
from pytest_llmperf.records import jsonfile
from pytest_llmperf.records.results import Result, SessionRecord
from pytest_llmperf.report import html, terminal
from pytest_llmperf.stats import Prior

HERE = Path(__file__).parent
FOLDERS = tuple(sorted(p for p in HERE.iterdir() if p.with_suffix(".md").exists() and p.is_dir()))
_BLOCK = re.compile(r"(<!-- report: ([\w-]+) -->\n```text\n).*?(```\n)", re.DOTALL)


def session(folder: Path, name: str) -> SessionRecord:
    """A stored report with today's verdicts."""
    record = jsonfile.load(folder / f"{name}.json")
    baselines = folder / "baselines"
    judged = (judged_today(r, stored_then(r, record, baselines), record, baselines) for r in record.results)
    return replace(record, results=tuple(judged))


def stored_then(result: Result, record: SessionRecord, baselines: Path) -> Series | None:
    """The series that ``result`` was judged against, as it was when the session began."""
    if result.baseline is None:
        return None
    series, started = store.read(baselines / result.baseline.path), record.session["started"]
    epochs = [replace(e, launches=tuple(x for x in e.launches if x.recorded < started)) for e in series.epochs]
    return replace(series, epochs=tuple(e for e in epochs if e.launches))


def judged_today(result: Result, series: Series | None, record: SessionRecord, baselines: Path) -> Result:
    if series is None or result.verdict == "invalid":
        return result
    metric = METRICS[result.metric]
    assert result.baseline is not None
    assert len(series.launches(metric.name)) == result.baseline.launches, "these are not the launches of then"
    # GPU UUIDs are replaced in the reports, so that they do not give the host's identity
    host = series.launches(metric.name)[-1].host if result.host_known is not False else "another"
    caches = {x.id: x.cache_state for s in record.servers for x in s.launches}
    started = record.session["started"]

    def launches(confirming: bool) -> list[StoredLaunch]:
        return [
            StoredLaunch(x.id, started, host, caches.get(x.id), {metric.name: x.values}, result.provenance)
            for x in result.launches
            if (x.role == "confirm") == confirming
        ]

    terms = GateTerms(
        result.nodeid, result.test, result.engine, result.server, metric, series.fingerprint, host,
        alpha=result.alpha or 0.01, target=result.target, location=result.location,
        prior=Prior(s0=usual_spread(metric, builtin()[result.engine].launch_spread)),
    )  # fmt: skip
    how: dict[str, Any] = {"known": [series], "folder": baselines, "now": seconds(started), "guards": _guards(result)}
    seen = verdict_of(terms, launches(False), launches(True), **how)
    if seen.suspect:
        seen = verdict_of(replace(terms, confirm_launches=0), launches(False), **how)
    notes = dict.fromkeys((*seen.result.notes, *(n for n in result.notes if "compile cache" not in n)))
    return replace(
        seen.result, workload=result.workload, fingerprint=result.fingerprint, measurement_s=result.measurement_s,
        notes=tuple(notes),
    )  # fmt: skip


def _guards(result: Result) -> list[Guard]:
    names = {f.name for f in fields(Guard)}
    return [Guard(**{k: v for k, v in g.items() if k in names}) for g in result.guards]


def rendered(folder: Path, page: str) -> str:
    """``page`` with every report block as the terminal shows it today."""
    return _BLOCK.sub(lambda m: f"{m[1]}{terminal.render(session(folder, m[2]), width=112).rstrip()}\n{m[3]}", page)


def web_page(folder: Path, name: str) -> str:
    record, baselines = session(folder, name), folder / "baselines"
    told = [
        history.of(series, METRICS[r.metric], baselines)
        for r in record.results
        if (series := stored_then(r, record, baselines))
    ]
    return html.page(record, told)


if __name__ == "__main__":
    for folder in FOLDERS:
        page = folder.with_suffix(".md")
        page.write_text(rendered(folder, page.read_text(encoding="utf-8")), encoding="utf-8")
        for report in sorted(folder.glob("*.json")):
            report.with_suffix(".html").write_text(web_page(folder, report.stem), encoding="utf-8")
