"""``@perf`` and ``@llm_server`` as frozen values. What is wrong with one is a ``ConfigError`` at collection that holds
one problem a line; who declared it is for the caller to say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import pytest

from pytest_llmperf.engines import nccl
from pytest_llmperf.engines.base import EffectiveConfig, Engine
from pytest_llmperf.errors import ConfigError, nearest
from pytest_llmperf.measure.metrics import METRICS
from pytest_llmperf.server_config import ServerConfig
from pytest_llmperf.tuning.presets import Presets, expand

_COUNTS = {"tp", "dp", "pp", "max_running_requests", "context_length"}
_SWITCHES = {"cuda_graph", "custom_all_reduce", "prefix_cache"}
#: Keys that hold mappings, and so may have presets; engines' names are such keys too.
MAPPINGS = frozenset({"nccl", "env", "speculative"})
_PORTABLE = {f.name for f in fields(ServerConfig)} - {"engine", "flags"}
_EFFECTIVE = {f.name for f in fields(EffectiveConfig)}


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
        """The ``perf`` markers of ``item`` merged, inner over outer; None without one. Raises ``ConfigError``."""
        merged: dict[str, Any] = {}
        problems: list[str] = []
        marks = list(item.iter_markers("perf"))
        for mark in reversed(marks):
            if mark.args:
                problems.append(f"@perf takes keywords only, like @perf(target=82.5), not {mark.args}")
            if "metric" in mark.kwargs:
                merged.pop("target", None)  # it was meant for the metric that stood beside it
            merged.update(mark.kwargs)
        known = {"metric"} | {f.name for f in fields(cls)} - {"metrics"}
        problems += [f"@perf has no {key!r}{nearest(key, known)}" for key in merged if key not in known]
        target = merged.pop("target", None)
        targets = dict(target) if isinstance(target, Mapping) else {}
        metric = merged.pop("metric", tuple(targets) or "decode_tok_s")
        metrics = tuple(metric) if isinstance(metric, (tuple, list)) else (metric,)
        if target is not None and not isinstance(target, Mapping):
            targets = {metrics[0]: target} if metrics else {}
        problems += [*_metric_problems(metrics, targets), *_number_problems(merged)]
        if problems:
            raise ConfigError("\n".join(problems))
        return cls(metrics, tuple(sorted((k, float(v)) for k, v in targets.items())), **merged) if marks else None


def _metric_problems(metrics: tuple[Any, ...], targets: Mapping[Any, Any]) -> Iterator[str]:
    if not metrics or len(set(map(str, metrics))) < len(metrics):
        yield f"@perf(metric={metrics!r}) must name at least one metric, each once"
    for name in dict.fromkeys((*metrics, *targets)):
        if name not in METRICS:
            yield f"@perf names no known metric: {name!r}{nearest(str(name), METRICS)}"
    for name, value in targets.items():
        if name not in metrics:
            yield f"@perf(target=...) is for {name!r}, which metric={metrics!r} does not gate"
        if not _is_number(value) or value <= 0:
            yield f"@perf(target={value!r}) must be a number above 0, in the metric's unit"


def _number_problems(given: Mapping[str, Any]) -> Iterator[str]:
    for name in ("max_regression", "min_effect", "precision"):
        value = given.get(name)
        if value is not None and not (_is_number(value) and 0 <= value < 1 and (value or name != "max_regression")):
            yield f"@perf({name}={value!r}) must be a fraction below 1 (0.05 is 5 %)"
    for name in ("repetitions", "max_repetitions"):
        value = given.get(name)
        if value is not None and not (type(value) is int and value >= 1):
            yield f"@perf({name}={value!r}) must be a whole number from 1"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def declared(item: pytest.Item, profiles: Mapping[str, Mapping[str, Any]], presets: Presets) -> dict[str, Any] | None:
    """What the ``llm_server`` markers of ``item`` declare, merged from outer to inner; None without one."""
    out: dict[str, Any] = {}
    marks = list(item.iter_markers("llm_server"))
    for mark in reversed(marks):
        for name in mark.args:
            if name not in profiles:
                raise ConfigError(
                    f"llm_server names no profile of [tool.llmperf.profiles]: {name!r}{nearest(str(name), profiles)}"
                )
            _merge(out, expand(profiles[name], presets, f"profile {name}"))
        _merge(out, expand(mark.kwargs, presets, "llm_server"))
    return out if marks else None


def named(item: pytest.Item, presets: Presets) -> dict[str, Mapping[str, Any]]:
    """What the ``llm_servers`` markers of ``item`` add to the declaration for each name, inner over outer."""
    out: dict[str, Mapping[str, Any]] = {}
    for mark in reversed(list(item.iter_markers("llm_servers"))):
        if mark.args or not all(isinstance(extra, Mapping) for extra in mark.kwargs.values()):
            raise ConfigError("llm_servers takes a dict of overrides for each name, like fast={'dtype': 'half'}")
        out.update({name: expand(extra, presets, "llm_servers") for name, extra in mark.kwargs.items()})
    return out


def swept(item: pytest.Item) -> dict[str, Any] | None:
    """The keywords of the ``llm_sweep`` markers of ``item``, inner over outer; None without one."""
    out: dict[str, Any] = {}
    marks = list(item.iter_markers("llm_sweep"))
    for mark in reversed(marks):
        if mark.args:
            raise ConfigError(f"llm_sweep takes keywords only, like tp=[4, 8], not {mark.args}")
        _merge(out, mark.kwargs)
    return {k: v for k, v in out.items() if v is not None} if marks else None


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
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (tuple, list)) or not all(isinstance(n, str) for n in names):
        raise ConfigError(f"llm_server(engine={value!r}) must be a name or a list of names")
    return tuple(dict.fromkeys(names))


def server_config(declaration: Mapping[str, Any], engine: Engine, engine_names: frozenset[str]) -> ServerConfig:
    """The config that ``declaration`` means for ``engine``. Raises ``ConfigError`` that names keys and engine."""
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
        values["allow_mismatch"] = tuple(values["allow_mismatch"])
    config = ServerConfig(engine=engine.name, flags=given.get(engine.name, {}), **values)
    problems = engine.problems(config)
    if problems:
        raise ConfigError("\n".join(problems))
    return config


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
        good = _is_mapping(value) and all(isinstance(v, str) or _is_number(v) for v in value.values())
        wanted = "a dict of texts"
    elif key in MAPPINGS:
        good, wanted = _is_mapping(value), "a dict"
    elif key == "startup_timeout":
        good, wanted = _is_number(value) and value > 0, "seconds above 0"
    elif key == "allow_mismatch":
        good, wanted = isinstance(value, (list, tuple)), "a list of field names"
    else:
        good, wanted = isinstance(value, str) and bool(value), "text"
    return None if good else wanted


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(k, str) for k in value)


def _mismatch_problems(given: Mapping[str, Any], engine_names: frozenset[str]) -> Iterator[str]:
    """A misspelt name would allow nothing, silently."""
    flags = {flag for name in engine_names if _is_mapping(given.get(name)) for flag in given[name]}
    for name in given.get("allow_mismatch", ()):
        if name not in _EFFECTIVE | flags and not str(name).startswith(nccl.PREFIX):
            near = nearest(str(name), _EFFECTIVE)
            yield f"llm_server(allow_mismatch=...) names no field of the effective config: {name!r}{near}"
