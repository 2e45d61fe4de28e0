"""The ``llmperf`` command: one table of sub-commands, each a module that is imported when it runs."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest_llmperf
from pytest_llmperf.errors import ConfigError, LlmperfError, nearest

#: As pytest: a misconfiguration is not a failure.
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 4, 130


@dataclass(frozen=True)
class Verb:
    """``module``, in this folder, offers ``add(parser) -> None`` and ``run(args) -> int`` (the exit code)."""

    name: str
    help: str
    module: str


COMMANDS = (
    Verb("baselines", "Show, rename, prune, drop or merge stored baselines", "cmd_baselines"),
    Verb("history", "Draw the trend of stored launches, with change points", "cmd_history"),
    Verb("compare", "Compare two runs (files of --llmperf-json)", "cmd_compare"),
    Verb("export", "Turn a stored report into HTML, Markdown or another tool's format", "cmd_export"),
    Verb("servers", "List or stop the servers that --keep-servers left up", "cmd_servers"),
    Verb("tiny-model", "Write the small random model that needs no download", "cmd_tiny_model"),
    Verb("inspect", "Tell which backends and flags an engine offers, without importing it",
            "cmd_inspect"),
    Verb("marker", "Turn a launch command into the marker that starts the same server", "cmd_marker"),
    Verb("sweep", "Print a stored sweep again: each knob's effect, best first", "cmd_sweep"),
    Verb("ab", "Compare two engine commands or configs on interleaved launches", "cmd_ab"),
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``llmperf``; returns the exit code. Errors of ours are one message, never a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what a terminal cannot show ends nothing
    try:
        _complete()
        args = _parser(words[0] if words else None).parse_args(words)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        return EXIT_FAILED
    except LlmperfError as error:
        print(f"llmperf: error: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


class _Parser(argparse.ArgumentParser):
    """Offers the nearest of the names where one is wrong (argparse can, from Python 3.14 on)."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(
                action, f"there is no {value!r}{nearest(str(value), map(str, action.choices))}"
            )


def _complete() -> None:
    """Answer a shell that asks for completions, and end."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete  # the shell's hook comes with it

        argcomplete.autocomplete(_parser(next(iter(os.environ["COMP_LINE"].split()[1:]), None)))


def _parser(wanted: str | None) -> argparse.ArgumentParser:
    """Every sub-command by name; only the ``wanted`` one is imported."""
    parser = _Parser(prog="llmperf", description="Look after the baselines, servers and reports of pytest-llmperf")
    parser.add_argument("--version", action="version", version=f"pytest-llmperf {pytest_llmperf.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = commands.add_parser(command.name, help=command.help, description=command.help)
        if command.name == wanted:
            module = _module(command)
            module.add(sub)
            sub.set_defaults(run=module.run)
    return parser


def _module(command: Verb) -> ModuleType:
    """Raises ``ConfigError`` when the module, or a package that it needs, is not installed."""
    try:
        return importlib.import_module(f"pytest_llmperf.cli.{command.module}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"llmperf {command.name} needs {error.name}, which this installation lacks; "
            "pip install 'pytest-llmperf[report,llamacpp]' brings everything"
        ) from error
