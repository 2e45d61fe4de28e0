"""The values that reading an engine's code can yield: plain Python ones, and these."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_llmperf.inspection.source import Place

if TYPE_CHECKING:
    from pytest_llmperf.inspection.names import Module


@dataclass(frozen=True)
class Unknown:
    """What the source alone does not tell. ``text`` is the expression, for people; ``truth`` is set where at least
    that is sure (``x or True``)."""

    text: str
    truth: bool | None = None


class Text(str):
    """A string that remembers the literal it came from, so that an answer can name its line."""

    at: Place

    def __new__(cls, value: str, at: Place) -> Text:
        self = super().__new__(cls, value)
        self.at = at
        return self


@dataclass(frozen=True)
class Member:
    """One member of an enum. ``at`` is where the engine's code mentions it; it takes no part in equality."""

    enum: str
    name: str
    value: Any
    at: Place = field(compare=False)
    klass: Any = field(compare=False, repr=False, default=None)


@dataclass(eq=False)
class Function:
    """A function of the engine, with what it closes over."""

    module: Module
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    name: str
    owner: Class | None = None
    closure: Mapping[str, Any] | None = None


@dataclass(eq=False)
class Class:
    """A class of the engine."""

    module: Module
    node: ast.ClassDef
    name: str


@dataclass(eq=False)
class Bound:
    """A function with its first argument."""

    function: Function
    self: Any


@dataclass(eq=False)
class Native:
    """A function answered by a fact of ours instead of by the engine's code."""

    name: str
    call: Callable[..., Any]


@dataclass(eq=False)
class Partial:
    """``functools.partial``."""

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(eq=False)
class Object:
    """An instance, or a bag of facts. ``complete``: an attribute it lacks is known to be absent.

    ``missing`` answers for attributes that are neither set nor defined by the class.
    """

    name: str
    attributes: dict[str, Any] = field(default_factory=dict)
    klass: Class | None = None
    complete: bool = False
    missing: Callable[[str], Any] | None = None


class Record(tuple[Any, ...]):
    """An instance of a named tuple: compares as a tuple, has attributes."""

    names: tuple[str, ...]
    klass: Class

    def __new__(cls, names: tuple[str, ...], values: tuple[Any, ...], klass: Class) -> Record:
        self = super().__new__(cls, values)
        self.names, self.klass = names, klass
        return self


def describe(value: Any) -> str:
    """A short text of a value for people."""
    if isinstance(value, Unknown):
        return value.text
    if isinstance(value, Member):
        return value.name
    if isinstance(value, (Object, Class, Function, Native)):
        return value.name
    text = repr(str(value)) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
