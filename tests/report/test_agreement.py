"""Every report shows the record's numbers: read back from each output and compared, to the digits it shows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from pytest_llmperf.records import jsonfile
from pytest_llmperf.records.results import Result
from pytest_llmperf.report import export, github, html, junit, terminal
from tests.report import samples

#: What one result says: None where a report shows that there is nothing.
Said = Mapping[str, object]

NUMBERS = ("value", "low", "high", "baseline", "target", "change", "mde")


def recorded(r: Result) -> Said:
    low, high = r.band or (None, None)
    return {
        "verdict": r.verdict, "value": r.value, "low": low, "high": high, "target": r.target, "change": r.change,
        "mde": r.mde, "baseline": r.baseline.value if r.baseline else None, "unit": r.unit, "metric": r.metric,
        "k": r.baseline.launches if r.baseline else None,
    }  # fmt: skip


def _number(text: str | None) -> float | None:
    if text is None or text in ("-", ""):
        return None
    return float(text.rstrip("%!")) / (100 if "%" in text else 1)


def _from_cells(cells: Mapping[str, str]) -> Said:
    cells = {"band": "-", "k": "-", **cells}
    band = re.fullmatch(r"\[([\d.]+), ([\d.]+)\]", cells["band"])
    k = {"-": None, "prior": 1}.get(cells["k"], cells["k"])
    return {
        "verdict": cells["verdict"].removesuffix(" (weak)").replace(" ", "_"),
        "low": _number(band and band[1]), "high": _number(band and band[2]), "k": None if k is None else int(k),
        "value": _number(cells["value"]), "baseline": _number(cells.get("baseline")), "mde": _number(cells.get("MDE")),
        "target": _number(cells.get("target")), "change": _number(cells.get("change")),
        "unit": cells["unit"], "metric": cells["metric"],
    }  # fmt: skip


def from_terminal() -> dict[str, Said]:
    """Cells of the table, cut where the heading's columns are."""
    heading, *lines = terminal.render(samples.FULL, width=250).splitlines()
    titles = [(m.start(), m.end(), m[0]) for m in re.finditer(r"\S+", heading)]
    tails = {(r.engine, r.test.partition("::")[2]): r.nodeid.partition("::")[2] for r in samples.FULL.results}
    out, engine = {}, ""
    for line in lines[: next(i for i, text in enumerate(lines) if not text)]:
        if line[0] == "▸":
            engine = line.split()[1]
        if line[0] in "✓✗?▲":
            cells = {}
            for m in re.finditer(r"\[[^]]+\]|[^\s]+(?: [^\s]+)*", line[2:]):
                start, end = m.start() + 2, m.end() + 2
                for left, right, title in titles:
                    if start == left or end == right:
                        cells[title] = m[0]
            out[tails[engine, cells["test"]]] = _from_cells(cells)
    return out


def from_markdown() -> dict[str, Said]:
    out, row, titles = {}, [], []
    for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(github.summary(samples.FULL)):
        if token.type == "tr_open":
            row = []
        elif token.type == "inline":
            row.append("".join(t.content for t in token.children or [] if t.type in ("text", "text_special")))
        elif token.type == "tr_close" and "test" in row:
            titles = row
        elif token.type == "tr_close" and len(row) == len(titles) and "verdict" in titles:
            cells = dict(zip(titles, row, strict=True))
            out[cells["test"]] = _from_cells(cells)
    return out


class _Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, str]] = []
        self._label: str | None = None
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "table":
            self._inside = "results" in str(attributes.get("class"))
        elif tag == "tr" and self._inside:
            self.rows.append({})
        elif tag == "td":
            self._label = attributes.get("data-label")

    def handle_endtag(self, tag: str) -> None:
        if tag == "td":
            self._label = None

    def handle_data(self, data: str) -> None:
        if self._inside and self._label:
            self.rows[-1][self._label] = self.rows[-1].get(self._label, "") + data


def from_html() -> dict[str, Said]:
    parser = _Cells()
    parser.feed(html.page(samples.FULL))
    return {row["test"]: _from_cells(row) for row in parser.rows if row}


def from_json(tmp_path: Path) -> dict[str, Said]:
    jsonfile.dump(samples.FULL, tmp_path / "r.json")
    out = {}
    for r in json.loads((tmp_path / "r.json").read_text())["results"]:
        low, high = r["band"] or (None, None)
        baseline = r["baseline"] or {}
        out[r["nodeid"].partition("::")[2]] = {
            **{k: r[k] for k in ("verdict", "value", "target", "change", "mde", "unit", "metric")},
            "low": low, "high": high, "baseline": baseline.get("value"), "k": baseline.get("launches"),
        }  # fmt: skip
    return out


