"""A pasted command taken apart: variables, launcher, the engine's program, its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from pytest_llmperf.cli.shell_script import ASSIGNMENT, SimpleCommand, simple_commands
from pytest_llmperf.engines.base import Engine
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.server.places import FORGETFUL, PLACEHOLDER

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash"})
_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
#: Launchers whose engine is nobody's child here.
_ELSEWHERE = frozenset({"docker", "nerdctl", "kubectl", "oc", "ssh", "sshpass"})
#: Options of ``run`` that take no value; the letters also in clusters (``-dit``).
_ALONE = frozenset(
    {"--rm", "--init", "--privileged", "--interactive", "--tty", "--detach", "--publish-all", "--read-only"}
)
_ALONE_LETTERS = frozenset("ditPq")
#: Options of ``run`` that hinder a server which the plugin starts anew at a port of its own, watches and stops.
_HINDERING = (
    frozenset({"-d", "--detach", "-i", "--interactive", "-t", "--tty", "--name", "--restart", "--rm", "--init"})
    | {"-p", "--publish", "-P", "--publish-all", "--net", "--network"}
)  # fmt: skip
_INSTEAD = ("--rm", "--init", "--network=host")
#: What well-known images start when they are given nothing but arguments.
_IMAGES = {"vllm": ("vllm", "serve"), "llama.cpp": ("/app/llama-server",)}


@dataclass(frozen=True)
class Pasted:
    """``program`` is the launcher and what starts the engine, as ``command`` of ``[tool.llmperf.engines.<name>]`` has
    it; ``settings`` are the other keys of that table that it needs; ``words`` are the engine's arguments."""

    engine: Engine
    program: tuple[str, ...]
    words: tuple[str, ...]
    env: Mapping[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def taken_apart(command: SimpleCommand, engines: Sequence[Engine]) -> Pasted | None:
    """None where ``command`` starts none of ``engines``. Raises ``ConfigError`` for a container without an image."""
    env, notes = dict(command.env), list(command.notes)
    launcher, words = _container(_without_assignments(command.words, env), engines, env, notes)
    script = _script(words)
    if script is not None:
        outer, text = words[:script], words[-1] if PurePath(words[0]).name == "ssh" else words[script + 2]
        for inner in simple_commands(text, env):
            found = taken_apart(replace(inner, env={**env, **inner.env}), engines)
            if found:
                return _launched(found, [*launcher, *outer], notes)
        return None
    place = _place(words, engines)
    if not place:
        return None
    engine, start, end = place
    prefix = list(words[:start])
    for i, word in enumerate(prefix):
        if PurePath(word).name == "env":
            prefix[i:] = _without_assignments(prefix[i:], env)
            break
    bare = Pasted(engine, tuple(words[start:end]), tuple(words[end:]), env)
    return _launched(bare, [*launcher, *prefix], notes)


def _launched(engine: Pasted, launcher: Sequence[str], notes: Sequence[str]) -> Pasted:
    """``engine`` behind ``launcher``, which is told where variables go if it would forget them."""
    names = {PurePath(word).name for word in launcher}
    notes, settings, words = [*notes, *engine.notes], dict(engine.settings), list(launcher)
    if names & FORGETFUL.keys() and PLACEHOLDER not in (*words, *engine.program):
        words.append(PLACEHOLDER)
    if names & _ELSEWHERE:
        settings["remote"] = True
        notes.append("no GPU is leased for a remote engine: name those it may use in the launcher's own options")
    if names & (_ELSEWHERE - _CONTAINERS):
        notes.append('say where it answers: `host = "..."`, with `bind = "0.0.0.0"`')
    return replace(engine, program=(*words, *engine.program), settings=settings, notes=tuple(notes))


def _without_assignments(words: Sequence[str], env: dict[str, str]) -> list[str]:
    """``words`` without the ``NAME=VALUE`` in front, which go to ``env``, and without the ``env`` before those."""
    rest = list(words[1:] if words and PurePath(words[0]).name == "env" else words)
    if rest and rest[0].startswith("-"):
        return list(words)  # options of env are its own business
    while rest and (found := ASSIGNMENT.fullmatch(rest[0])) and not found[2]:
        env[found[1]] = found[3]
        rest = rest[1:]
    return rest


def _script(words: Sequence[str]) -> int | None:
    """Where what stands before a script in one word ends: ``bash -c '...'``, ``ssh host '...'``."""
    if words and PurePath(words[0]).name == "ssh" and " " in words[-1]:
        return len(words) - 1
    shells = (i for i, word in enumerate(words[:-2]) if PurePath(word).name in _SHELLS)
    return next((i for i in shells if words[i + 1].startswith("-") and words[i + 1].endswith("c")), None)


def _place(words: Sequence[str], engines: Sequence[Engine]) -> tuple[Engine, int, int] | None:
    """The engine that ``words`` start, where its program begins (with the interpreter), and where that ends."""
    names = tuple(PurePath(word).name if "/" in word else word for word in words)
    for engine in engines:
        for program in (*engine.programs, engine.program[-2:]):
            size = len(program)
            for i in range(len(words) - size + 1):
                if names[i : i + size] == program:
                    runs = [k for k in range(i) if names[k].startswith("python")] if program[0] == "-m" else []
                    return engine, runs[-1] if runs else i, i + size
    return None


def _container(
    words: list[str], engines: Sequence[Engine], env: dict[str, str], notes: list[str]
) -> tuple[list[str], list[str]]:
    """The launcher out of ``docker run ... image`` and the command inside; variables that it sets go to ``env``."""
    runs = (i for i, w in enumerate(words) if w == "run" and {PurePath(x).name for x in words[:i]} & _CONTAINERS)
    run = next(runs, None)
    if run is None:
        return [], words
    options, image = _options(words, run + 1)
    if image >= len(words):
        raise ConfigError(f"{' '.join(words[: run + 1])} names no image")
    launcher, dropped, entrypoint = words[: run + 1], list[str](), None
    for option, value in options:
        if option in ("-e", "--env") and "=" in value:
            name, _, env[name] = value.partition("=")
        elif option == "--entrypoint":
            entrypoint = value
        elif option in _HINDERING:
            dropped += (
                [] if f"{option}={value}".rstrip("=") in (*_INSTEAD, "--net=host") else [f"{option} {value}".strip()]
            )
        else:
            launcher += [option] if not value else [f"{option}={value}"] if option.startswith("--") else [option, value]
    if dropped:
        notes.append(f"left out of `run`, for {' '.join(_INSTEAD)}: {', '.join(dropped)}")
    inside = words[image + 1 :]
    implied = next((program for name, program in _IMAGES.items() if name in words[image]), ())
    if entrypoint:
        inside = [entrypoint, *inside]
    elif implied and not _place(inside, engines) and _script(inside) is None:
        inside, entrypoint = [*implied, *inside], ""
        notes.append(f"{words[image]} is taken to start `{' '.join(implied)}`")
    cleared = [] if entrypoint is None else ["--entrypoint="]
    return [*launcher, *_INSTEAD, *cleared, words[image], PLACEHOLDER], inside


def _options(words: Sequence[str], at: int) -> tuple[list[tuple[str, str]], int]:
    """Options of ``run`` from ``at`` on, each with its value, and where the image stands."""
    found: list[tuple[str, str]] = []
    while at < len(words) and words[at].startswith("-"):
        word, at = words[at], at + 1
        if not word.startswith("--") and _ALONE_LETTERS.issuperset(word[1:]):
            found += [(f"-{letter}", "") for letter in word[1:]]
            continue
        option, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        if not equals and option not in _ALONE and at < len(words):
            value, at = words[at], at + 1
        found.append((option, value))
    return found, at
