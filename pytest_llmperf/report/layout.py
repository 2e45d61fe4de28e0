"""Grids as lines of styled text that fit a width: columns are given up in order, a long name has its own line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from pytest_llmperf.records.results import Result
from pytest_llmperf.records.text import clean
from pytest_llmperf.report.grids import Column, Grid, Row

#: Columns with a ``drop`` of this go only where even a name on a line of its own leaves them no room.
LAST = 1
GAP = 2

STYLES: Mapping[str, str] = {
    "error": "bold red",
    "invalid": "bold red",
    "regressed": "bold red",
    "below_target": "bold red",
    "inconclusive": "bold yellow",
    "not_comparable": "red",
    "no_baseline": "red",
    "improved": "bold cyan",
    "recorded": "cyan",
    "passed": "green",
    "better": "cyan",
    "worse": "yellow",
    "failed": "red",
}


@dataclass(frozen=True)
class Glyphs:
    """The characters beyond letters that a terminal shows; ``ascii_only`` says that names must be ASCII too."""

    marks: Mapping[str, str]
    server: str
    gutter: str
    bullet: str
    ellipsis: str
    bar: str  # left end, line, right end, center, value, value beyond the left, value beyond the right
    ascii_only: bool


UNICODE = Glyphs(
    {"error": "✗", "invalid": "✗", "regressed": "✗", "below_target": "✗", "inconclusive": "?", "not_comparable": "✗",
     "no_baseline": "✗",
     "improved": "▲", "recorded": "+", "passed": "✓", "better": "▲", "worse": "▼", "failed": "✗"},
    "▸", "│", "•", "…", "├─┤┼●◀▶", False,
)  # fmt: skip
ASCII = Glyphs(
    {"error": "x", "invalid": "x", "regressed": "x", "below_target": "x", "inconclusive": "?", "not_comparable": "x",
     "no_baseline": "x",
     "improved": "^", "recorded": "+", "passed": ".", "better": "^", "worse": "v", "failed": "x"},
    ">", "|", "-", "..", "[-]+o<>", True,
)  # fmt: skip


def shorten(text: str, width: int, ellipsis: str) -> str:
    """``text`` in at most ``width`` cells, its middle left out, so that names which differ at the end stay apart."""
    if cell_len(text) <= width:
        return text
    room = width - cell_len(ellipsis)
    if room < 2:
        return set_cell_size(text, max(width, 0)).rstrip()
    head = set_cell_size(text, (room + 1) // 2).rstrip()
    tail = set_cell_size(text[::-1], room // 2)[::-1].lstrip()
    return head + ellipsis + tail


def bar(result: Result, glyphs: Glyphs, width: int = 11) -> str:
    """Where the value lies within its band, the baseline at the cross; empty without a band or a value."""
    if result.band is None or result.value is None or math.isnan(result.value):
        return ""
    (low, high), left, right = result.band, 2, width - 3
    if not -math.inf < low < high < math.inf:
        return ""

    def cell(x: float) -> int:
        return round(min(max(left + (x - low) / (high - low) * (right - left), -1), width))

    start, line, end, center, value, before, beyond = tuple(glyphs.bar)
    cells = [" "] * left + [start] + [line] * (right - left - 1) + [end] + [" "] * (width - right - 1)
    if (
        result.baseline is not None
        and math.isfinite(result.baseline.value)
        and left < (at := cell(result.baseline.value)) < right
    ):
        cells[at] = center
    at = cell(result.value)
    cells[min(max(at, 0), width - 1)] = before if at < 0 else beyond if at >= width else value
    return "".join(cells)


def with_bars(grid: Grid, items: Sequence[Result], glyphs: Glyphs) -> Grid:
    """The grid of results with a column of bars after the band's, where there is a band."""
    titles = [c.title for c in grid.columns]
    if "band" not in titles:
        return grid
    at = titles.index("band") + 1
    return Grid(
        (*grid.columns[:at], Column("", drop=10, toned=True), *grid.columns[at:]),
        tuple(
            Row((*row.cells[:at], bar(r, glyphs), *row.cells[at:]), row.tone)
            for row, r in zip(grid.rows, items, strict=True)
        ),
    )


