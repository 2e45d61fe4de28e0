"""Grids as lines of styled text that fit a width: columns are given up in order, then the first is shortened."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from pytest_llmperf.records.results import Result
from pytest_llmperf.report.grids import Column, Grid, Row

#: Columns that carry a verdict's evidence (``drop`` below ``EXTRA``) go only once the name has come down to ``NAME``
#: cells; the others go as soon as a name of up to ``WISH`` cells would be shortened.
NAME, WISH, EXTRA = 16, 40, 7
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


def lines(grid: Grid, width: int, glyphs: Glyphs) -> list[Text]:
    """A heading and one line a row, none wider than ``width``, all columns aligned."""
    table = [tuple(c.title for c in grid.columns), *(row.cells for row in grid.rows)]
    sizes = [max(cell_len(cells[i]) for cells in table) for i in range(len(grid.columns))]
    marked = any(row.tone for row in grid.rows)
    room = width - (2 if marked else 0)
    shown = _fitting(grid.columns, sizes, room)
    _squeeze(sizes, shown, room)

    def line(cells: Sequence[str], plain: str, tone: str) -> Text:
        colour = STYLES.get(tone, "")
        out = Text()
        if marked:
            out.append(f"{glyphs.marks.get(tone, ' ' if not tone else '?')} ", colour)
        for i in shown:
            text = shorten(cells[i], sizes[i], glyphs.ellipsis)
            pad = " " * (sizes[i] - cell_len(text))
            style = colour if grid.columns[i].toned and colour else plain
            out.append(pad + text if grid.columns[i].right else text + pad, style)
            out.append(" " * GAP)
        out.rstrip()
        out.truncate(max(width, 1))
        return out

    return [line(table[0], "dim", ""), *(line(row.cells, "", row.tone) for row in grid.rows)]


def _squeeze(sizes: list[int], shown: Sequence[int], room: int) -> None:
    """Take what does not fit from the name down to ``NAME`` cells, then from whichever column is widest."""
    while (excess := sum(sizes[i] + GAP for i in shown) - GAP - room) > 0:
        if sizes[0] > NAME:
            sizes[0] = max(sizes[0] - excess, NAME)
            continue
        second, largest = sorted(sizes[i] for i in shown)[-2:] if len(shown) > 1 else (0, sizes[0])
        if largest <= 2:
            break
        widest = next(i for i in shown if sizes[i] == largest)
        sizes[widest] -= min(excess, max(largest - second, 1), largest - 2)


def _fitting(columns: Sequence[Column], sizes: Sequence[int], width: int) -> list[int]:
    """Indices of the columns kept: the most droppable go until the rest fits beside the name."""
    shown = list(range(len(columns)))
    while droppable := [i for i in shown[1:] if columns[i].drop]:
        last = max(droppable, key=lambda i: columns[i].drop)
        name = min(sizes[0], WISH if columns[last].drop >= EXTRA else NAME)
        if name + sum(sizes[i] + GAP for i in shown[1:]) <= width:
            break
        shown.remove(last)
    return shown
