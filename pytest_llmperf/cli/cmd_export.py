"""``llmperf export FORMAT FILE.json``: a stored report in the form that another tool, or a person, reads."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_llmperf.cli.project_plugins import ask
from pytest_llmperf.errors import ConfigError, nearest
from pytest_llmperf.records import jsonfile
from pytest_llmperf.report.formats import FORMATS, page
from pytest_llmperf.session.extensions import report_formats


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "format",
        metavar="FORMAT",
        help="bencher (Bencher Metric Format), customBiggerIsBetter or customSmallerIsBetter "
        "(github-action-benchmark, a file for each direction), html, markdown, or one that a plugin adds",
    )
    parser.add_argument("file", type=Path, metavar="FILE.json", help="Report of a run (--llmperf-json)")
    parser.add_argument(
        "--previous", type=Path, metavar="OLD.json", help="For html: the branch's last run, to tell what changed since"
    )
    parser.add_argument("--output", "-o", type=Path, metavar="PATH", help="File to write (default: standard output)")


def run(args: argparse.Namespace) -> int:
    """Returns 0. Raises ``ConfigError`` for an unknown format and for a file that is no report."""
    known = FORMATS if args.format in FORMATS else ask(report_formats)  # ours need no pytest
    if args.format not in known:
        raise ConfigError(f"no report format {args.format!r}{nearest(args.format, known)}")
    if args.previous and args.format != "html":
        raise ConfigError(f"--previous tells html what changed since; {args.format} has no place for it")
    session = jsonfile.load(args.file)
    text = page(session, jsonfile.load(args.previous)) if args.previous else known[args.format](session)
    if args.output is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())  # a document is UTF-8 whatever the terminal is
    else:
        jsonfile.write(args.output, text)
    return 0
