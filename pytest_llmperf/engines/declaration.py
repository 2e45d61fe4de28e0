"""A server as declared, in keywords of ``llm_server``, and as the ``ServerConfig`` of one engine.

What is wrong with it is a ``ConfigError`` that holds one problem a line; who declared it is for the caller to say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from pytest_llmperf.engines import nccl
from pytest_llmperf.engines.base import EffectiveConfig, Engine, EngineSettings
from pytest_llmperf.engines.command_flags import PLAIN, Spelling, plain
from pytest_llmperf.errors import ConfigError, nearest
from pytest_llmperf.server_config import ServerConfig

_COUNTS = {"tp", "dp", "pp", "max_running_requests", "context_length"}
_SWITCHES = {"cuda_graph", "custom_all_reduce", "prefix_cache"}
#: Keys that hold mappings, and so may have presets; engines' names are such keys too.
MAPPINGS = frozenset({"nccl", "env", "speculative"})
#: What tells an engine which GPUs there are, in the drivers' words.
_VISIBLE = frozenset({"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"})
_PORTABLE = {f.name for f in fields(ServerConfig)} - {"engine", "flags"}
_EFFECTIVE = {f.name for f in fields(EffectiveConfig)}


def merged(outer: Mapping[str, Any], inner: Mapping[str, Any]) -> dict[str, Any]:
    """``inner`` over ``outer``, key by key; mappings are merged one level down, and None clears what ``outer`` said."""
    out = dict(outer)
    for key, value in inner.items():
        old = out.get(key)
        out[key] = {**old, **value} if isinstance(value, Mapping) and isinstance(old, Mapping) else value
    return out


def engines_of(declaration: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Engines a marker restricts its test to (``engine="sglang"`` or a list); empty for any."""
    value = (declaration or {}).get("engine") or ()
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (tuple, list)) or not all(isinstance(n, str) for n in names):
        raise ConfigError(f"llm_server(engine={value!r}) must be a name or a list of names")
    return tuple(dict.fromkeys(names))


def server_config(
    declaration: Mapping[str, Any], engine: Engine, engine_names: frozenset[str], settings: EngineSettings | None = None
) -> ServerConfig:
    """The config that ``declaration`` means for ``engine``, which ``settings`` say how to start here.

    Raises ``ConfigError`` that names keys and engine.
    """
    known = _PORTABLE | engine_names | {"engine"}
    problems = [f"llm_server has no {key!r}{nearest(key, known)}" for key in declaration if key not in known]
    given = {k: _without_none(v) for k, v in declaration.items() if k in known and v is not None}
    if "model" not in given:
        problems.append("llm_server needs a model, like model='meta-llama/Llama-3.1-8B' or model='tiny'")
    for key, value in given.items():
        wanted = _wanted(key, value, key in engine_names)
        if wanted:
            problems.append(f"llm_server({key}={value!r}) must be {wanted}")
    problems = problems or list(_mismatch_problems(given, engine_names))
    if problems:
        raise ConfigError("\n".join(problems))
    values = {k: v for k, v in given.items() if k in _PORTABLE}
    if "nccl" in values:
        values["nccl"] = nccl.variables(values["nccl"], "llm_server")
    if "env" in values:
        values["env"] = {k: str(v) for k, v in values["env"].items()}
    if "allow_mismatch" in values:
        values["allow_mismatch"] = tuple(_field(name, engine.spelling) for name in values["allow_mismatch"])
    config = ServerConfig(engine=engine.name, flags=given.get(engine.name, {}), **values)
    problems = [*engine.problems(config), *lease_problems(config, engine, settings or EngineSettings())]
    if problems:
        raise ConfigError("\n".join(problems))
    return replace(config, flags=engine.given(config))


def lease_problems(config: ServerConfig, engine: Engine, settings: EngineSettings) -> Iterator[str]:
    """Whatever chooses GPUs besides the lease: it would be replaced, while the record goes on saying it."""
    if settings.remote or not engine.gpu_count(config):
        return  # no GPU is leased for it
    mine = engine.name
    said = [f"env={{{name!r}: ...}}" for name in config.env if name in _VISIBLE]
    said += [f"env in [tool.llmperf.engines.{mine}] sets {name}, which" for name in settings.env if name in _VISIBLE]
    words = (word.partition("=") for word in settings.command or ())
    said += [f"the command of {mine} sets {name}, which" for name, sign, _ in words if sign and name in _VISIBLE]
    said += [f"{mine}={{{name!r}: ...}}" for name in engine.choose_gpus if name in engine.given(config)]
    for what in said:
        yield (
            f"{what} is the plugin's to set: a server sees the GPUs that are leased for it. Leave it out; to keep to "
            "some GPUs of this host, start pytest itself with CUDA_VISIBLE_DEVICES"
        )


def _without_none(value: Any) -> Any:
    return {k: v for k, v in value.items() if v is not None} if isinstance(value, Mapping) else value


def _wanted(key: str, value: Any, is_engine: bool) -> str | None:
    """What ``value`` should have been; None when it is right."""
    if key == "engine":
        return None
    if is_engine:
        good, wanted = _is_mapping(value), "a dict of the engine's own flags"
    elif key in _COUNTS or key == "seed":
        good, wanted = type(value) is int and value >= (key != "seed"), "a whole number"
    elif key in _SWITCHES:
        good, wanted = isinstance(value, bool), "True or False"
    elif key == "env":
        good = _is_mapping(value) and all(isinstance(v, str) or is_number(v) for v in value.values())
        wanted = "a dict of texts"
    elif key in MAPPINGS:
        good, wanted = _is_mapping(value), "a dict"
    elif key == "startup_timeout":
        good, wanted = is_number(value) and value > 0, "seconds above 0"
    elif key == "allow_mismatch":
        good, wanted = isinstance(value, (list, tuple)), "a list of field names"
    else:
        good, wanted = isinstance(value, str) and bool(value), "text"
    return None if good else wanted


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(k, str) for k in value)


def _mismatch_problems(given: Mapping[str, Any], engine_names: frozenset[str]) -> Iterator[str]:
    """A misspelt name would allow nothing, silently."""
    flags = {_field(flag) for name in engine_names if _is_mapping(given.get(name)) for flag in given[name]}
    for name in given.get("allow_mismatch", ()):
        if _field(name) not in _EFFECTIVE | flags and not str(name).startswith(nccl.PREFIX):
            near = nearest(str(name), _EFFECTIVE)
            yield f"llm_server(allow_mismatch=...) names no field of the effective config: {name!r}{near}"


def _field(name: Any, spelling: Spelling = PLAIN) -> str:
    """A field's name as a mismatch has it, however the flag was written."""
    return str(name) if name in _EFFECTIVE else plain(str(name), spelling)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
