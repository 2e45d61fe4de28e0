"""``llmperf history [TEST]``: launch values over time, epochs, change points; in the terminal or as a page."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pytest_llmperf.baselines import history, store
from pytest_llmperf.cli.shared import (
    add_folder,
    add_json,
    folder_of,
    glyphs,
    grid,
    least_effect,
    print_grid,
    print_json,
    say,
)
from pytest_llmperf.cli.stored_priors import StoredPriors
from pytest_llmperf.errors import did_you_mean
from pytest_llmperf.measure.metrics import METRICS
from pytest_llmperf.records import jsonfile
from pytest_llmperf.records.histories import ChangePoint, History, HistoryPoint
from pytest_llmperf.records.text import number, percent, plural
from pytest_llmperf.report.grids import Column

_BAR = 40


def add(parser: argparse.ArgumentParser) -> None:
    add_folder(parser)
    parser.add_argument("test", nargs="?", help="Test id, or a part of it (default: all)")
    parser.add_argument("--metric", help="Only this metric")
    parser.add_argument("--engine", help="Only this engine")
    parser.add_argument("--html", metavar="PATH", type=Path, help="Write one self-contained HTML page instead")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when nothing is stored that ``args`` ask for."""
    folder = folder_of(args)
    found = list(_chosen(args, folder))
    if not found:
        say(f"no history of {args.test or 'any test'} in {folder}{_nearest(args, folder)}")
        return 1
    if args.html:
        from pytest_llmperf.report import html  # needs the extra "report"

        jsonfile.write(args.html, html.history_page(found))
        say(f"{plural(len(found), 'series', 'series')} in {args.html}")
        return 0
    if args.json:
        print_json(found)
        return 0
    for told in found:
        _draw(told)
    return 0


def _chosen(args: argparse.Namespace, folder: Path) -> Iterator[History]:
    """The histories asked for. Raises ``BaselineError`` for a broken file."""
    wanted = [s for s in map(store.read, store.files(folder, args.engine)) if not args.test or args.test in s.test]
    priors, least = StoredPriors(folder, {m for s in wanted for m in (s.engine, *history.names(s))}), least_effect()
    for series in wanted:
        for metric in history.metrics(series, priors.metrics):
            if args.metric in (None, metric.name):
                prior = priors.of(series.engine, series.fingerprint, metric.name)
                yield history.of(series, metric, folder, prior, min_effect=least)


def _nearest(args: argparse.Namespace, folder: Path) -> str:
    engines = [home.name for home in folder.iterdir() if home.is_dir()]
    asked = ((args.engine, engines), (args.metric, METRICS))
    return "".join(did_you_mean(said, known) for said, known in asked if said and said not in known)


def _draw(told: History) -> None:
    """One line a launch with a dot between the lowest and the highest value; changes of level between the lines."""
    band = f", band {number(told.band[0])} to {number(told.band[1])} on host {told.host}" if told.band else ""
    say(f"{told.test} [{told.engine}] {told.metric} ({told.unit}{band})  {told.path}", "bold")
    marks = glyphs()
    low, high = (f(p.value for p in told.points) for f in (min, max))
    changes = {c.index: c for c in told.changes}
    rows = []
    for i, point in enumerate(told.points):
        dot = round((point.value - low) / (high - low) * (_BAR - 1)) if high > low else _BAR // 2
        line = " " * dot + marks.bullet
        rows.append(
            (
                point.recorded[:16].replace("T", " "),
                number(point.value),
                f"{line:<{_BAR}}",
                *_words(point, changes.get(i)),
            )
        )
    columns = (
        *(Column("recorded"), Column(told.unit, right=True), Column(f"{number(low)} {marks.ellipsis} {number(high)}")),
        *(Column("engine", drop=2), Column("host", drop=1), Column("level")),
    )
    print_grid(grid(columns, rows))
    say("")


def _words(point: HistoryPoint, change: ChangePoint | None) -> tuple[str, str, str]:
    moved = "" if change is None else f"{percent(change.change, signed=True)} {change.reason or 'unannounced'}"
    return point.version or "-", point.host, moved
