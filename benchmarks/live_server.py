"""The command line that benchmarks on a live server share, and the file that they write."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines_own_theirs import ALONE, AMONG

from pytest_llmperf.engines.base import Endpoint
from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.server import attach, kept
from pytest_llmperf.server.state import state_dir


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["vllm", "sglang"])
    parser.add_argument("url", nargs="?", help="Instead of a kept server; its API key in LLMPERF_API_KEY")
    parser.add_argument("--rounds", type=whole_number, default=5)
    parser.add_argument(
        "--concurrency", type=whole_number, action="append", help="Streams; repeat for more levels; default 1"
    )
    parser.add_argument(
        "--requests",
        type=whole_number,
        help=f"Of each stream in a turn; default {ALONE} alone, {AMONG} among several",
    )
    parser.add_argument("--prompt", type=whole_number, default=32, help="Tokens")
    parser.add_argument("--output", type=whole_number, default=96, help="Tokens")
    parser.add_argument("--model", default="tiny", help="As it is served")
    parser.add_argument("--json", type=Path, help="File for all values of every round, written after each")
    return parser


def checked(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options, and ``levels``. Ends the program for what would only be found out after minutes."""
    options = parser.parse_args()
    if options.output < 2:
        parser.error("--output 1 leaves nothing to time")
    if options.json and not options.json.absolute().parent.is_dir():
        parser.error(f"--json {options.json}: there is no such folder")
    options.levels = list(dict.fromkeys(options.concurrency or [1]))
    return options


def endpoint(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Endpoint:
    """The server at ``url``, or of the kept ones (``--keep-servers``) of this engine and model the newest."""
    try:
        if options.url:
            return attach.parse(options.url, "LLMPERF_API_KEY")
        found = [k for k in kept.list_kept(state_dir()) if (k.engine, k.model) == (options.engine, options.model)]
    except LlmperfError as error:
        parser.error(str(error))
    if not found:
        parser.error(
            f"no kept {options.engine} server of the model {options.model}; `llmperf servers list` shows what there is"
        )
    return max(found, key=lambda k: k.started_at).endpoint


def whole_number(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def write(path: Path, what: Mapping[str, Any]) -> None:
    """The file is whole at any time."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(what))
    part.replace(path)
