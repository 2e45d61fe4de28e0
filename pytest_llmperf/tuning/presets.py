"""Named settings with their reason, as data: ``nccl="ll-ring"``. Users add their own in ``[tool.llmperf.presets]``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any, TypeAlias

import tomli

from pytest_llmperf.errors import ConfigError, nearest

_FIELDS = frozenset({"values", "reason", "caution"})


@dataclass(frozen=True)
class Preset:
    """``values`` for one key of ``llm_server`` (``nccl``, ``sglang``, ``vllm``, ``env``). ``reason`` says when it
    helps, ``caution`` what it may cost."""

    key: str
    name: str
    values: Mapping[str, Any]
    reason: str
    caution: str = ""


#: By (key, name).
Presets: TypeAlias = Mapping[tuple[str, str], Preset]


def load_presets(own: Mapping[str, Any] | None = None, where: str = "[tool.llmperf.presets]") -> Presets:
    """Those that ship, and ``own`` tables ``{key: {name: {values, reason}}}`` over them.

    Raises ``ConfigError`` for a table of another shape, which ``where`` names.
    """
    found: dict[tuple[str, str], Preset] = {}
    for file in sorted(resources.files(__package__).joinpath("presets").iterdir(), key=lambda f: f.name):
        if file.name.endswith(".toml"):
            found.update(_read(tomli.loads(file.read_text(encoding="utf-8")), file.name))
    found.update(_read(own or {}, where))
    return MappingProxyType(found)


def expand(declared: Mapping[str, Any], presets: Presets, where: str) -> dict[str, Any]:
    """``declared`` (keywords of ``llm_server``) with every preset's name replaced by its values.

    A name stands where a dict would; a list holds names and dicts, later ones over earlier ones:
    ``nccl=["ll-ring", {"proto": "LL128"}]``. Raises ``ConfigError`` for a name that is not known.
    """
    keys = {key for key, _ in presets}
    return {key: _values(key, value, presets, where) if key in keys else value for key, value in declared.items()}


def _values(key: str, value: Any, presets: Presets, where: str) -> Any:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)):
        return value
    out: dict[str, Any] = {}
    for part in value:
        if isinstance(part, str):
            out.update(_preset(key, part, presets, where).values)
        elif isinstance(part, Mapping):
            out.update(part)
        else:
            raise ConfigError(f"{where}: {key}={value!r} must hold names of presets and dicts, not {part!r}")
    return out


def _preset(key: str, name: str, presets: Presets, where: str) -> Preset:
    if (key, name) not in presets:
        near = nearest(name, (n for k, n in presets if k == key))
        raise ConfigError(f"{where}: no preset {name!r} for {key}{near}")
    return presets[key, name]


def _read(tables: Mapping[str, Any], where: str) -> dict[tuple[str, str], Preset]:
    found: dict[tuple[str, str], Preset] = {}
    for key, named in tables.items():
        if not isinstance(named, Mapping):
            raise ConfigError(f"{where}: {key} must be a table of presets")
        for name, table in named.items():
            if (
                not isinstance(table, Mapping)
                or not isinstance(table.get("values"), Mapping)
                or not table.get("reason")
            ):
                raise ConfigError(f"{where}: preset {key}.{name} needs a table of values and a reason")
            if extra := sorted(set(table) - _FIELDS):
                raise ConfigError(
                    f"{where}: preset {key}.{name} has no {extra[0]!r}; {', '.join(sorted(_FIELDS))} only"
                )
            values = MappingProxyType(dict(table["values"]))
            found[key, name] = Preset(key, name, values, str(table["reason"]), str(table.get("caution", "")))
    return found
