"""``@pytest.mark.llm_sweep`` as configs: the base and one variation a value, or the grid of all of them.

``llm_sweep(base={"tp": 8}, attention_backend=["fa3", "triton"], nccl__proto=["LL", "Simple"])`` varies one knob at a
time around the base; ``full=True`` makes the grid. ``__`` reaches into a mapping (``nccl__proto``,
``sglang__num_continuous_decode_steps``, ``env__OMP_NUM_THREADS``). A value takes the place of the base's, whole where
the knob is a whole mapping; the name of a preset stands for its values, and ``None`` leaves the knob to the engine.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pytest_llmperf.engines.command_flags import plain
from pytest_llmperf.engines.declaration import merged
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.server_config import mask
from pytest_llmperf.tuning.presets import Presets, expand

BASE = "base"
_DEFAULT = "engine default"
_MOST = 64
#: Keywords of the marker that are no knobs.
OPTIONS = ("base", "full", "name", "launches")
_NO_PRESETS: Presets = MappingProxyType({})


@dataclass(frozen=True)
class Variation:
    """One config of a sweep. ``settings`` are (knob, value as text) moved off the base; ``keywords`` are those of
    ``llm_server`` that declare it, the test's own included."""

    settings: tuple[tuple[str, str], ...]
    keywords: Mapping[str, Any]

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


def plan(marker: Mapping[str, Any], declared: Mapping[str, Any], presets: Presets = _NO_PRESETS) -> SweepPlan:
    """Expand one ``llm_sweep``. ``marker`` are its keyword arguments, ``declared`` what the test's ``llm_server``
    markers say, presets expanded.

    A value that the base already has makes no variation. Raises ``ConfigError`` that names the knob; whose marker it is
    is for the caller to say.
    """
    _check_options(marker)
    knobs = {knob: _values(knob, values, presets) for knob, values in marker.items() if knob not in OPTIONS}
    if not knobs:
        raise ConfigError(
            "llm_sweep varies nothing; name a knob with its values, like attention_backend=['fa3', 'triton']"
        )
    _check_overlap(knobs)
    base = merged(declared, _base(marker.get("base") or {}, presets))
    at_base = {knob: _lookup(base, knob) for knob in knobs}
    others = {
        knob: {text: v for text, v in values.items() if label(v, knob) != label(at_base[knob], knob)}
        for knob, values in knobs.items()
    }
    points = _grid(others) if marker.get("full") else _one_at_a_time(others)
    if not points:
        raise ConfigError("llm_sweep varies nothing: every value it names is the base's own")
    if len(points) > _MOST:
        raise ConfigError(
            f"llm_sweep would launch {len(points)} variations; {_MOST} is the most. Leave out full=True or some values"
        )
    return SweepPlan(
        name=str(marker.get("name") or " x ".join(map(_dotted, knobs))),
        base=Variation((), _frozen(base)),
        base_settings=MappingProxyType({_dotted(k): _named(k, v, presets) for k, v in at_base.items()}),
        variations=tuple(_variation(base, {k: (text, others[k][text]) for k, text in p.items()}) for p in points),
        full=bool(marker.get("full")),
        launches=marker.get("launches", 2),
    )


def label(value: Any, knob: str = "") -> str:
    """A value as it is shown: ``engine default`` for None, mappings and lists as compact JSON, secrets masked."""
    value = mask({knob.rpartition("__")[2]: value})[knob.rpartition("__")[2]]
    if value is None:
        return _DEFAULT
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _one_at_a_time(others: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    return [{knob: text} for knob, values in others.items() for text in values]


def _grid(others: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    """Every combination except the base itself; a knob at its base value is not part of a point's name."""
    rows = itertools.product(*([None, *values] for values in others.values()))
    points = ({k: text for k, text in zip(others, row, strict=True) if text is not None} for row in rows)
    return [p for p in points if p]


def _variation(base: Mapping[str, Any], point: Mapping[str, tuple[str, Any]]) -> Variation:
    keywords = dict(base)
    for knob, (_, value) in point.items():
        root, _, inner = knob.partition("__")
        held = keywords.get(root)
        held = held if isinstance(held, Mapping) else {}
        keywords[root] = {**held, _key(held, root, inner): value} if inner else value
    return Variation(tuple((_dotted(knob), text) for knob, (text, _) in point.items()), _frozen(keywords))


def _values(knob: str, values: Any, presets: Presets) -> dict[str, Any]:
    """What each value is called, and what it is."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Sequence):
        raise ConfigError(f"llm_sweep({knob}={values!r}) must be a list of values; base= takes single ones")
    if not values:
        raise ConfigError(f"llm_sweep({knob}=[]) has no value to try")
    root, sep, inner = knob.partition("__")
    if sep and not (root and inner):
        raise ConfigError(f"llm_sweep has no knob {knob!r}; write mapping__key, such as nccl__proto")
    out: dict[str, Any] = {}
    for value in values:
        text = label(value, knob)
        if text in out:
            raise ConfigError(f"llm_sweep({knob}=...) names {text} twice")
        out[text] = expand({knob: value}, presets, "llm_sweep")[knob]
    return out


def _check_options(marker: Mapping[str, Any]) -> None:
    launches, full, name = marker.get("launches", 2), marker.get("full", False), marker.get("name")
    if isinstance(launches, bool) or not isinstance(launches, int) or launches < 1:
        raise ConfigError(f"llm_sweep(launches={launches!r}) must be a whole number from 1")
    if not isinstance(full, bool):
        raise ConfigError(f"llm_sweep(full={full!r}) must be True or False")
    if name is not None and not (isinstance(name, str) and name.strip()):
        raise ConfigError(f"llm_sweep(name={name!r}) must be text")


def _check_overlap(knobs: Mapping[str, Any]) -> None:
    """A knob and a part of it cannot both be swept: which one would win?"""
    for knob in knobs:
        part = next((k for k in knobs if k.startswith(f"{knob}__")), None)
        if part is not None:
            raise ConfigError(f"llm_sweep varies both {knob} and {part}; sweep one of them")


def _base(value: Any, presets: Presets) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"llm_sweep(base={value!r}) must be a dict of llm_server's keywords")
    out: dict[str, Any] = {}
    for key, inner in value.items():
        root, _, rest = str(key).partition("__")
        out = merged(out, {root: {rest: inner}} if rest else expand({root: inner}, presets, "llm_sweep(base=...)"))
    return out


def _lookup(declared: Mapping[str, Any], knob: str) -> Any:
    """The base's value of a knob."""
    root, _, inner = knob.partition("__")
    value = declared.get(root)
    if not inner:
        return value
    return value.get(_key(value, root, inner)) if isinstance(value, Mapping) else None


def _key(held: Mapping[str, Any], root: str, inner: str) -> str:
    """The key of ``held`` that ``inner`` means: NCCL's names go by either case, with or without their prefix, and flags
    by dashes or underscores."""

    def canonical(name: Any) -> str:
        return str(name).upper().removeprefix("NCCL_") if root == "nccl" else plain(str(name))

    return next((k for k in held if canonical(k) == canonical(inner)), inner)


def _named(knob: str, value: Any, presets: Presets) -> str:
    """``label``, or the name of the preset whose values these are."""
    found = (p.name for p in presets.values() if p.key == knob and dict(p.values) == value)
    return next(found, label(value, knob))


def _dotted(knob: str) -> str:
    return knob.replace("__", ".", 1)


def _frozen(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(values))
