"""``llmperf marker -- COMMAND``: the ``llm_server`` marker that starts the same server as a pasted launch command."""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_llmperf.cli.compose_file import services
from pytest_llmperf.cli.launch_command import Pasted, taken_apart
from pytest_llmperf.cli.project_plugins import ask
from pytest_llmperf.cli.shell_script import UNKNOWN, SimpleCommand, simple_commands
from pytest_llmperf.engines import command_reader
from pytest_llmperf.engines.base import Engine, EngineSettings
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.session.extensions import engines

#: As ruff and black have it by default.
_WIDTH = 88
#: ``UNKNOWN`` as JSON has it.
_UNKNOWN = re.compile(r"\\u0000(.+?)\\u0000")


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the sub-command."""
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="The launch command, behind --")
    parser.add_argument(
        "--file", metavar="PATH", help="Read a shell script or a compose file instead (- is standard input)"
    )


def run(args: argparse.Namespace) -> int:
    """Print a marker for each launch command. Raises ``ConfigError`` for one that no marker starts; the others are
    printed all the same."""
    if bool(args.command) == bool(args.file):
        raise ConfigError(
            "give the launch command behind --, as in `llmperf marker -- vllm serve MODEL --tensor-parallel-size 8`, "
            "or a file that holds it with --file PATH"
        )
    known = ask(engines)
    refused: list[str] = []
    seen: list[str] = []
    blocks: list[str] = []
    for where, command in _commands(args):
        seen.append(command.words[0])
        try:
            found = taken_apart(command, list(known.values()))
            blocks += [marker(found, where, known)] if found else []
        except ConfigError as error:
            refused.append(f"{where}: {error}" if where else str(error))
    if blocks:
        print("\n\n".join(blocks))
    if not blocks and not refused:
        raise ConfigError(
            f"no command of an engine among {', '.join(dict.fromkeys(seen)) or 'nothing'}; known are "
            f"{', '.join(sorted(_starts(known)))}, also behind launchers and in containers"
        )
    if refused:
        raise ConfigError("\n".join(refused))
    return 0


def _starts(known: Mapping[str, Engine]) -> Iterator[str]:
    for engine in known.values():
        yield from (" ".join(program) for program in (*engine.programs, engine.program[-2:]))


def _commands(args: argparse.Namespace) -> Iterator[tuple[str, SimpleCommand]]:
    """Each command with the place where it stands."""
    if args.command and len(args.command) > 1:
        yield "", SimpleCommand(tuple(args.command), {}, 1)
        return
    text, name = _text(args.file) if args.file else (args.command[0], "")
    if name.endswith((".yml", ".yaml")):
        yield from ((f"{name}: {service}", command) for service, command in services(text, name, os.environ))
    else:
        yield from ((f"{name}:{c.line}" if name else "", c) for c in simple_commands(text, os.environ))


def _text(path: str) -> tuple[str, str]:
    try:
        return (sys.stdin.read(), "standard input") if path == "-" else (Path(path).read_text("utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--file {path} cannot be read: {error}") from error


def marker(pasted: Pasted, where: str, known: Mapping[str, Engine]) -> str:
    """Python source of the marker, below comments that say what stands elsewhere or was left out.

    The command that the source makes is compared with the pasted one. Raises ``ConfigError`` that names what is not in
    both, and what has no value.
    """
    engine, names = pasted.engine, frozenset(known)
    declared = command_reader.declared(engine, pasted.words, pasted.env)
    source = _call(declared.keywords)
    table = dict(pasted.settings)
    if pasted.program != engine.program:
        table = {"command": list(pasted.program), **table}
    unknown = _UNKNOWN.search(json.dumps([declared.keywords, table]))
    if unknown:
        raise ConfigError(
            f"{unknown[1]} has no value that can be read here: write it into the command, or set the variable where "
            "llmperf runs"
        )
    settings = EngineSettings(command=pasted.program)
    command = command_reader.made(engine, _evaluated(source), settings, names)
    differs = command_reader.round_trip(engine, pasted.words, pasted.env, command, len(pasted.program))
    if differs.lost:
        raise ConfigError(f"no marker starts the same server; it would differ in: {'; '.join(differs.lost)}")
    lines = [f"For --engine {engine.name}" + (f", from {where}" if where else "")]
    lines += [note.replace(UNKNOWN, "") for note in (*pasted.notes, *declared.notes)]
    if differs.added:
        lines.append(f"added to every launch: {', '.join(differs.added)}")
    if table:
        lines += ["pyproject.toml of this machine:", *_toml(engine.name, table)]
    return "\n".join([*(comment for line in lines for comment in _comment(line)), source])


def _comment(line: str) -> list[str]:
    """TOML stays on its line, to be copied."""
    if line.startswith(("    ", "pyproject")):
        return [f"# {line}"]
    return textwrap.wrap(line, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)


def _toml(name: str, table: Mapping[str, Any]) -> list[str]:
    """JSON's texts, lists and booleans are TOML's too."""
    return [f"    [tool.llmperf.engines.{name}]", *(f"    {key} = {json.dumps(v)}" for key, v in table.items())]


def _evaluated(source: str) -> dict[str, Any]:
    """The keywords that Python reads in a marker's source."""
    call = ast.parse(source[1:], mode="eval").body
    assert isinstance(call, ast.Call)
    return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}


def _call(keywords: Mapping[str, Any]) -> str:
    head = "@pytest.mark.llm_server("
    short = f"{head}{', '.join(f'{k}={_short(v)}' for k, v in keywords.items())})"
    if len(short) <= _WIDTH:
        return short
    return "\n".join([head, *(line for k, v in keywords.items() for line in _lines(f"{k}=", v, 4)), ")"])


def _lines(head: str, value: Any, indent: int) -> list[str]:
    """One entry of a call, a dict or a list, with its comma, over as many lines as it needs."""
    margin = " " * indent
    short = f"{margin}{head}{_short(value)},"
    if len(short) <= _WIDTH or not isinstance(value, (dict, list)) or not value:
        return [short]
    if isinstance(value, dict):
        inner = [line for k, v in value.items() for line in _lines(f"{_short(k)}: ", v, indent + 4)]
    else:
        inner = [line for v in value for line in _lines("", v, indent + 4)]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return [f"{margin}{head}{opening}", *inner, f"{margin}{closing},"]


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_short(k)}: {_short(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{value} cannot be written into a marker, nor into JSON")
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    """Double quotes, unless that takes more backslashes."""
    written = repr(text)
    if written[0] == '"' or text.count('"') > text.count("'"):
        return written
    return '"' + written[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'
