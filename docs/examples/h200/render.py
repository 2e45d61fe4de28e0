"""Writes what the example page shows out of the stored reports: python docs/examples/h200/render.py

The terminal output in ``../h200.md`` (each block after ``<!-- report: NAME -->``), and an HTML page beside each JSON.
"""

from __future__ import annotations

import re
from pathlib import Path

from pytest_llmperf.baselines import history, store
from pytest_llmperf.report import html, jsonfile, terminal
from pytest_llmperf.report.records import SessionRecord

HERE = Path(__file__).parent
PAGE = HERE.with_suffix(".md")
BASELINES = HERE / "baselines"
_BLOCK = re.compile(r"(<!-- report: ([\w-]+) -->\n```text\n).*?(```\n)", re.DOTALL)


def session(name: str) -> SessionRecord:
    return jsonfile.load(HERE / f"{name}.json")


def rendered(page: str) -> str:
    """``page`` with every report block as the terminal shows it today."""
    return _BLOCK.sub(lambda m: f"{m[1]}{terminal.render(session(m[2]), width=112).rstrip()}\n{m[3]}", page)


def web_page(name: str) -> str:
    record = session(name)
    stored = [store.read(BASELINES / r.baseline.path) for r in record.results if r.baseline]
    metrics = [r.metric for r in record.results if r.baseline]
    return html.page(record, [history.of(s, m, BASELINES) for s, m in zip(stored, metrics, strict=True)])


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for report in sorted(HERE.glob("*.json")):
        report.with_suffix(".html").write_text(web_page(report.stem), encoding="utf-8")
