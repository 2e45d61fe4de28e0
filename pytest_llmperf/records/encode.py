"""Values to JSON and back: built-in types only, so that json and execnet (xdist) both carry them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any, ClassVar, Protocol, TypeVar


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


_T = TypeVar("_T", bound=_Dataclass)


def plain(value: Any) -> Any:
    """``value`` in built-in types: dataclasses and mappings become dicts, sequences lists, number subclasses (numpy's,
    ``MetricValue``) plain numbers, NaN and infinity None (JSON has neither), anything else its text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return [plain(v) for v in sorted(value, key=str)]
    if hasattr(value, "item"):  # a numpy scalar that is no subclass of a Python number
        return plain(value.item())
    return str(value)


def build(cls: type[_T], data: Mapping[str, Any], **converted: Any) -> _T:
    """``cls`` from its JSON form, ``converted`` fields given as values; fields of a later version are ignored."""
    known = {f.name for f in fields(cls)}
    return cls(**{**{k: v for k, v in data.items() if k in known}, **converted})


def pair(value: Any) -> tuple[float, float] | None:
    """A JSON interval as a tuple, None where there is none; a limit that is null is infinite."""
    if not value:
        return None
    low, high = value
    return (-math.inf if low is None else low, math.inf if high is None else high)


def numbers(values: Any) -> tuple[float, ...]:
    """A JSON array of numbers; null is NaN."""
    return tuple(math.nan if x is None else x for x in values)
