"""``llmperf compare A.json B.json``: is run B slower or faster than run A, and what else differs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.run_comparison import LEVEL, Compared, compare
from pytest_llmperf.cli.shared import add_folder, least_effect, named_folder, print_grid, say
from pytest_llmperf.cli.stored_priors import StoredPriors
from pytest_llmperf.records import jsonfile
from pytest_llmperf.records.text import clean, number, percent
from pytest_llmperf.report.grids import Column, Grid, Row
from pytest_llmperf.report.summary import short_names

_UNCONFIRMED = {"suspect": "looks worse, unconfirmed", "faster": "looks better, unconfirmed"}
_WORDS = {
    "passed": "no credible difference", "regressed": "worse", "improved": "better", "invalid": "not comparable",
    **_UNCONFIRMED,
}  # fmt: skip
_TONES = {"regressed": "worse", "improved": "better", "invalid": "failed"}
_COLUMNS = (
    Column("test"), Column("engine", drop=8), Column("metric", drop=7), Column("A", right=True),
    Column("B", right=True), Column("unit", drop=1), Column("B / A - 1", right=True, toned=True),
    Column("launches", drop=3), Column("sees", right=True, drop=2), Column("verdict", toned=True),
)  # fmt: skip


def add(parser: argparse.ArgumentParser) -> None:
    add_folder(parser)
    parser.add_argument("a", type=Path, metavar="A.json", help="Report of the run to compare with (--llmperf-json)")
    parser.add_argument("b", type=Path, metavar="B.json", help="Report of the run in question")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when any metric is credibly worse, or when the runs have nothing in common."""
    a, b = jsonfile.load(args.a), jsonfile.load(args.b)
    priors = StoredPriors(named_folder(args), {x for r in b.results for x in (r.engine, r.metric)})
    found = compare(
        a, b, lambda r: priors.of(r.engine, Fingerprint(r.fingerprint), r.metric), min_effect=least_effect()
    )
    if found.rows:
        _print(found.rows)
        say(f"worse and better are said at a level of {percent(LEVEL)} per metric, launches being the unit")
        if any(r.verdict in _UNCONFIRMED for r in found.rows):
            say("nothing is called worse or better on one launch: measure B again with --launches 3")
        for row in found.rows:
            if row.reason:
                say(f"{row.test} [{row.engine}] {row.metric}: {row.reason}")
    for side, keys in (("A", found.only_a), ("B", found.only_b)):
        for test, engine, metric in keys:
            say(f"only in {side}: {test} [{engine}] {metric}")
    for line in dict.fromkeys(f"  {d.name}: {d.baseline} -> {d.now}" for r in found.rows for d in r.differences):
        say(line)
    if not found.rows:
        say("the two runs have no result in common")
    return 1 if not found.rows or any(r.verdict == "regressed" for r in found.rows) else 0


def _print(rows: Sequence[Compared]) -> None:
    names = short_names(r.test for r in rows)
    several = len({(r.test, r.engine) for r in rows}) < len(rows)  # then only the metric tells them apart
    columns = tuple(replace(c, drop=0) if several and c.title == "metric" else c for c in _COLUMNS)
    print_grid(Grid(columns, tuple(_row(r, names[r.test]) for r in rows)))


def _row(r: Compared, name: str) -> Row:
    cells = (
        *(name, clean(r.engine), clean(r.metric), number(r.a), number(r.b), clean(r.unit)),
        *(percent(r.change, signed=True), f"{r.launches[0]} / {r.launches[1]}", percent(r.mde)),
        _WORDS.get(r.verdict, clean(r.verdict)),
    )
    return Row(cells, _TONES.get(r.verdict, r.verdict if r.verdict == "inconclusive" else ""))
