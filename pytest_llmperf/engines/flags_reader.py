"""The words of a command line as flags and their values.

No engine's list of flags is needed: a word behind a flag that does not begin with a dash is its value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pytest_llmperf.engines import command_flags
from pytest_llmperf.engines.base import Engine
from pytest_llmperf.errors import ConfigError

_FLAG = re.compile(r"--?[A-Za-z].*", re.DOTALL)
#: A one-letter name with its number, as argparse takes it: ``-O3``.
_GLUED = re.compile(r"(-[A-Za-z])(\d+)")
#: Flags of these beginnings are switches on every engine: a word behind one belongs to nobody.
_SWITCH = re.compile(r"(enable|disable|no|trust|enforce|skip)_")
_SECRET = re.compile(r"(\w+_)?(token|api_key|password)")


def read(engine: Engine, words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The model, and the flags in their normal form. Raises ``ConfigError`` where a word has no certain meaning."""
    models, given = _grouped(engine, words)
    named: Any = next((given.pop(key) for key in ("model_path", "model") if key in given), [])
    models += named if isinstance(named, list) else [named]
    models = models or _stray(given)
    if len(set(models)) != 1:
        said = f"names {len(models)} models ({', '.join(models)})" if models else "names no model"
        raise ConfigError(f"the command {said}; write the one model directly behind the program, or as --model")
    for name in given:
        head, dot, _ = name.partition(".")
        if dot and head in given:
            # the engine would forget one of them
            raise ConfigError(f"{written(head, given[head])} and --{name} set the same; keep one")
    return models[0], command_flags.normal(given, engine.spelling)


def _grouped(engine: Engine, words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Words before the first flag, and each flag's value: a switch's, one word, or a list of several."""
    given: dict[str, Any] = {}
    words = [part for word in words for part in _unglued(word)]
    starts = [i for i, word in enumerate(words) if _FLAG.fullmatch(word)]
    for start, end in pairwise([*starts, len(words)]):
        flag, equals, first = words[start].partition("=")
        values = ([first] if equals else []) + list(words[start + 1 : end])
        value: Any = True if not values else values[0] if len(values) == 1 else values
        if engine.spelling.negates and flag[:5] in ("--no-", "--no_") and value is True:
            flag, value = f"--{flag[5:]}", False
        head, dot, path = flag.partition(".")
        name = engine.long_name(head, None if dot else value)
        if path.endswith("+") and engine.spelling.dotted:
            path, value = path[:-1], str(value).split(",")
        name += dot + path
        if given.get(name, value) != value:
            raise ConfigError(f"{written(name, given[name])} and {written(name, value)}: keep one")
        given[name] = value
    return list(words[: starts[0] if starts else None]), given


def _unglued(word: str) -> tuple[str, ...]:
    found = _GLUED.fullmatch(word)
    return (found[1], found[2]) if found else (word,)


def _stray(given: dict[str, Any]) -> list[str]:
    """A model that stands behind another flag's value, taken out of ``given``, if there is one such place only."""
    pairs = [n for n, v in given.items() if isinstance(v, list) and len(v) == 2]
    switches = [n for n, v in given.items() if isinstance(v, str) and _SWITCH.match(n)]
    if len(pairs) + len(switches) != 1:
        return []
    name = (pairs or switches)[0]
    value = given[name]
    given[name] = value[0] if pairs else True
    return [value[1] if pairs else value]


def written(name: str, value: Any) -> str:
    """A flag for people; a secret's value is not shown."""
    flag = name if name.startswith("-") else f"--{name.replace('_', '-')}"
    if value is True or value is False:
        return flag if value else f"--no-{flag[2:]}"
    values = value if isinstance(value, list) else [value]
    if is_secret_flag(name, value):
        values = ["***"]
    return " ".join([flag, *(json.dumps(v) if isinstance(v, Mapping) else str(v) for v in values)])


def is_secret_flag(name: str, value: Any) -> bool:
    """``--hf-token``, not ``--max-token 8``."""
    return isinstance(value, str) and bool(_SECRET.fullmatch(name))
