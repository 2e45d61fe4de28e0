"""``llmperf compare A.json B.json``: is run B slower or faster than run A, and what else differs."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.run_comparison import LEVEL, Compared, Comparison, compare
from pytest_llmperf.cli.shared import add_folder, add_json, least_effect, named_folder, print_by_test, print_json, say
from pytest_llmperf.cli.stored_priors import StoredPriors
from pytest_llmperf.records import jsonfile
from pytest_llmperf.records.text import number, percent
from pytest_llmperf.report.grids import Column, Row

_UNCONFIRMED = {"suspect": "looks worse, unconfirmed", "faster": "looks better, unconfirmed"}
_WORDS = {
    "passed": "no credible difference", "regressed": "worse", "improved": "better", "invalid": "not comparable",
    **_UNCONFIRMED,
}  # fmt: skip
_TONES = {"regressed": "worse", "improved": "better", "invalid": "failed"}
_COLUMNS = (
    Column("test"), Column("engine", drop=8), Column("metric", drop=7), Column("A", right=True),
    Column("B", right=True), Column("unit", drop=4), Column("B / A - 1", right=True, toned=True),
    Column("launches", drop=3), Column("sees", right=True, drop=2), Column("verdict", toned=True),
)  # fmt: skip


def add(parser: argparse.ArgumentParser) -> None:
    add_folder(parser)
    parser.add_argument("a", type=Path, metavar="A.json", help="Report of the run to compare with (--llmperf-json)")
    parser.add_argument("b", type=Path, metavar="B.json", help="Report of the run in question")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when any metric is credibly worse, else 2 when something of A has no comparable result in B."""
    a, b = jsonfile.load(args.a), jsonfile.load(args.b)
    priors = StoredPriors(named_folder(args), {x for r in b.results for x in (r.engine, r.metric)})
    found = compare(
        a, b, lambda r: priors.of(r.engine, Fingerprint(r.fingerprint), r.metric), min_effect=least_effect()
    )
    if args.json:
        print_json(found)
    else:
        _tell(found)
    if any(r.verdict == "regressed" for r in found.rows):
        return 1
    return 2 if not found.rows or found.only_a or any(r.verdict == "invalid" for r in found.rows) else 0


def _tell(found: Comparison) -> None:
    if found.rows:
        print_by_test(_COLUMNS, map(_row, found.rows))
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


def _row(r: Compared) -> Row:
    cells = (
        *(r.test, r.engine, r.metric, number(r.a), number(r.b), r.unit),
        *(percent(r.change, signed=True), f"{r.launches[0]} / {r.launches[1]}", percent(r.mde)),
        _WORDS.get(r.verdict, r.verdict),
    )
    return Row(cells, _TONES.get(r.verdict, r.verdict if r.verdict == "inconclusive" else ""))
