"""Attributes and calls: the engine's own classes and functions are followed, the rest is a stated fact or unknown."""

from __future__ import annotations

import abc
import ast
from collections.abc import Callable, Mapping
from typing import Any

from pytest_llmperf.inspection.comparison import FAILURES, text_of
from pytest_llmperf.inspection.expressions import Expressions, Frame, too_large
from pytest_llmperf.inspection.names import bound_names
from pytest_llmperf.inspection.source import Place
from pytest_llmperf.inspection.values import (
    MISSING,
    Bound,
    Class,
    Function,
    Member,
    Module,
    Native,
    Object,
    Partial,
    Record,
    Unknown,
    describe,
)

_DEEPEST = 40
_LONGEST = 1_000_000
#: Methods of plain values that have no effect outside the value.
_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        {"lower", "upper", "strip", "lstrip", "rstrip", "startswith", "endswith", "split", "rsplit", "replace"}
        | {"join", "partition", "rpartition", "removeprefix", "removesuffix", "isdigit", "find", "count"}
    ),
    list: frozenset({"append", "extend", "insert", "pop", "remove", "index", "count", "copy", "sort", "reverse"}),
    tuple: frozenset({"index", "count"}),
    dict: frozenset({"get", "items", "keys", "values", "update", "setdefault", "pop", "copy"}),
    int: frozenset({"bit_length"}),
    float: frozenset({"is_integer"}),
}


class EngineError(Exception):
    """The engine's code would raise here. ``kind`` is the exception's name."""

    def __init__(self, kind: str, text: str, at: Place) -> None:
        super().__init__(text)
        self.kind, self.text, self.at = kind, text, at


