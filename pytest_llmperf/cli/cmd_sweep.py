"""``llmperf sweep FILE.json``: a stored sweep printed again, each knob's effect, best first."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_llmperf.cli.shared import add_json, console, glyphs, print_json, say
from pytest_llmperf.records import jsonfile
from pytest_llmperf.records.results import SessionRecord
from pytest_llmperf.report import terminal


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.json", help="Report of a run with sweeps (--llmperf-json)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when the report holds no sweep, load curve or gap."""
    stored = jsonfile.load(args.file)
    tuned = SessionRecord({}, sweeps=stored.sweeps, curves=stored.curves, gaps=stored.gaps)
    if not (tuned.sweeps or tuned.curves or tuned.gaps):
        say(f"{args.file} holds no sweep; @pytest.mark.llm_sweep makes a test one")
        return 1
    if args.json:
        print_json({name: getattr(tuned, name) for name in ("gaps", "sweeps", "curves")})
        return 0
    out = console()
    page = terminal.render(
        tuned, width=out.width, color=out.is_terminal and not out.no_color, verbosity=1, unicode=not glyphs().ascii_only
    )
    out.out(page, end="", highlight=False)
    return 0