def from_junit() -> dict[str, Said]:
    out = {}
    for r in samples.FULL.results:
        read = {name.rpartition(".")[2]: value for name, value in junit.properties(r)}
        out[r.nodeid.partition("::")[2]] = {
            **{k: _number(read.get(k)) for k in ("value", "target", "change", "mde", "baseline")},
            "low": _number(read.get("band_low")), "high": _number(read.get("band_high")),
            "k": int(read["baseline_launches"]) if "baseline_launches" in read else None,
            "verdict": read["verdict"], "unit": read["unit"], "metric": r.metric,
        }  # fmt: skip
    return out


@pytest.mark.parametrize("source", [from_terminal, from_markdown, from_html, from_json, from_junit])
def test_reports_agree(source: Callable[..., dict[str, Said]], tmp_path: Path) -> None:
    exact = source in (from_json, from_junit)
    seen = source(tmp_path) if source is from_json else source()
    assert len(seen) == len(samples.FULL.results)
    for result in samples.FULL.results:
        said, truth = seen[result.nodeid.partition("::")[2]], recorded(result)
        for name, expected in truth.items():
            where = f"{result.nodeid} {name}"
            if name in NUMBERS and expected is not None and not exact:
                rounding = {"change": 5.1e-4, "mde": 5.1e-4}.get(name)
                assert said[name] == pytest.approx(expected, abs=rounding, rel=None if rounding else 5.1e-4), where
            else:
                assert said[name] == expected, where


def _html_rows() -> list[list[str]]:
    parser = _AllRows()
    parser.feed(html.page(samples.FULL))
    return parser.rows


class _AllRows(HTMLParser):
    """Cells of every row of every table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "td"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.rows[-1][-1] += data


def _markdown_rows() -> list[list[str]]:
    rows: list[list[str]] = []
    inside = False
    for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(github.summary(samples.FULL)):
        if token.type in ("tr_open", "tr_close"):
            inside = token.type == "tr_open"
            rows += [[]] * inside
        elif token.type == "inline" and inside:
            text = "".join(t.content for t in token.children or [] if t.type in ("text", "text_special"))
            rows[-1] = [*rows[-1], text]
    return [cells for _, *cells in rows]  # the first is the icon


def _terminal_rows() -> list[list[str]]:
    lines = terminal.render(samples.FULL, width=250).splitlines()
    return [re.split(r" {2,}", line.lstrip("│ ▲▼✗")) for line in lines if line.startswith("│")]


@pytest.mark.parametrize("rows", [_terminal_rows, _markdown_rows, _html_rows])
def test_tables_of_gaps_sweeps_and_loads_agree_with_the_json(
    rows: Callable[[], list[list[str]]], tmp_path: Path
) -> None:
    """Each number is found in the row of what it belongs to, and is the JSON's to the digits that it shows."""
    jsonfile.dump(samples.FULL, tmp_path / "r.json")
    stored = json.loads((tmp_path / "r.json").read_text())
    [gap], [sweep], [curve] = stored["gaps"], stored["sweeps"], stored["curves"]
    expected = {
        ("test_single_stream", gap["reference"]): [
            gap["ratio"], *gap["interval"], gap["value"], gap["reference_value"], *gap["launches"],
        ],
        ("base",): [sweep["base_value"], 1.0, sweep["base_launches"]],
        **{
            (f"{e['knob']}={e['setting']}",): [e["value"], e["ratio"], *e["interval"], e["launches"]]
            for e in sweep["effects"] if e["ratio"] is not None
        },
        **{
            (str(p["concurrency"]),): [p["concurrency"], p["output_tok_s"], p["stream_tok_s"], p["ttft_ms"]]
            for p in curve["points"]
        },
    }  # fmt: skip
    seen = rows()
    for names, numbers in expected.items():
        [cells] = [r for r in seen if r[:1] == [names[0]] and set(names) <= set(r)]
        shown = [float(n) for n in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?=x?(?:[],]|\s|$))", "  ".join(cells))]
        assert shown == pytest.approx(numbers, rel=1e-3), names


def test_exports_agree() -> None:
    values = {
        f"{r.nodeid} ({r.engine})": r.value for r in samples.FULL.results if r.value is not None
    }  # fmt: skip
    bencher = {name: next(iter(m.values()))["value"] for name, m in export.bencher(samples.FULL).items()}
    benchmark = export.github_action_benchmark(samples.FULL)
    entries = {e["name"].rpartition(" ")[0]: e["value"] for tool in benchmark.values() for e in tool}
    assert bencher == values == entries


def test_sentences_agree_with_the_tables() -> None:
    """The headline is one sentence in four reports; its numbers are the table's."""
    line = "63.61 tok/s over 3 launches, -22.9% against the baseline's 82.51 tok/s over 5 launches, band [80.87, 84.16]"
    assert line in terminal.render(samples.FULL, width=250)
    assert line in terminal.render(samples.FULL, width=250, verbosity=-1)
    assert line in "".join(github.annotations(samples.FULL)).replace("%25", "%")
    unescaped = re.sub(r"&#(\d+);", lambda m: chr(int(m[1])), github.summary(samples.FULL) + html.page(samples.FULL))
    assert unescaped.count(line) == 2
