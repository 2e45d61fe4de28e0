"""``@pytest.mark.llm_sweep`` as configs: the base and one variation a value, or the grid of all of them.

``llm_sweep(base={"tp": 8}, attention_backend=["fa3", "triton"], nccl__proto=["LL", "Simple"])`` varies one knob at a
time around the base; ``full=True`` makes the grid. ``__`` reaches into a mapping (``nccl__proto``,
``sglang__num_continuous_decode_steps``, ``env__OMP_NUM_THREADS``). A value of ``None`` leaves the knob to the engine.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pytest_llmperf.errors import ConfigError

SIGNATURE = (
    "llm_sweep(base={}, full=False, name=None, launches=2, **knobs=[values]): launch the test's server as declared and "
    "with each value of each knob, and report what each does to speed; see pytest-llmperf"
)
BASE = "base"
_DEFAULT = "engine default"
_MOST = 64
_OPTIONS = ("base", "full", "name", "launches")


@dataclass(frozen=True)
class Variation:
    """One config of a sweep. ``settings`` are (knob, value as text) moved off the base; ``overrides`` are keyword
    arguments of ``llm_server`` that make it, over those of the test."""

    settings: tuple[tuple[str, str], ...]
    overrides: Mapping[str, Any]

    @property
    def name(self) -> str:
        """``base``, ``nccl.proto=LL``, or all settings of a grid point."""
        return ", ".join(f"{knob}={value}" for knob, value in self.settings) or BASE


@dataclass(frozen=True)
class SweepPlan:
    """The base with its values of the swept knobs (as text), and the variations in the order written.

    ``launches`` is how often each variation is launched; the base more often (``order.launch_order``).
    """

    name: str
    base: Variation
    base_settings: Mapping[str, str]
    variations: tuple[Variation, ...]
    full: bool
    launches: int


def plan(marker: Mapping[str, Any], declared: Mapping[str, Any], where: str) -> SweepPlan:
    """Expand one ``llm_sweep``. ``marker`` are its keyword arguments, ``declared`` what the test's ``llm_server``
    markers say, ``where`` names the test in errors.

    A value that the base already has makes no variation. Raises ``ConfigError`` that names the knob.
    """
    base = _mapping(marker.get("base") or {}, "base", where)
    launches = marker.get("launches", 2)
    if isinstance(launches, bool) or not isinstance(launches, int) or launches < 1:
        raise ConfigError(f"{where}: llm_sweep(launches={launches!r}) must be a whole number from 1")
    knobs = {knob: _values(knob, values, where) for knob, values in marker.items() if knob not in _OPTIONS}
    if not knobs:
        raise ConfigError(
            f"{where}: llm_sweep varies nothing; name a knob with its values, like attention_backend=['fa3', 'triton']"
        )
    _check_overlap(knobs, where)
    start = merge(declared, base)
    at_base = {knob: _lookup(start, knob) for knob in knobs}
    others = {knob: [v for v in values if not _same(v, at_base[knob])] for knob, values in knobs.items()}
    points = _grid(knobs, others, at_base) if marker.get("full") else _one_at_a_time(others)
    if not points:
        raise ConfigError(f"{where}: llm_sweep varies nothing: every value it names is the base's own")
    if len(points) > _MOST:
        raise ConfigError(
            f"{where}: llm_sweep would launch {len(points)} variations; {_MOST} is the most. Leave out full=True or "
            "some values"
        )
    return SweepPlan(
        name=str(marker.get("name") or " x ".join(_dotted(k) for k in knobs)),
        base=Variation((), _frozen(base)),
        base_settings=MappingProxyType({_dotted(k): label(v) for k, v in at_base.items()}),
        variations=tuple(_variation(base, point) for point in points),
        full=bool(marker.get("full")),
        launches=launches,
    )


def merge(outer: Mapping[str, Any], inner: Mapping[str, Any]) -> dict[str, Any]:
    """``inner`` over ``outer``, mappings key by key, as ``llm_server`` markers are merged."""
    out = dict(outer)
    for key, value in inner.items():
        old = out.get(key)
        out[key] = {**old, **value} if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return out


def label(value: Any) -> str:
    """A value as it is shown: ``engine default`` for None, mappings and lists as compact JSON."""
    if value is None:
        return _DEFAULT
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _one_at_a_time(others: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [{knob: value} for knob, values in others.items() for value in values]


def _grid(
    knobs: Mapping[str, Sequence[Any]], others: Mapping[str, Sequence[Any]], at_base: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Every combination except the base itself; a knob at its base value is not part of a point's name."""
    axes = [[(knob, at_base[knob]), *((knob, v) for v in others[knob])] for knob in knobs]
    points = ({k: v for k, v in row if not _same(v, at_base[k])} for row in itertools.product(*axes))
    return [p for p in points if p]


def _variation(base: Mapping[str, Any], point: Mapping[str, Any]) -> Variation:
    overrides = dict(base)
    for knob, value in point.items():
        root, _, inner = knob.partition("__")
        overrides = merge(overrides, {root: {inner: value} if inner else value})
    return Variation(tuple((_dotted(k), label(v)) for k, v in point.items()), _frozen(overrides))


def _values(knob: str, values: Any, where: str) -> list[Any]:
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Sequence):
        raise ConfigError(f"{where}: llm_sweep({knob}={values!r}) must be a list of values; base= takes single ones")
    if not values:
        raise ConfigError(f"{where}: llm_sweep({knob}=[]) has no value to try")
    labels = [label(v) for v in values]
    twice = next((x for x in labels if labels.count(x) > 1), None)
    if twice is not None:
        raise ConfigError(f"{where}: llm_sweep({knob}=...) names {twice} twice")
    root, sep, inner = knob.partition("__")
    if sep and not (root and inner):
        raise ConfigError(f"{where}: llm_sweep has no knob {knob!r}; write mapping__key, such as nccl__proto")
    return list(values)


def _check_overlap(knobs: Mapping[str, Any], where: str) -> None:
    """A knob and a part of it cannot both be swept: which one would win?"""
    for knob in knobs:
        part = next((k for k in knobs if k.startswith(f"{knob}__")), None)
        if part is not None:
            raise ConfigError(f"{where}: llm_sweep varies both {knob} and {part}; sweep one of them")


def _mapping(value: Any, name: str, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: llm_sweep({name}={value!r}) must be a dict of llm_server's keywords")
    out: dict[str, Any] = {}
    for key, inner in value.items():
        root, _, rest = str(key).partition("__")
        out = merge(out, {root: {rest: inner} if rest else inner})
    return out


def _lookup(declared: Mapping[str, Any], knob: str) -> Any:
    """The base's value of a knob; names within nccl and env match in either case."""
    root, _, inner = knob.partition("__")
    value = declared.get(root)
    if not inner:
        return value
    if not isinstance(value, Mapping):
        return None
    return next((v for k, v in value.items() if str(k).lower() == inner.lower()), None)


def _same(one: Any, other: Any) -> bool:
    return label(one) == label(other)


def _dotted(knob: str) -> str:
    return knob.replace("__", ".", 1)


def _frozen(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(values))
