"""Writes what the example pages show out of the stored reports: python docs/examples/render.py

For each folder of reports: the terminal output in the page of its name (each block after ``<!-- report: NAME -->``),
and an HTML page beside each JSON.
"""

from __future__ import annotations

import re
from pathlib import Path

from pytest_llmperf.baselines import history, store
from pytest_llmperf.measure.metrics import METRICS
from pytest_llmperf.records import jsonfile
from pytest_llmperf.records.results import SessionRecord
from pytest_llmperf.report import html, terminal

HERE = Path(__file__).parent
FOLDERS = tuple(sorted(p for p in HERE.iterdir() if p.with_suffix(".md").exists() and p.is_dir()))
_BLOCK = re.compile(r"(<!-- report: ([\w-]+) -->\n```text\n).*?(```\n)", re.DOTALL)


def session(folder: Path, name: str) -> SessionRecord:
    return jsonfile.load(folder / f"{name}.json")


def rendered(folder: Path, page: str) -> str:
    """``page`` with every report block as the terminal shows it today."""
    return _BLOCK.sub(lambda m: f"{m[1]}{terminal.render(session(folder, m[2]), width=112).rstrip()}\n{m[3]}", page)


def web_page(folder: Path, name: str) -> str:
    record, baselines = session(folder, name), folder / "baselines"
    stored = [store.read(baselines / r.baseline.path) for r in record.results if r.baseline]
    metrics = [METRICS[r.metric] for r in record.results if r.baseline]
    return html.page(record, [history.of(s, m, baselines) for s, m in zip(stored, metrics, strict=True)])


if __name__ == "__main__":
    for folder in FOLDERS:
        page = folder.with_suffix(".md")
        page.write_text(rendered(folder, page.read_text(encoding="utf-8")), encoding="utf-8")
        for report in sorted(folder.glob("*.json")):
            report.with_suffix(".html").write_text(web_page(folder, report.stem), encoding="utf-8")
