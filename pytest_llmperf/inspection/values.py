"""The values that reading an engine's code can yield: plain Python ones, and these."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pytest_llmperf.inspection.source import Place

MISSING = object()


@dataclass(frozen=True)
class Definition:
    """One top-level statement that binds a name, and the conditions it stands under (test, wanted)."""

    node: ast.stmt
    conditions: tuple[tuple[ast.expr, bool], ...] = ()


@dataclass(frozen=True)
class Import:
    """A name that an import binds, not looked up yet: most are never used."""

    start: str
    name: str | None
    """None for ``import start``."""


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


class Lookup(Protocol):
    """What a module needs of all the others (``names.Names``)."""

    def constant(self, module: Module, node: ast.expr, /) -> Any:
        """The value of a module-level expression."""

    def holds(self, module: Module, test: ast.expr, wanted: bool, /) -> bool:
        """Whether a module-level condition may hold."""

    def module(self, dotted: str) -> Module | None: ...

    def found(self, value: Any) -> Any:
        """The value itself, or what an import turns out to bring."""


@dataclass(eq=False)
class Module:
    """One file of the engine during one evaluation; remembers what its names turned out to be."""

    names: Lookup
    path: str
    tree: ast.Module
    bindings: dict[str, list[Definition]]
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def dotted(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def lookup(self, name: str) -> Any:
        """The value of a module-level name, or ``MISSING``."""
        if name not in self.values:
            self.values[name] = Unknown(name)  # a definition that refers to itself ends here
            self.values[name] = self._find(name)
        return self.values[name]

    def _find(self, name: str) -> Any:
        for definition in self.bindings.get(name, ()):
            if all(self.names.holds(self, test, wanted) for test, wanted in definition.conditions):
                return self._define(name, definition.node)
        for star in self.bindings.get("*", ()):
            if isinstance(star.node, ast.ImportFrom):
                other = self.names.module(self.absolute(star.node))
                value = other.lookup(name) if other else MISSING
                if value is not MISSING:
                    return value
        return MISSING

    def _define(self, name: str, node: ast.stmt) -> Any:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return Function(self, node, name)
        if isinstance(node, ast.ClassDef):
            return Class(self, node, name)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return self.names.found(self.imported(node).get(name, MISSING))
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            return self.names.constant(self, node.value)
        if isinstance(node, ast.Assign):
            if any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                return self.names.constant(self, node.value)
            return Unknown(name)
        return MISSING

    def absolute(self, node: ast.ImportFrom) -> str:
        """The dotted name an import starts from, relative imports resolved."""
        if not node.level:
            return node.module or ""
        parts = self.dotted.split(".")
        drop = node.level - 1 if self.path.endswith("/__init__.py") else node.level
        base = parts[: len(parts) - drop] if drop else parts
        return ".".join([*base, *([node.module] if node.module else [])])

    def imported(self, node: ast.Import | ast.ImportFrom) -> dict[str, Import]:
        """What an import statement binds, for ``Names.found``."""
        if isinstance(node, ast.Import):
            return {
                a.asname or a.name.split(".")[0]: Import(a.name if a.asname else a.name.split(".")[0], None)
                for a in node.names
            }
        start = self.absolute(node)
        return {a.asname or a.name: Import(start, a.name) for a in node.names}


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