class Calls(Expressions, abc.ABC):
    """Evaluates attributes and calls. ``at`` is where the call under way stands, for natives that need to say."""

    at = Place("", 0)

    @abc.abstractmethod
    def run_function(self, function: Function, frame: Frame) -> Any: ...

    @abc.abstractmethod
    def is_relevant(self, function: Function) -> bool: ...

    def attribute(self, base: Any, name: str, at: Place) -> Any:
        value = self.find_attribute(base, name, at)
        if value is not MISSING:
            return value
        if isinstance(base, Object) and base.complete and not name.startswith("_"):
            raise EngineError("AttributeError", f"{base.name} has no {name}", at)
        return Unknown(f"{describe(base)}.{name}")

    def find_attribute(self, base: Any, name: str, at: Place) -> Any:
        """The attribute, ``Unknown`` when it exists but cannot be told, ``MISSING`` when nothing defines it."""
        if isinstance(base, Unknown):
            return self.names.external(f"{base.text}.{name}")
        if isinstance(base, Object):
            if name in base.attributes:
                return base.attributes[name]
            value = self._in_class(base.klass, name, base, at) if base.klass else MISSING
            if value is MISSING and base.missing is not None:
                value = base.missing(name)
            return value
        if isinstance(base, Module):
            value = self.names.in_module(base, name)
            return (self.names.module(f"{base.dotted}.{name}") or MISSING) if value is MISSING else value
        if isinstance(base, Class):
            return self._in_class(base, name, None, at)
        if isinstance(base, Record):
            return self._of_record(base, name, at)
        if isinstance(base, Member):
            plain = {"name": base.name, "value": base.value}
            return plain[name] if name in plain else self._in_class(base.klass, name, base, at)
        if isinstance(base, (Function, Bound)) and name in ("__name__", "__qualname__"):
            return base.name if isinstance(base, Function) else base.function.name
        for kind, allowed in _METHODS.items():
            if isinstance(base, kind) and name in allowed:
                return Native(name, _bounded(base, getattr(base, name)))
        return MISSING

    def _of_record(self, base: Record, name: str, at: Place) -> Any:
        if name in base.names:
            return base[base.names.index(name)]
        if name == "_asdict":
            return Native(name, lambda: dict(zip(base.names, base, strict=True)))
        return self._in_class(base.klass, name, base, at)

    def _in_class(self, klass: Class | None, name: str, instance: Any, at: Place, skip: Class | None = None) -> Any:
        """A class's attribute as seen from ``instance`` (or from the class when that is None)."""
        if klass is None:
            return MISSING
        if name in ("__class__", "__name__", "__qualname__", "__module__"):
            plain = {"__class__": klass, "__module__": klass.module.dotted}
            return plain.get(name, klass.name)
        chain = self.names.bases(klass)
        fallback: Function | None = None
        for owner in chain[chain.index(skip) + 1 :] if skip in chain else chain:
            nodes = self._class_nodes(owner)
            node = nodes.get(name)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return self._method(Function(owner.module, node, name, owner), klass, instance, at)
            if node is not None:
                return self._class_value(owner, node, name, at)
            getter = nodes.get("__getattr__")
            if isinstance(getter, ast.FunctionDef) and fallback is None:
                fallback = Function(owner.module, getter, "__getattr__", owner)
        if fallback is not None and isinstance(instance, Object) and not name.startswith("__"):
            return self.call(Bound(fallback, instance), [name], {}, at)
        return MISSING

    def _class_nodes(self, klass: Class) -> Mapping[str, ast.stmt]:
        """The statement that gives each attribute of a class's own body; the last one counts."""
        known, key = self.names.source.memory, (f"class {klass.module.path}", klass.node.lineno)
        if key not in known:
            known[key] = {name: node for node in klass.node.body for name in bound_names(node)}
        found: Mapping[str, ast.stmt] = known[key]
        return found

    def _class_value(self, owner: Class, node: ast.stmt, name: str, at: Place) -> Any:
        if self.names.is_enum(owner):
            return self.names.enum_member(owner, name, at)
        if not isinstance(node, (ast.Assign, ast.AnnAssign)):
            return Unknown(name)
        value = self.evaluate(node.value, Frame(owner.module, owner.name))
        if isinstance(value, Object):
            self._tell_name(value, owner, name, at)
        return value

    def _tell_name(self, value: Object, owner: Class, name: str, at: Place) -> None:
        """A descriptor learns what it is called (``SGLANG_X = EnvBool(False)`` then reads that variable)."""
        learn = self._in_class(value.klass, "__set_name__", value, at)
        if isinstance(learn, Bound):
            self.call(learn, [owner, name], {}, at)

    def _method(self, function: Function, klass: Class, instance: Any, at: Place) -> Any:
        if function.name in self.names.natives:
            return self.names.natives[function.name]
        marks = {ast.unparse(d).split("(")[0].rsplit(".", 1)[-1] for d in _decorators(function.node)}
        if "staticmethod" in marks:
            return function
        if "classmethod" in marks:
            return Bound(function, klass)
        if instance is None:
            return function
        if marks & {"property", "cached_property"}:
            return self.call(Bound(function, instance), [], {}, at)
        return Bound(function, instance)

    def call_node(self, node: ast.Call, frame: Frame) -> Any:
        at = frame.place(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super" and frame.owner is not None:
            return self._super(frame)
        if isinstance(node.func, ast.Name) and node.func.id in ("locals", "globals", "vars", "eval", "exec"):
            return Unknown(text_of(node))
        function = self.evaluate(node.func, frame)
        args = self._elements(node.args, frame)
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value, frame)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif isinstance(value, dict):
                kwargs.update({str(k): v for k, v in value.items()})
            else:
                args = None
        if args is None:
            return Unknown(text_of(node))
        result = self.call(function, args, kwargs, at, frame.depth)
        if isinstance(result, Unknown) and result.text == "":
            return Unknown(_call_text(function, args, kwargs, node))
        return result

    def _super(self, frame: Frame) -> Any:
        first = next(iter(frame.locals.values()), None)
        klass = first.klass if isinstance(first, (Object, Record)) else first if isinstance(first, Class) else None

        def find(name: str) -> Any:
            instance = None if isinstance(first, Class) else first
            value = self._in_class(klass, name, instance, Place(frame.module.path, 0), skip=frame.owner)
            return Unknown(f"super().{name}") if value is MISSING else value

        return Object("super()", missing=find)

    def call(self, function: Any, args: list[Any], kwargs: dict[str, Any], at: Place, depth: int = 0) -> Any:
        """Call a value. Whatever cannot be followed gives an ``Unknown`` (with an empty text: the caller names it)."""
        self.at = at
        if isinstance(function, Partial):
            return self.call(function.function, [*function.args, *args], {**function.kwargs, **kwargs}, at, depth)
        if isinstance(function, Bound):
            return self._invoke(function.function, [function.self, *args], kwargs, at, depth)
        if isinstance(function, Function):
            if function.name in self.names.natives:
                return self.call(self.names.natives[function.name], args, kwargs, at, depth)
            return self._invoke(function, args, kwargs, at, depth)
        if isinstance(function, Class):
            return self._instantiate(function, args, kwargs, at, depth)
        if isinstance(function, Native):
            try:
                return function.call(*args, **kwargs)
            except FAILURES:
                return Unknown("")
        if isinstance(function, Unknown):
            answer = self.names.externals.get(f"{function.text}()", MISSING)
            return Unknown("") if answer is MISSING else answer
        return Unknown("")

    def _instantiate(self, klass: Class, args: list[Any], kwargs: dict[str, Any], at: Place, depth: int) -> Any:
        if klass.name in self.names.natives:
            return self.call(self.names.natives[klass.name], args, kwargs, at, depth)
        kinds = self.names.external_bases(klass)
        if self.names.is_enum(klass) or "Protocol" in kinds:
            return Unknown("")
        fields = class_fields(klass)
        if "NamedTuple" in kinds:
            frame = Frame(klass.module, klass.name)
            given = dict(zip(fields, args, strict=False)) | kwargs
            defaults = {n: self.evaluate(v, frame) if v is not None else Unknown(n) for n, v in fields.items()}
            return Record(tuple(fields), tuple((defaults | given)[n] for n in fields), klass)
        made = Object(klass.name, klass=klass)
        setup = self._in_class(klass, "__init__", made, at)
        if isinstance(setup, Bound):
            self._invoke(setup.function, [made, *args], kwargs, at, depth)
        else:
            made.attributes.update(dict(zip(fields, args, strict=False)) | kwargs)
        return made

    def _invoke(self, function: Function, args: list[Any], kwargs: dict[str, Any], at: Place, depth: int) -> Any:
        node = function.node
        marks = {ast.unparse(d).rsplit(".", 1)[-1] for d in _decorators(node)}
        if depth > _DEEPEST or isinstance(node, ast.AsyncFunctionDef) or "contextmanager" in marks:
            return Unknown("")
        frame = Frame(
            function.module,
            function.name,
            dict(function.closure or {}),
            function.owner,
            self.is_relevant(function),
            depth + 1,
            (node.lineno, node.end_lineno or node.lineno),
        )
        self._bind_arguments(node.args, args, dict(kwargs), frame)
        if isinstance(node, ast.Lambda):
            return self.evaluate(node.body, frame)
        return self.run_function(function, frame)

    def _bind_arguments(self, spec: ast.arguments, args: list[Any], kwargs: dict[str, Any], frame: Frame) -> None:
        outer = Frame(frame.module, frame.function)
        positional = [*spec.posonlyargs, *spec.args]
        defaults: list[ast.expr | None] = [None] * (len(positional) - len(spec.defaults)) + list(spec.defaults)
        for i, (parameter, default) in enumerate(zip(positional, defaults, strict=True)):
            if i < len(args):
                value = args[i]
            elif parameter.arg in kwargs:
                value = kwargs.pop(parameter.arg)
            else:
                value = Unknown(parameter.arg) if default is None else self.evaluate(default, outer)
            frame.locals[parameter.arg] = value
        if spec.vararg:
            frame.locals[spec.vararg.arg] = tuple(args[len(positional) :])
        for parameter, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
            if parameter.arg in kwargs:
                frame.locals[parameter.arg] = kwargs.pop(parameter.arg)
            else:
                frame.locals[parameter.arg] = (
                    Unknown(parameter.arg) if default is None else self.evaluate(default, outer)
                )
        if spec.kwarg:
            frame.locals[spec.kwarg.arg] = kwargs


