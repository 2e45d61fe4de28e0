"""Command line flags out of a mapping as a user declares it: ``{"num_continuous_decode_steps": 4}``.

However a flag was written, it has one form here (``normal``): it decides whether two configs are one, what is compared
with the running server, and what stands on the command line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_NAME = re.compile(r"-{0,2}[A-Za-z][\w-]*(\.[\w-]+)*")
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,14})")
_DECIMAL = re.compile(r"-?(0|[1-9]\d*)?\.\d+")
_WITH_SUFFIX = re.compile(r"(\d+(?:\.\d+)?)([A-Za-z]+)")
#: Flags whose values look like decimals and are names: 1.10 is not 1.1.
_NAMES = re.compile(r"revision|version|name|path")


@dataclass(frozen=True)
class Spelling:
    """How an engine writes flags and reads their values.

    ``dashes``: words are joined by dashes, else by underscores. ``negates``: a switch is turned off by ``--no-flag``;
    elsewhere ``False`` is said by leaving it out. ``aliases``: further names of a flag (those of one dash with it,
    ``-ep``) to the name that is used here. ``dotted``: ``--config.key`` sets a key of what ``--config`` takes.
    ``suffixes``: what may follow a number (``32K``) in the flags ``suffixed``, and in dotted ones.
    """

    dashes: bool = True
    negates: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    dotted: bool = False
    suffixes: Mapping[str, int] = field(default_factory=dict)
    suffixed: frozenset[str] = frozenset()


PLAIN = Spelling()


def argv(flags: Mapping[str, Any], spelling: Spelling) -> list[str]:
    """Command line arguments in the order of ``flags``.

    ``True`` gives the bare flag; ``False`` its negation; ``None`` leaves it out; a list gives its values after one
    flag; a mapping, also one in a list, gives one JSON value.
    """
    return [argument for name, value in flags.items() for argument in _one(spelled(name, spelling), value, spelling)]


def spelled(name: str, spelling: Spelling) -> str:
    """``tp_size``, ``tp-size`` and ``--tp-size`` are one flag."""
    known = plain(name, spelling)
    return "--" + (known.replace("_", "-") if spelling.dashes else known)


def plain(name: str, spelling: Spelling = PLAIN) -> str:
    """The spelling that this package uses for keys: ``tp_size``. What follows a dot is a key of a mapping, as it is.

    A name of one dash that is no alias keeps its dash.
    """
    head, dot, key = name.removeprefix("--").partition(".")
    head = head[:1] + head[1:].replace("-", "_")
    return spelling.aliases.get(head, head) + dot + key


def normal(flags: Mapping[str, Any], spelling: Spelling = PLAIN) -> dict[str, Any]:
    """The same flags in their one form: plain names, numbers as numbers, dotted names as the mapping that they fill.

    Of one flag under two names the later counts, or its entries do.
    """
    out: dict[str, Any] = {}
    for given, value in flags.items():
        name, *keys = plain(given, spelling).split(".")
        one = _nested(keys, _parsed(value, spelling)) if keys else _typed(name, value, spelling)
        out = layered(out, {name: one})
    return out


def _nested(keys: Sequence[str], value: Any) -> Any:
    return {keys[0]: _nested(keys[1:], value)} if keys else value


def layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers over earlier ones; where both hold a mapping, its entries are merged."""
    out: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            old = out.get(name)
            out[name] = layered(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return out


def _typed(name: str, value: Any, spelling: Spelling) -> Any:
    """A number, or a mapping, for a text that holds one; whole numbers as such."""
    if isinstance(value, (list, tuple)):
        return [_typed(name, v, spelling) for v in value]
    if isinstance(value, str):
        if value.startswith("{") and isinstance(found := _json(value), dict):
            return found
        return _number(value, spelling if name in spelling.suffixed else PLAIN, decimals=not _NAMES.search(name))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _number(text: str, spelling: Spelling, *, decimals: bool) -> Any:
    """The number that ``text`` is to the engine; ``text`` where it is none."""
    found = _WITH_SUFFIX.fullmatch(text)
    if found and found[2] in spelling.suffixes:
        return int(float(found[1]) * spelling.suffixes[found[2]])
    if _WHOLE.fullmatch(text):
        return int(text)
    if decimals and _DECIMAL.fullmatch(text):
        return _typed("", float(text), PLAIN)
    return text


def _parsed(value: Any, spelling: Spelling) -> Any:
    """The value of a dotted flag, whose text is JSON where it can be."""
    found = _json(value) if isinstance(value, str) else value
    return _number(found, spelling, decimals=False) if isinstance(found, str) else found


def _json(text: str) -> Any:
    """What ``text`` holds as JSON, or itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _one(flag: str, value: Any, spelling: Spelling) -> Iterator[str]:
    if value is None or (value is False and not spelling.negates):
        return
    if isinstance(value, bool):
        yield flag if value else f"--no{'-' if spelling.dashes else '_'}{flag[2:]}"
    elif isinstance(value, (list, tuple)):
        yield flag
        yield from (_word(v) for v in value)
    else:
        text = _word(value)
        if text.startswith("-") and not isinstance(value, (int, float)):
            yield f"{flag}={text}"  # or argparse takes the value for a flag
        else:
            yield from (flag, text)


def _word(value: Any) -> str:
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(_builtin(value), separators=(",", ":"))
    return str(value)


def _builtin(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _builtin(v) for k, v in value.items()}
    return [_builtin(v) for v in value] if isinstance(value, (list, tuple)) else value


def problems(engine: str, flags: Mapping[str, Any], places: Mapping[str, str], spelling: Spelling) -> list[str]:
    """A sentence for each of ``flags`` that cannot be written, or that the plugin writes itself.

    ``places`` says of the latter where to declare them instead.
    """
    found = []
    for name, value in flags.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            found.append(f"{engine}={{{name!r}: ...}} is not the name of a flag")
            continue
        head, dot, _ = plain(name, spelling).partition(".")
        if head.startswith("-"):
            found.append(
                f"{engine}={{{name!r}: ...}} is a short name that this plugin does not know: write the long one, as "
                f"{engine}={{'some_flag': ...}}"
            )
        elif head in places:
            found.append(f"{engine}={{{name!r}: ...}} is the plugin's to set; use {places[head]}")
        elif dot and not spelling.dotted:
            found.append(f"{engine}={{{name!r}: ...}} has a dot, and {engine} takes none: give {head!r} whole")
        elif not _writable(value):
            found.append(
                f"{engine}={{{name!r}: {value!r}}} must be a text, a number, a boolean, or a list or dict of those"
            )
    return found


def _writable(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and _writable(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(_writable(v) for v in value)
    return value is None or isinstance(value, (bool, int, float, str))


def count(flags: Mapping[str, Any], name: str, default: int = 1) -> int:
    """A flag that counts things, ``default`` when it is missing or is no such number (the engine will say so)."""
    value = flags.get(name)
    return value if type(value) is int and value >= 0 else default
