"""``llmperf compare A.json B.json``: is run B slower or faster than run A, and what else differs."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_llmperf.baselines.compare import LEVEL, Compared, compare
from pytest_llmperf.cli_common import print_table, say
from pytest_llmperf.report import jsonfile
from pytest_llmperf.report.text import number, percent

_WORDS = {"passed": "no credible difference", "regressed": "worse", "improved": "better", "invalid": "not comparable"}
_COLUMNS = ("test", "engine", "metric", "A", "B", "unit", "B / A - 1", "launches", "sees", "verdict")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", type=Path, metavar="A.json", help="Report of the run to compare with (--llmperf-json)")
    parser.add_argument("b", type=Path, metavar="B.json", help="Report of the run in question")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when any metric is credibly worse, or when the runs have nothing in common."""
    found = compare(jsonfile.load(args.a), jsonfile.load(args.b))
    if found.rows:
        print_table(_COLUMNS, map(_row, found.rows), right=("A", "B", "B / A - 1", "sees"))
        say(f"worse and better are said at a level of {percent(LEVEL)} per metric, launches being the unit")
    for side, keys in (("A", found.only_a), ("B", found.only_b)):
        for test, engine, metric in keys:
            say(f"only in {side}: {test} [{engine}] {metric}")
    for line in dict.fromkeys(f"  {d.name}: {d.baseline} -> {d.now}" for r in found.rows for d in r.differences):
        say(line)
    if not found.rows:
        say("the two runs have no result in common")
    return 1 if not found.rows or any(r.verdict == "regressed" for r in found.rows) else 0


def _row(r: Compared) -> tuple[str, ...]:
    return (
        *(r.test, r.engine, r.metric, number(r.a), number(r.b), r.unit, percent(r.change, signed=True)),
        *(f"{r.launches[0]} / {r.launches[1]}", percent(r.mde), _WORDS.get(r.verdict, r.verdict)),
    )
