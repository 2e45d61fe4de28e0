"""``@perf`` and ``@llm_server`` as frozen values. Unknown or ill-typed keys are errors at collection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import pytest

from pytest_llmperf.engines import nccl
from pytest_llmperf.engines.base import Engine
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.measure.metrics import METRICS
from pytest_llmperf.options import nearest
from pytest_llmperf.server.config import ServerConfig

PERF_SIGNATURE = (
    "perf(target=None, metric='decode_tok_s', max_regression=None, min_effect=None, precision=None, repetitions=None, "
    "max_repetitions=None): gate this test's metrics against its baseline and, when given, a target; see pytest-llmperf"
)
SERVER_SIGNATURE = (
    "llm_server(*profiles, engine=None, model=..., tp=1, attention_backend=None, nccl={}, env={}, sglang={}, vllm={}, "
    "...): the server this test needs; inner markers override outer ones key by key; see pytest-llmperf"
)

SERVERS_SIGNATURE = (
    "llm_servers(name={...}, ...): several servers at once, each the declared llm_server with these keys overridden; "
    "see pytest-llmperf"
)

_INTS = {"tp", "dp", "pp", "max_running_requests", "context_length", "seed"}
_BOOLS = {"cuda_graph", "custom_all_reduce", "prefix_cache"}
_MAPPINGS = {"nccl", "env", "speculative"}
_PORTABLE = {f.name for f in fields(ServerConfig)} - {"engine", "flags"}


@dataclass(frozen=True)
class Perf:
    """``@perf(...)``. ``target`` maps a metric to the value it must reach, in the metric's unit and direction."""

    metrics: tuple[str, ...] = ("decode_tok_s",)
    target: tuple[tuple[str, float], ...] = ()
    max_regression: float | None = None
    min_effect: float | None = None
    precision: float | None = None
    repetitions: int | None = None
    max_repetitions: int | None = None

    def workload(self) -> dict[str, Any]:
        """What the marker says about a workload, as fields of ``measure.metrics.Workload``."""
        said = {n: getattr(self, n) for n in ("precision", "repetitions", "max_repetitions")}
        return {k: v for k, v in said.items() if v is not None}

    @classmethod
    def from_item(cls, item: pytest.Item) -> Perf | None:
        """The closest ``perf`` markers of ``item`` merged, inner over outer; None without one."""
        kwargs: dict[str, Any] = {}
        marks = list(item.iter_markers("perf"))
        for mark in reversed(marks):
            if mark.args:
                raise ConfigError(f"{item.nodeid}: @perf takes keywords only, like @perf(target=82.5), not {mark.args}")
            kwargs.update(mark.kwargs)
        return cls._checked(kwargs, item.nodeid) if marks else None

    @classmethod
    def _checked(cls, kwargs: dict[str, Any], nodeid: str) -> Perf:
        known = {"metric"} | {f.name for f in fields(cls)} - {"metrics"}
        for key in kwargs:
            if key not in known:
                raise ConfigError(f"{nodeid}: @perf has no {key!r}{nearest(key, known)}")
        metric = kwargs.pop("metric", "decode_tok_s")
        metrics = (metric,) if isinstance(metric, str) else tuple(metric)
        target = kwargs.pop("target", None)
        targets = {} if target is None else dict(target) if isinstance(target, Mapping) else {metrics[0]: target}
        for name in (*metrics, *targets):
            if name not in METRICS:
                raise ConfigError(f"{nodeid}: @perf names no known metric: {name!r}{nearest(str(name), METRICS)}")
        for name, value in (*targets.items(), *kwargs.items()):
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0):
                raise ConfigError(f"{nodeid}: @perf({name}={value!r}) must be a positive number")
        for name in ("repetitions", "max_repetitions"):
            if kwargs.get(name) is not None and (not isinstance(kwargs[name], int) or kwargs[name] < 1):
                raise ConfigError(f"{nodeid}: @perf({name}={kwargs[name]!r}) must be a whole number from 1")
        return cls(metrics, tuple(sorted((k, float(v)) for k, v in targets.items())), **kwargs)


