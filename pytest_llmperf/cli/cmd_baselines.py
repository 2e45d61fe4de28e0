"""``llmperf baselines show | unused | rename | prune | drop | forget | merge``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pytest_llmperf.baselines import attempts, history, merge, store, unused
from pytest_llmperf.baselines.drop import drop
from pytest_llmperf.baselines.series import Series, seconds
from pytest_llmperf.baselines.update import lock
from pytest_llmperf.cli.collect import collect
from pytest_llmperf.cli.shared import add_folder, add_json, folder_of, grid, print_by_test, print_grid, print_json, say
from pytest_llmperf.cli.stored_priors import StoredPriors
from pytest_llmperf.errors import BaselineError, ConfigError
from pytest_llmperf.records.encode import plain
from pytest_llmperf.records.text import clean, number, plural
from pytest_llmperf.report.grids import Column, Row
from pytest_llmperf.server.state import state_dir

_DAY = 86_400
_COLUMNS = (
    Column("test"), Column("engine", drop=8), Column("metric", drop=7), Column("value", right=True),
    Column("unit", drop=2), Column("launches", right=True), Column("epochs", right=True, drop=9),
    Column("days old", right=True, drop=10), Column("hardware", drop=6),
)  # fmt: skip
_DETAIL = (
    *(Column("launch"), Column("recorded", drop=1), Column("host", drop=2), Column("cache", drop=3)),
    *(Column("metric"), Column("repetitions")),
)


def add(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def action(name: str, run: Callable[[argparse.Namespace], int], what: str) -> argparse.ArgumentParser:
        sub = actions.add_parser(name, help=what, description=what)
        sub.set_defaults(action=run)
        add_folder(sub)
        return sub

    show = action("show", _show, "List the stored baselines, or tell all about those of one test")
    show.add_argument("test", nargs="?", help="Test id, or a part of it")
    add_json(show)
    for name, run, what in (
        ("unused", _unused, "List baselines whose test is not collected any more, and what it may be called now"),
        ("prune", _prune, "Remove the baselines that 'unused' lists"),
    ):
        sub = action(name, run, what)
        sub.add_argument("pytest_args", nargs="*", metavar="PYTEST_ARG", help="After --: what pytest shall collect")
        if name == "unused":
            add_json(sub)
    rename = action("rename", _rename, "Give a test's baselines to its new name; a module's path renames all its tests")
    rename.add_argument("old", help="Test id that the baselines have")
    rename.add_argument("new", help="Test id that they shall have")
    dropped = action("drop", _drop, "Remove launches that were recorded while something was wrong")
    dropped.add_argument("ids", nargs="+", metavar="ID", help="Launch id, or its beginning")
    forgotten = action("forget", _forget, "Forget that a test was found slower, once the cause is put right")
    forgotten.add_argument("test", help="Test id")
    joined = action("merge", _merge, "Add the launches of other baselines to this folder, each launch once")
    joined.add_argument("sources", nargs="+", type=Path, metavar="SOURCE", help="Folder or file of baselines")
    joined.add_argument("--driver", action="store_true", help="Be git's merge driver: SOURCE is %%O %%A %%B")


def run(args: argparse.Namespace) -> int:
    code: int = args.action(args)
    return code


def _show(args: argparse.Namespace) -> int:
    folder = folder_of(args)
    found: list[Series] = []
    broken = 0
    for path in store.files(folder):
        try:
            series = store.read(path)
        except BaselineError as error:
            print(clean(f"broken: {error}"), file=sys.stderr)
            broken += 1
            continue
        if not args.test or args.test in series.test:
            found.append(series)
    found = [s for s in found if s.test == args.test] or found
    if args.json:
        print_json([{"path": _path(folder, s), **plain(s)} for s in found])
    elif args.test and len({s.test for s in found}) == 1:
        for series in found:
            _detail(folder, series)
    elif found:
        priors = StoredPriors(folder, {m for s in found for m in (s.engine, *history.names(s))})
        print_by_test(_COLUMNS, (Row(row) for s in found for row in _rows(folder, s, priors)))
    else:
        say(f"no baseline{f' of a test like {args.test!r}' if args.test else ''} in {folder}")
    return 1 if broken or not found else 0


def _rows(folder: Path, series: Series, priors: StoredPriors) -> Iterator[tuple[str, ...]]:
    age = (time.time() - seconds(series.current.launches[-1].recorded)) / _DAY
    for metric in history.metrics(series, priors.metrics):
        told = history.of(series, metric, folder, priors.of(series.engine, series.fingerprint, metric.name))
        yield (
            *(series.test, series.engine, metric.name, number(told.center), told.unit),
            *(str(len(series.launches(metric.name))), str(len(series.epochs)), f"{age:.0f}", series.fingerprint.label),
        )


def _detail(folder: Path, series: Series) -> None:
    say(f"{series.test} [{series.engine}]", "bold")
    say(f"  {_path(folder, series)}")
    for name, value in series.fingerprint.fields.items():
        say(f"  {name} = {value}")
    for number_, epoch in enumerate(series.epochs):
        say(f"epoch {number_ + 1}: {epoch.reason}", "bold")
        rows = [
            (x.id, x.recorded, x.host, x.cache or "-", m, " ".join(map(number, values)))
            for x in epoch.launches
            for m, values in x.metrics.items()
        ]
        print_grid(grid(_DETAIL, rows))
    say("newest launch's provenance", "bold")
    for name, value in series.current.launches[-1].provenance.items():
        say(f"  {name} = {value}")


def _path(folder: Path, series: Series) -> Path:
    return store.path_of(folder, series.test, series.engine, series.fingerprint)


def _unused(args: argparse.Namespace) -> int:
    folder = folder_of(args)
    collected = collect(_engines(folder), args.pytest_args)
    paths = unused.unused(folder, collected)
    if args.json:
        print_json([{"test": s.test, "engine": s.engine, "path": _path(folder, s)} for s in map(store.read, paths)])
        return 1 if paths else 0
    for path in paths:
        series = store.read(path)
        say(f"unused: {series.test} [{series.engine}]  {path.relative_to(folder)}")
    for pair in dict.fromkeys((p.old, p.new) for p in unused.renamed(folder, collected)):
        say(f"renamed? llmperf baselines rename '{pair[0]}' '{pair[1]}'")
    if not paths:
        say(f"every baseline in {folder} belongs to a collected test")
    return 1 if paths else 0


def _prune(args: argparse.Namespace) -> int:
    folder = folder_of(args)
    paths = unused.unused(folder, collect(_engines(folder), args.pytest_args))
    for line in unused.prune(folder, paths, state_dir()) or ["nothing to remove"]:
        say(line)
    return 0


def _rename(args: argparse.Namespace) -> int:
    for line in unused.rename(folder_of(args), args.old, args.new, state_dir()):
        say(line)
    return 0


def _drop(args: argparse.Namespace) -> int:
    for line in drop(folder_of(args), args.ids, state_dir()):
        say(line)
    return 0


def _forget(args: argparse.Namespace) -> int:
    folder, state = folder_of(args), state_dir()
    with lock(folder, state):
        known = attempts.read(folder, state)
        names = {p.relative_to(folder).as_posix() for p in store.files(folder) if store.read(p).test == args.test}
        attempts.write(folder, state, {name: found for name, found in known.items() if name not in names})
    count = sum(len(known.get(name, ())) for name in names)
    say(f"{args.test}: {plural(count, 'attempt')} forgotten" if names else f"no baseline of {args.test} in {folder}")
    return 0 if names else 1


def _merge(args: argparse.Namespace) -> int:
    if args.driver:
        if len(args.sources) != 3:
            raise ConfigError("--driver takes the three files that git names: %O %A %B")
        merge.driver(args.sources[1], args.sources[2])
        return 0
    for line in merge.into(folder_of(args), args.sources, state_dir()) or ["nothing new"]:
        say(line)
    return 0


def _engines(folder: Path) -> list[str]:
    """Engines that have baselines: one file of each engine's folder says its name."""
    firsts = (next(store.files(home), None) for home in sorted(folder.iterdir()) if home.is_dir())
    return [store.read(path).engine for path in firsts if path]
