"""Simple commands out of a shell script, read without running it: quotes, continuations, literal variables and arrays.

What only a running shell knows (``$(nproc)``, ``$1``, a variable that nobody sets) stays in its words between two
``UNKNOWN`` characters, so that whoever uses such a word can say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

#: On both sides of a text whose value is not in the script; no word of a shell can hold it.
UNKNOWN = "\0"
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_PART = re.compile(
    r"""(?P<gone>\\\n|(?<![^\s;&|(])\#[^\n]*|[ \t]*\d?&?(?:<<<?|>>?|<)(?:&\d|&-|[ \t]*[^\s;&|]+)|&>[ \t]*\S+)
    |(?P<end>\n|;;?|&&?|\|\|?|\(|\))
    |(?P<blank>[ \t\r]+)
    |'(?P<single>[^']*)'
    |"(?P<double>(?:\\.|[^"\\])*)"
    |\\(?P<escaped>.)
    |(?P<variable>\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`|\$\{[^}]*\}|\$\w+|\$[@*#?$!-])
    |(?P<bare>[^\s'"\\$`;&|()<>]+|.)""",
    re.VERBOSE | re.DOTALL,
)
_IN_DOUBLE = re.compile(
    r"\\(?P<escaped>[\\\"$`\n])|(?P<variable>\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`|\$\{[^}]*\}|\$\w+)"
)
_ARRAY = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_NAMED = re.compile(r"\$\{?(\w+)(?::?([-=?+])(.*))?\}?", re.DOTALL)
_OPENING, _CLOSING = ("if", "for", "while", "until", "case", "select"), ("fi", "done", "esac")
_BEFORE_A_COMMAND = ("then", "else", "elif", "do", "{", "!", "exec", "nohup", "time", "command", "eval")
_ENVIRONMENT = ("source", ".", "module", "ulimit", "cd")


@dataclass(frozen=True)
class SimpleCommand:
    """One command with the variables that it, and what was exported before it, set. ``notes`` tell what of its
    surroundings it does not hold itself (``cd``, ``source``), a sentence each."""

    words: tuple[str, ...]
    env: Mapping[str, str]
    line: int
    notes: tuple[str, ...] = ()


@dataclass
class _Shell:
    """What has been set so far."""

    inherited: Mapping[str, str]
    values: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)

    def value(self, reference: str) -> str:
        """What stands for ``$NAME``, ``${NAME:-default}``; the text itself between ``UNKNOWN`` where nobody says."""
        found = _NAMED.fullmatch(reference)
        if not found or reference.startswith("$("):
            return f"{UNKNOWN}{reference}{UNKNOWN}"
        name, operator, default = found[1], found[2], (found[3] or "").removesuffix("}")
        default = default.strip("'") if "'" in default else default.replace('"', "")
        value = self.values.get(name, self.inherited.get(name))
        if operator == "+":
            return self.text(default) if value else ""
        if value:
            return value
        if operator and operator in "-=":
            return self.text(default)
        return f"{UNKNOWN}{reference}{UNKNOWN}" if value is None else value

    def enter(self, name: str, entries: list[str], *, certain: bool) -> None:
        """An array, or with ``NAME+`` more entries of one; under a condition nobody knows which it has."""
        plain = name.removesuffix("+")
        old = self.arrays.get(plain, []) if plain != name else []
        self.arrays[plain] = [*old, *entries] if certain else [f"{UNKNOWN}${{{plain}[@]}}{UNKNOWN}"]

    def settled(self, name: str, value: str) -> str:
        """A variable that is set under a condition: the environment's, else unknown unless it had that value before."""
        unknown = value if self.values.get(name) == value else f"{UNKNOWN}${name}{UNKNOWN}"
        return self.inherited.get(name, unknown)

    def text(self, quoted: str) -> str:
        """The inside of double quotes."""

        def part(m: re.Match[str]) -> str:
            return m["escaped"].replace("\n", "") if m["escaped"] else self.value(m["variable"])

        return _IN_DOUBLE.sub(part, quoted)


def expand(text: str, environ: Mapping[str, str]) -> str:
    """``text`` with its variables in place, as between double quotes."""
    return _Shell(environ).text(text)


def simple_commands(script: str, environ: Mapping[str, str]) -> Iterator[SimpleCommand]:
    """The commands of ``script`` in their order; ``environ`` has the variables that it does not set itself."""
    shell, depth, notes = _Shell(environ), 0, list[str]()
    for line, found in _split(script, shell):
        words = found
        while words and words[0] in (*_OPENING, *_CLOSING, *_BEFORE_A_COMMAND):
            depth += (words[0] in _OPENING) - (words[0] in _CLOSING)
            words = words[1:]
        if words and words[0].endswith("=("):
            shell.enter(words[0].removesuffix("=("), words[1:], certain=not depth)
            continue
        if words and words[0] in ("export", "declare", "local", "readonly"):
            shell.exported.update(w.partition("=")[0] for w in words[1:])
            words = [w for w in words[1:] if "=" in w]
        own: dict[str, str] = {}
        while words and (assignment := ASSIGNMENT.fullmatch(words[0])):
            name, plus, value = assignment.groups()
            own[name] = (shell.values.get(name, "") if plus else "") + value
            words = words[1:]
        if not words:
            shell.values.update({n: shell.settled(n, v) if depth else v for n, v in own.items()})
            continue
        if PurePath(words[0]).name in _ENVIRONMENT or words[1:2] == ["activate"]:
            notes.append(f"before it, `{' '.join(words)}` ran")
        exported = {n: shell.values[n] for n in shell.values if n in shell.exported}
        yield SimpleCommand(tuple(words), {**exported, **own}, line, tuple(notes))


def _split(script: str, shell: _Shell) -> Iterator[tuple[int, list[str]]]:
    """Line and words of each simple command; variables are expanded with what ``shell`` holds by then. An array is a
    command of its own: ``NAME=(`` and its entries."""
    words: list[str] = []
    word: list[str] | None = None
    array = False
    line = start = 1
    for part in _PART.finditer(script):
        kind = str(part.lastgroup)
        if kind in ("blank", "gone", "end"):
            ends = kind == "end" and not array
            if word is not None:
                words.append("".join(word))
                if part[0] == "(" and words[-1].endswith("="):
                    words[-1] += "("
                    ends, array = False, True
            if ends or (array and part[0] == ")"):
                if words:
                    yield start, words
                words, array = [], False
            word = None
        else:
            if word is None and not words:
                start = line
            for i, text in enumerate(_expanded(part, shell, begins=word is None)):
                words += ["".join(word or ())] if i else []
                word = [text] if i else [*(word or ()), text]
        line += part[0].count("\n")
    words += [] if word is None else ["".join(word)]
    if words:
        yield start, words


def _expanded(part: re.Match[str], shell: _Shell, *, begins: bool) -> list[str]:
    """What a part of a word stands for: the first text goes on with the word, each other begins one."""
    reference = part["double"] or part["variable"] or ""
    if reference in ("$@", "$*"):
        return []  # a script that is started without arguments
    if found := _ARRAY.fullmatch(reference):
        return shell.arrays.get(found[1], [])
    if part["variable"]:
        value = shell.value(part["variable"])
        return [value] if UNKNOWN in value else value.split()
    if part["bare"] and begins and part["bare"].startswith("~/"):
        return [shell.inherited.get("HOME", "~") + part["bare"][1:]]
    return [shell.text(part["double"]) if part["double"] else part[str(part.lastgroup)]]