def declared(item: pytest.Item, profiles: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """What the ``llm_server`` markers of ``item`` declare, merged from outer to inner; None without one."""
    merged: dict[str, Any] = {}
    found = False
    for mark in reversed(list(item.iter_markers("llm_server"))):
        found = True
        for layer in _layers(mark, profiles, item.nodeid):
            _merge(merged, layer)
    return merged if found else None


def _layers(mark: pytest.Mark, profiles: Mapping[str, Mapping[str, Any]], nodeid: str) -> Iterator[Mapping[str, Any]]:
    for name in mark.args:
        if name not in profiles:
            raise ConfigError(
                f"{nodeid}: no profile {name!r} in [tool.llmperf.profiles]{nearest(str(name), profiles or {'(none)'})}"
            )
        yield profiles[name]
    yield mark.kwargs


def merged(outer: Mapping[str, Any], inner: Mapping[str, Any]) -> dict[str, Any]:
    """``inner`` over ``outer``, key by key."""
    out = dict(outer)
    _merge(out, inner)
    return out


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Key by key; mappings are merged one level down, and None clears what an outer marker said."""
    for key, value in layer.items():
        old = into.get(key)
        into[key] = {**old, **value} if isinstance(value, Mapping) and isinstance(old, Mapping) else value


def engines_of(declaration: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Engines a marker restricts its test to (``engine="sglang"`` or a list); empty for any."""
    value = (declaration or {}).get("engine") or ()
    return (value,) if isinstance(value, str) else tuple(value)


def server_config(
    declaration: Mapping[str, Any], engine: Engine, engine_names: frozenset[str], where: str
) -> ServerConfig:
    """The config that ``declaration`` means for ``engine``. Raises ``ConfigError`` that names key, engine and test."""
    known = _PORTABLE | engine_names | {"engine"}
    for key in declaration:
        if key not in known:
            raise ConfigError(f"{where}: llm_server has no {key!r}{nearest(key, known)}")
    values = {k: v for k, v in declaration.items() if k in _PORTABLE and v is not None}
    if "model" not in values:
        raise ConfigError(f"{where}: llm_server needs a model, like model='meta-llama/Llama-3.1-8B' or model='tiny'")
    for key, value in values.items():
        _check_type(key, value, where)
    flags = declaration.get(engine.name) or {}
    if not isinstance(flags, Mapping):
        raise ConfigError(f"{where}: {engine.name}= must be a dict of the engine's own flags, not {flags!r}")
    if "nccl" in values:
        values["nccl"] = nccl.variables(values["nccl"], where)
    if "env" in values:
        values["env"] = {str(k): str(v) for k, v in values["env"].items()}
    if "allow_mismatch" in values:
        values["allow_mismatch"] = tuple(values["allow_mismatch"])
    config = ServerConfig(engine=engine.name, flags=flags, **values)
    problems = engine.problems(config)
    if problems:
        raise ConfigError(f"{where}: " + f"\n{where}: ".join(problems))
    return config


def _check_type(key: str, value: Any, where: str) -> None:
    if key in _INTS:
        good = isinstance(value, int) and not isinstance(value, bool) and value >= (0 if key == "seed" else 1)
        wanted = "a whole number"
    elif key in _BOOLS:
        good, wanted = isinstance(value, bool), "True or False"
    elif key in _MAPPINGS:
        good = isinstance(value, Mapping) or (key == "nccl" and isinstance(value, str))
        wanted = "a dict"
    elif key == "startup_timeout":
        good, wanted = isinstance(value, (int, float)) and value > 0, "seconds above 0"
    elif key == "allow_mismatch":
        good, wanted = isinstance(value, (list, tuple)), "a list of field names"
    else:
        good, wanted = isinstance(value, str) and bool(value), "text"
    if not good:
        raise ConfigError(f"{where}: llm_server({key}={value!r}) must be {wanted}")
