"""``llmperf export FORMAT FILE.json``: a stored report in the form that another tool, or a person, reads."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_llmperf.records import jsonfile
from pytest_llmperf.records.results import SessionRecord
from pytest_llmperf.report import export, github, html


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


FORMATS: Mapping[str, Callable[[SessionRecord], str]] = {
    "bencher": lambda s: _json(export.bencher(s)),
    "customBiggerIsBetter": lambda s: _json(export.github_action_benchmark(s)["customBiggerIsBetter"]),
    "customSmallerIsBetter": lambda s: _json(export.github_action_benchmark(s)["customSmallerIsBetter"]),
    "html": lambda s: html.page(s, logs=html.tails(s, Path.cwd())),
    "markdown": github.summary,
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "format",
        choices=FORMATS,
        help="bencher (Bencher Metric Format), customBiggerIsBetter or customSmallerIsBetter "
        "(github-action-benchmark, a file for each direction), html, markdown",
    )
    parser.add_argument("file", type=Path, metavar="FILE.json", help="Report of a run (--llmperf-json)")
    parser.add_argument("--output", "-o", type=Path, metavar="PATH", help="File to write (default: standard output)")


def run(args: argparse.Namespace) -> int:
    text = FORMATS[args.format](jsonfile.load(args.file))
    if args.output is None:
        sys.stdout.write(text)
    else:
        jsonfile.write(args.output, text)
    return 0
