"""A launch command read back: the declaration that makes an adapter write the same, the reverse of ``Engine.command``.

A portable key is taken where the adapter itself translates it into exactly the flags that were given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from pytest_llmperf.engines import nccl
from pytest_llmperf.engines.base import PORTABLE, Command, Endpoint, Engine, EngineSettings, Starting
from pytest_llmperf.engines.declaration import server_config
from pytest_llmperf.engines.flags_reader import is_secret_flag, read, written
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.server_config import ServerConfig, is_secret

_COUNTS = ("tp", "dp", "pp")
_SWITCHES = ("cuda_graph", "custom_all_reduce", "prefix_cache")
_METHODS = ("eagle3", "eagle", "mtp", "draft_model", "ngram")
#: The leased GPUs are named by these.
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
#: Flags that a launch sets by itself, or that would keep the plugin from asking over plain HTTP.
_OWNED = re.compile(r"host|port|api_key|served_model_name|alias|uds|ssl_\w+")
#: Flags of one process among several that only together serve.
_PART = ("headless", "data_parallel_start_rank", "data_parallel_address", "data_parallel_external_lb")


@dataclass(frozen=True)
class Declared:
    """Keywords of ``llm_server``, and what the reader of the command is to know about them, a sentence each."""

    keywords: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def declared(engine: Engine, words: Sequence[str], env: Mapping[str, str]) -> Declared:
    """The declaration of the server that ``engine`` starts when ``words`` follow its program and ``env`` is set.

    Raises ``ConfigError`` for what one marker cannot start (a node of several) and for what has two meanings.
    """
    notes: list[str] = []
    model, flags = read(engine, words)
    _refuse_parts(flags)
    owned = [written(n, flags.pop(n)) for n in [n for n in flags if _is_owned(engine, n)]]
    secret = [written(n, flags.pop(n)) for n in [n for n, v in flags.items() if is_secret_flag(n, v)]]
    notes += [f"left out, the plugin's to set: {', '.join(owned)}"] if owned else []
    notes += [f"left out, secrets: {', '.join(secret)}; set them as variables where pytest runs"] if secret else []
    if "config" in flags:
        notes.append(
            f"--config {flags['config']}: what that file sets is not seen here; GPUs are leased for tp, dp, pp"
        )
    keys, rest = _portable(engine, model, _without_defaults(engine, flags))
    keywords = {"model": model, **keys, **_variables(env, notes)}
    if rest:
        keywords[engine.name] = rest
    return Declared(keywords, tuple(notes))


def made(engine: Engine, keywords: Mapping[str, Any], settings: EngineSettings, engines: frozenset[str]) -> Command:
    """The command that a marker of these ``keywords`` starts. Raises ``ConfigError`` as collection would."""
    config = server_config(keywords, engine, engines)
    return engine.command(config, settings, Endpoint("127.0.0.1", 1, "key"))


@dataclass(frozen=True)
class RoundTrip:
    """``lost`` are flags and variables that only one of two commands has, as written; ``added`` those that every launch
    gets from the plugin."""

    lost: tuple[str, ...]
    added: tuple[str, ...]


def round_trip(
    engine: Engine, words: Sequence[str], env: Mapping[str, str], command: Command, program: int
) -> RoundTrip:
    """What ``words`` behind the program, with ``env``, have beside ``command``, whose program has that many words.

    The order counts for nothing, nor do the flags and variables that the plugin owns.
    """
    (model, flags), (made_model, made_flags) = read(engine, words), read(engine, command.argv[program:])
    config = ServerConfig(engine=engine.name, model=model)
    own = engine.own_flags(Starting(config, EngineSettings(), Endpoint("127.0.0.1", 1), model, ()))
    kept = {n: v for n, v in flags.items() if not (_is_owned(engine, n) or is_secret_flag(n, v))}
    wanted = _without_defaults(engine, kept)
    more = {n: v for n, v in made_flags.items() if n not in wanted and not _is_owned(engine, n)}
    lost = [] if model == made_model else [f"model {model!r}"]
    lost += [written(n, v) for n, v in wanted.items() if n not in made_flags or not _same(made_flags[n], v)]
    lost += [f"{written(n, v)}, which was not there" for n, v in more.items() if n not in own]
    lost += [f"{n}={v}" for n, v in env.items() if not _env_left_out(n) and command.env.get(n) != v]
    return RoundTrip(tuple(lost), tuple(written(n, v) for n, v in more.items() if n in own))


def _is_owned(engine: Engine, name: str) -> bool:
    return bool(_OWNED.fullmatch(name)) or name in engine.choose_gpus


def _without_defaults(engine: Engine, flags: Mapping[str, Any]) -> dict[str, Any]:
    """A count of one is what there is without it."""
    ones = {engine.flags.get(key) for key in _COUNTS}
    return {n: v for n, v in flags.items() if not (n in ones and v == 1)}


def _portable(engine: Engine, model: str, flags: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Portable keys out of ``flags``, and the flags that are left."""
    keys: dict[str, Any] = {}
    rest = dict(flags)
    for key in (k for k in PORTABLE if k in engine.flags):
        found: tuple[Any, dict[str, Any]] = (None, {})
        whole: set[str] = set()
        for value in _candidates(engine, key, rest):
            config = ServerConfig(engine=engine.name, model=model, **{key: value})
            flags_of = {} if engine.problems(config) else engine.portable_flags(config)
            whole |= flags_of.keys()
            flags_of = {n: v for n, v in flags_of.items() if v is not None}
            if len(flags_of) > len(found[1]) and all(n in rest and _same(rest[n], v) for n, v in flags_of.items()):
                found = value, flags_of
        value, taken = found
        # half of it here and half of it there would be two places for one thing
        if taken and not (whole - taken.keys()) & rest.keys():
            keys[key] = value
            rest = {n: v for n, v in rest.items() if n not in taken}
    return keys, rest