def _decorators(node: ast.AST) -> list[ast.expr]:
    return node.decorator_list if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else []


def _call_text(function: Any, args: list[Any], kwargs: dict[str, Any], node: ast.Call) -> str:
    """A call that gave nothing known, told with what it was called on, so that two objects do not share a question."""
    callee = ast.unparse(node.func)
    if isinstance(function, Unknown):
        callee = function.text
    elif isinstance(function, Bound):
        callee = f"{describe(function.self)}.{function.function.name}"
    shown = [*map(describe, args), *(f"{name}={describe(value)}" for name, value in kwargs.items())]
    text = f"{callee}({', '.join(shown)})"
    return text if len(text) <= 160 else text[:157] + "..."


def _bounded(base: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a plain value that is unknown where its result could be huge."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        parts = [len(p) for a in args if isinstance(a, (list, tuple)) for p in a if isinstance(p, str)]
        return Unknown("") if too_large(base, *args) or sum(parts) > _LONGEST else method(*args, **kwargs)

    return guarded


def class_fields(klass: Class) -> dict[str, ast.expr | None]:
    """Annotated fields in order, with their default expression."""
    return {
        n.target.id: n.value for n in klass.node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }


def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
    """A native that is unknown as soon as one of its arguments is."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(a, Unknown) for a in (*args, *kwargs.values())):
            return Unknown("")
        return function(*args, **kwargs)

    return guarded
