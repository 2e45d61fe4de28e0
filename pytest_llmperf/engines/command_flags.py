"""Command line flags out of a mapping as a user declares it: ``{"num_continuous_decode_steps": 4}``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pytest_llmperf.server_config import ServerConfig

_NAME = re.compile(r"-{0,2}[A-Za-z][\w.-]*")


@dataclass(frozen=True)
class Spelling:
    """How an engine writes flags. ``dashes``: words are joined by dashes, else by underscores. ``negates``: a switch
    is turned off by ``--no-flag``; elsewhere ``False`` is said by leaving it out."""

    dashes: bool = True
    negates: bool = False


def argv(flags: Mapping[str, Any], spelling: Spelling) -> list[str]:
    """Command line arguments in the order of ``flags``.

    ``True`` gives the bare flag; ``False`` its negation; ``None`` leaves it out; a list gives its values after one
    flag; a mapping gives one JSON value.
    """
    return [argument for name, value in flags.items() for argument in _one(spelled(name, spelling), value, spelling)]


def spelled(name: str, spelling: Spelling) -> str:
    """``tp_size``, ``tp-size`` and ``--tp-size`` are one flag."""
    return "--" + (plain(name).replace("_", "-") if spelling.dashes else plain(name))


def plain(name: str) -> str:
    """The spelling that this package uses for keys: ``tp_size``."""
    return name.lstrip("-").replace("-", "_")


def normal(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The same flags under their plain names, so that a later mapping replaces an earlier one's entries."""
    return {plain(name): value for name, value in flags.items()}


def layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers over earlier ones; where both hold a mapping, its entries are merged."""
    out: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            old = out.get(name)
            out[name] = {**old, **value} if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return out


def _one(flag: str, value: Any, spelling: Spelling) -> Iterator[str]:
    if value is None or (value is False and not spelling.negates):
        return
    if isinstance(value, bool):
        yield flag if value else f"--no{'-' if spelling.dashes else '_'}{flag[2:]}"
    elif isinstance(value, (list, tuple)):
        yield flag
        yield from (str(v) for v in value)
    else:
        text = json.dumps(_builtin(value), separators=(",", ":")) if isinstance(value, Mapping) else str(value)
        if text.startswith("-") and not isinstance(value, (int, float)):
            yield f"{flag}={text}"  # or argparse takes the value for a flag
        else:
            yield from (flag, text)


def _builtin(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _builtin(v) for k, v in value.items()}
    return [_builtin(v) for v in value] if isinstance(value, (list, tuple)) else value


def problems(engine: str, flags: Mapping[str, Any], places: Mapping[str, str]) -> list[str]:
    """A sentence for each of ``flags`` that cannot be written, or that the plugin writes itself.

    ``places`` says of the latter where to declare them instead.
    """
    found = []
    for name, value in flags.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            found.append(f"{engine}={{{name!r}: ...}} is not the name of a flag")
        elif plain(name) in places:
            found.append(f"{engine}={{{name!r}: ...}} is the plugin's to set; use {places[plain(name)]}")
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


def count(flags: Mapping[str, Any], name: str) -> int:
    """A flag that counts things, 1 when it is missing or is no such number (the engine will say so)."""
    text = str(flags.get(name, 1))
    return max(int(text), 1) if text.isdecimal() else 1


def overridden(config: ServerConfig, fields: Mapping[str, str]) -> ServerConfig:
    """``config`` with the portable keys that its own flags declare anew; ``fields`` maps flag to portable key."""
    given = normal(config.flags)
    changes: dict[str, Any] = {key: given[flag] for flag, key in fields.items() if given.get(flag) is not None}
    return replace(config, **changes)