def with_one_unit(grid: Grid) -> Grid:
    """The grid of results with the unit as the value's title, where all rows have one unit: narrower by a column."""
    titles = [c.title for c in grid.columns]
    value, at = titles.index("value"), titles.index("unit")
    units = {row.cells[at] for row in grid.rows}
    if len(units) != 1:
        return grid
    columns = list(grid.columns)
    columns[value] = replace(columns[value], title=units.pop())
    del columns[at]
    return Grid(tuple(columns), tuple(Row((*r.cells[:at], *r.cells[at + 1 :]), r.tone) for r in grid.rows))


def rows(grid: Grid, width: int, glyphs: Glyphs, lead: str = " ") -> list[list[Text]]:
    """The heading, then each row, as lines none of which is wider than ``width``, all columns aligned.

    Names are whole: one that is too long for its column stands above its row, and all do where most are. ``lead``
    begins the lines that continue a row, which could otherwise begin with a stranger's text.
    """
    if glyphs.ascii_only:
        plain_rows = (Row(tuple(clean(c, ascii_only=True) for c in r.cells), r.tone) for r in grid.rows)
        grid = Grid(grid.columns, tuple(plain_rows))
    table = [tuple(c.title for c in grid.columns), *(row.cells for row in grid.rows)]
    sizes = [max(cell_len(cells[i]) for cells in table) for i in range(len(grid.columns))]
    marked = any(row.tone for row in grid.rows)
    indent = 2 if marked else 0
    names = [cell_len(cells[0]) for cells in table]
    shown = _fitting(grid.columns, sizes, width - indent - _beside(names, width // 2), keep=LAST)
    sizes[0] = _beside(names, width - indent - sum(sizes[i] + GAP for i in shown))
    if sizes[0]:
        shown.insert(0, 0)
    else:
        indent = 2
        shown = _fitting(grid.columns, sizes, width - indent + GAP)
        _squeeze(sizes, shown, width - indent + GAP)

    def line(cells: Sequence[str], plain: str, tone: str, lead: str) -> list[Text]:
        colour = STYLES.get(tone, "")
        mark = Text(f"{glyphs.marks.get(tone, '?' if tone else ' ')} ", colour) if marked else Text()
        above: list[str] = []
        if cell_len(cells[0]) > sizes[0]:
            above, cells = _folded(cells[0], max(width - indent, 2)), ("", *cells[1:])
        out = Text()
        for i in shown:
            text = shorten(cells[i], sizes[i], glyphs.ellipsis)
            pad = " " * (sizes[i] - cell_len(text))
            style = colour if grid.columns[i].toned and colour else plain
            out.append(pad + text if grid.columns[i].right else text + pad, style)
            out.append(" " * GAP)
        starts = [mark] + [Text(f"{lead} "[:indent], "dim")] * len(above)
        parts = [*(Text(part, plain) for part in above), *([out] if shown else [])]
        return [_fitted(Text.assemble(start, part), width) for start, part in zip(starts, parts, strict=False)]

    return [line(table[0], "dim", "", " ")[-1:], *(line(row.cells, "", row.tone, lead) for row in grid.rows)]


def _folded(text: str, width: int) -> list[str]:
    """Every character of ``text``, ``width`` cells a line."""
    out = [""]
    for c in text:
        if cell_len(out[-1] + c) > width:
            out.append("")
        out[-1] += c
    return out


def _fitted(line: Text, width: int) -> Text:
    line.rstrip()
    line.truncate(max(width, 1))
    return line


def _beside(names: Sequence[int], limit: int) -> int:
    """The width of a column of names of up to ``limit`` cells; 0 where most are longer."""
    within = [size for size in names if size <= limit]
    return max(within) if 2 * len(within) > len(names) else 0


def _squeeze(sizes: list[int], shown: Sequence[int], room: int) -> None:
    """Take what does not fit from whichever column is widest."""
    while sum(sizes[i] + GAP for i in shown) > room:
        widest = max(shown, key=lambda i: sizes[i])
        if sizes[widest] <= 2:
            break
        sizes[widest] -= 1


def _fitting(columns: Sequence[Column], sizes: Sequence[int], room: int, keep: int = 0) -> list[int]:
    """Indices of the columns beside the name: the most droppable go until all fit, none of ``keep`` or less."""
    shown = list(range(1, len(columns)))
    while sum(sizes[i] + GAP for i in shown) > room:
        last = max(shown, key=lambda i: columns[i].drop)
        if columns[last].drop <= keep:
            break
        shown.remove(last)
    return shown