def _same(one: Any, other: Any) -> bool:
    """1 is not True."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _candidates(engine: Engine, key: str, flags: Mapping[str, Any]) -> Iterator[Any]:
    """Values of a portable key that may have made some of ``flags``."""
    flag = engine.flags[key]
    if key in _SWITCHES:
        yield from (True, False)
    elif key == "speculative":
        yield from _speculations(flags)
    else:
        kind = int if key in (*_COUNTS, "max_running_requests", "context_length", "seed") else str
        values = [flags.get(flag)] if isinstance(flag, str) else list(flags.values())
        yield from (v for v in values if type(v) is kind)


def _speculations(flags: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every declaration whose model and numbers are among those that the flags of speculation hold."""
    held = [v for n, v in flags.items() if n.startswith("spec")]
    leaves = [leaf for v in held for leaf in (v.values() if isinstance(v, Mapping) else [v])]
    models = [None, *(v for v in leaves if isinstance(v, str))]
    counts = [v for v in leaves if type(v) is int]
    # an engine may count the token that is verified beside those that are drafted
    tokens = [None, *counts, *(n - 1 for n in counts if n > 1)]
    shapes = [None, *counts]
    for method, model, steps, topk, number in product(_METHODS if held else (), models, shapes, shapes, tokens):
        names = {"method": method, "model": model, "num_tokens": number, "num_steps": steps, "topk": topk}
        yield {k: v for k, v in names.items() if v is not None}


def _variables(env: Mapping[str, str], notes: list[str]) -> dict[str, Any]:
    """``env`` as the keywords ``nccl`` and ``env``."""
    found: dict[str, dict[str, Any]] = {"nccl": {}, "env": {}}
    for name, value in env.items():
        why = _env_left_out(name)
        if why:
            notes.append(f"left out: {name} ({why})")
        elif name.startswith(nccl.PREFIX) and _is_nccl(name, value, notes):
            found["nccl"][name.removeprefix(nccl.PREFIX).lower()] = int(value) if value.isdecimal() else value
        else:
            found["env"][name] = value
    return {key: values for key, values in found.items() if values}


def _is_nccl(name: str, value: str, notes: list[str]) -> bool:
    try:
        return nccl.variables({name: value}, "")[name] == value
    except ConfigError:
        notes.append(f"{name}={value} is not known to NCCL as of this plugin: is it spelled right?")
        return False


def _env_left_out(name: str) -> str | None:
    if name in _VISIBLE:
        return "the lease decides which GPUs it gets"
    if is_secret(name):
        return "a secret: set it where pytest runs, or where the engine does"
    return None


def _refuse_parts(flags: Mapping[str, Any]) -> None:
    nodes = flags.get("nnodes", 1)
    part = next((n for n in _PART if flags.get(n) not in (None, 0, False)), None)
    if nodes != 1 or part:
        name, value = (part, flags[part]) if part else ("nnodes", nodes)
        raise ConfigError(
            f"{written(name, value)}: this command is one node's part of a server on several, and a marker starts one "
            "command. Let srun, MPI or Ray start the parts (docs/how-to/multi-node) and paste the command without what "
            "tells nodes apart (--nnodes, --node-rank, the addresses and ranks)"
        )
    if flags.get("disaggregation_mode") in ("prefill", "decode"):
        raise ConfigError(
            f"--disaggregation-mode {flags['disaggregation_mode']}: half of a server, which answers only together with "
            "its other half behind a router. Start the router's command with [tool.llmperf.engines.<name>] or measure "
            "it with --llmperf-url"
        )
