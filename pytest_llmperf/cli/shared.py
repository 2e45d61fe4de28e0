"""What the sub-commands share: where the baselines are, how a table looks."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.records.text import clean

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
    folder: Path = args.baselines or _configured(Path.cwd())
    if not folder.is_dir():
        raise ConfigError(f"there is no baselines folder {folder}; name it with --baselines DIR")
    return folder


def _configured(start: Path) -> Path:
    """The ``baselines`` setting of the nearest llmperf.toml or pyproject.toml with [tool.llmperf], from here up."""
    for folder in (start, *start.parents):
        for name in ("llmperf.toml", "pyproject.toml"):
            table = _table(folder / name)
            if table is not None:
                return folder / str(table.get("baselines", "baselines"))
    return start / "baselines"


def _table(path: Path) -> Mapping[str, Any] | None:
    if not path.is_file():
        return None
    try:
        data = tomli.loads(path.read_text(encoding="utf-8"))
    except (tomli.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if path.name == "llmperf.toml":
        return data
    table = data.get("tool", {}).get("llmperf")
    return table if isinstance(table, dict) else None


def console() -> Console:
    """Standard output; wide when it is no terminal, plain when NO_COLOR says so."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=_PIPED_WIDTH if piped else None, highlight=False, markup=False, emoji=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """A borderless table; names in ``right`` are columns of numbers. Cells are made inert."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    console().print(table)


def say(line: str, style: str = "") -> None:
    """One line, made inert, never wrapped."""
    console().print(Text(clean(line), style), soft_wrap=True)
