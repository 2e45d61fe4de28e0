"""What the sub-commands share: where the baselines are, how a table looks."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.options import project_settings
from pytest_llmperf.records.encode import plain
from pytest_llmperf.records.text import clean
from pytest_llmperf.report import layout
from pytest_llmperf.report.grids import Column, Grid, Row
from pytest_llmperf.report.layout import Glyphs
from pytest_llmperf.report.summary import short_names

_PIPED_WIDTH = 160


def add_folder(parser: argparse.ArgumentParser) -> None:
    """``--baselines DIR``, with the project's own setting as its default."""
    parser.add_argument(
        "--baselines",
        metavar="DIR",
        type=Path,
        help="Folder of the committed baselines (default: the project's setting, else ./baselines)",
    )


def folder_of(args: argparse.Namespace) -> Path:
    """The baselines folder that ``args`` or the project names. Raises ``ConfigError`` when it is not there."""
    folder = named_folder(args)
    if not folder.is_dir():
        raise ConfigError(f"there is no baselines folder {folder}; name it with --baselines DIR")
    return folder


def named_folder(args: argparse.Namespace) -> Path:
    """The same, there or not."""
    if args.baselines is None:
        where, _, settings = project_settings(Path.cwd())
        args.baselines = where / str(settings.get("baselines", "baselines"))
    return Path(args.baselines)


def least_effect() -> float:
    """``min_effect`` of the project's settings: no band is narrower. Raises ``ConfigError`` for what is no fraction."""
    _, said, settings = project_settings(Path.cwd())
    value = settings.get("min_effect", 0.01)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ConfigError(f"{said}: min_effect must be a fraction, such as 0.01, not {value!r}")
    return float(value)


def console() -> Console:
    """Standard output; wide when it is no terminal, plain when NO_COLOR says so."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=_PIPED_WIDTH if piped else None, highlight=False, markup=False, emoji=False)


def glyphs() -> Glyphs:
    """The characters that standard output can show."""
    return layout.UNICODE if console().encoding == "utf-8" else layout.ASCII


def print_grid(grid: Grid) -> None:
    """A table as the session's report draws it, fitted to the width of the terminal."""
    out = console()
    for line in chain(*layout.rows(grid, out.width, glyphs())):
        out.print(line, soft_wrap=True)


def print_by_test(columns: Sequence[Column], rows: Iterable[Row]) -> None:
    """A table whose first columns are test, engine and metric: names as short as they can be, and the metric kept where
    it alone tells two rows apart. Cells are made inert."""
    made = [replace(row, cells=tuple(map(clean, row.cells))) for row in rows]
    names = short_names(row.cells[0] for row in made)
    several = len({row.cells[:2] for row in made}) < len(made)
    kept = (replace(c, drop=0) if several and c.title == "metric" else c for c in columns)
    print_grid(Grid(tuple(kept), tuple(replace(r, cells=(names[r.cells[0]], *r.cells[1:])) for r in made)))


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="Print JSON")


def print_json(found: object) -> None:
    """Values of ours as JSON on standard output."""
    print(json.dumps(plain(found), indent=2))


def grid(columns: Iterable[Column], rows: Iterable[Iterable[str]]) -> Grid:
    """Rows without a tone; cells are made inert."""
    return Grid(tuple(columns), tuple(Row(tuple(map(clean, row))) for row in rows))


def say(line: str, style: str = "") -> None:
    """One line, made inert, never wrapped."""
    console().print(Text(clean(line), style), soft_wrap=True)
