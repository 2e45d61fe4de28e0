"""Evaluating the expressions of an engine's code with what is known, saying ``Unknown`` for the rest.

Only operations on plain values that we made ourselves are carried out; nothing of the engine runs.
"""

from __future__ import annotations

import abc
import ast
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pytest_llmperf.inspection.comparison import FAILURES, Comparisons, comparison_text, text_of
from pytest_llmperf.inspection.names import members
from pytest_llmperf.inspection.source import Place
from pytest_llmperf.inspection.values import MISSING, Class, Function, Module, Record, Text, Unknown, describe

_LARGE = 1_000_000

BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
_PLAIN = (str, int, float, list, tuple, dict, set, frozenset, type(None))


@dataclass(eq=False)
class Frame:
    """One activation of a function. ``relevant``: what it does can change the answer."""

    module: Module
    function: str
    locals: dict[str, Any] = field(default_factory=dict)
    owner: Class | None = None
    relevant: bool = False
    depth: int = 0
    lines: tuple[int, int] = (0, 0)

    def place(self, node: ast.AST) -> Place:
        return Place(self.module.path, getattr(node, "lineno", 0))


class Expressions(Comparisons, abc.ABC):
    """Evaluates expressions; calls and attributes are the subclasses' business."""

    @abc.abstractmethod
    def attribute(self, base: Any, name: str, at: Place) -> Any: ...

    @abc.abstractmethod
    def call_node(self, node: ast.Call, frame: Frame) -> Any: ...

    @abc.abstractmethod
    def decide(self, text: str, at: Place) -> bool: ...

    @abc.abstractmethod
    def tick(self) -> None: ...

    def evaluate(self, node: ast.expr | None, frame: Frame) -> Any:
        """The value of an expression, ``Unknown`` where the source does not tell."""
        if node is None:
            return None
        self.tick()
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is None:
            return Unknown(text_of(node))
        return handler(node, frame)

    def truth(self, value: Any) -> bool | None:
        """True, False, or None when it cannot be told."""
        if isinstance(value, Unknown):
            return value.truth
        return bool(value) if isinstance(value, _PLAIN) else True

    def name(self, name: str, frame: Frame) -> Any:
        if name in frame.locals:
            value = frame.locals[name] = self.names.found(frame.locals[name])
            if value is not MISSING:
                return value
        value = self.names.in_module(frame.module, name)
        if value is MISSING:
            value = self.names.natives.get(f"builtins.{name}", Unknown(name))
        return value

    def _constant(self, node: ast.Constant, frame: Frame) -> Any:
        return Text(node.value, frame.place(node)) if isinstance(node.value, str) else node.value

    def _name(self, node: ast.Name, frame: Frame) -> Any:
        return self.name(node.id, frame)

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Any:
        return self.attribute(self.evaluate(node.value, frame), node.attr, frame.place(node))

    def _call(self, node: ast.Call, frame: Frame) -> Any:
        return self.call_node(node, frame)

    def _boolop(self, node: ast.BoolOp, frame: Frame) -> Any:
        stops = isinstance(node.op, ast.Or)
        open_parts: list[str] = []
        value: Any = None
        for part in node.values:
            value = self.evaluate(part, frame)
            truth = self.truth(value)
            if truth is None:
                open_parts.append(value.text)
            elif truth is stops:
                # an earlier open part could only have given the same truth, but another value
                return Unknown(text_of(node), truth) if open_parts else value
        if open_parts:
            return Unknown((" or " if stops else " and ").join(open_parts))
        return value

    def _unaryop(self, node: ast.UnaryOp, frame: Frame) -> Any:
        value = self.evaluate(node.operand, frame)
        if isinstance(node.op, ast.Not):
            truth = self.truth(value)
            return Unknown(f"not ({value.text})") if truth is None else not truth
        if isinstance(node.op, ast.USub) and isinstance(value, (int, float)):
            return -value
        return Unknown(text_of(node))

    def _binop(self, node: ast.BinOp, frame: Frame) -> Any:
        left, right = self.evaluate(node.left, frame), self.evaluate(node.right, frame)
        operation = BINARY.get(type(node.op))
        if operation is None or not (isinstance(left, _PLAIN) and isinstance(right, _PLAIN)):
            return Unknown(text_of(node))
        if too_large(left, right) or (isinstance(node.op, ast.Mod) and isinstance(left, str)):
            return Unknown(text_of(node))
        try:
            result = operation(left, right)
        except FAILURES:
            return Unknown(text_of(node))
        return Text(result, frame.place(node)) if isinstance(result, str) else result

    def _compare(self, node: ast.Compare, frame: Frame) -> Any:
        left = self.evaluate(node.left, frame)
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.evaluate(comparator, frame)
            result = self.compare(op, left, right)
            if result is None:
                return Unknown(comparison_text(node, left, right))
            if not result:
                return False
            left = right
        return True

    def _ifexp(self, node: ast.IfExp, frame: Frame) -> Any:
        truth = self.truth(condition := self.evaluate(node.test, frame))
        if truth is None:
            if not frame.relevant:
                return Unknown(text_of(node))
            truth = self.decide(condition.text, frame.place(node.test))
        return self.evaluate(node.body if truth else node.orelse, frame)

    def _namedexpr(self, node: ast.NamedExpr, frame: Frame) -> Any:
        frame.locals[node.target.id] = value = self.evaluate(node.value, frame)
        return value

    def _elements(self, nodes: Iterable[ast.expr], frame: Frame) -> list[Any] | None:
        out: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                inner = self.evaluate(node.value, frame)
                if not isinstance(inner, (list, tuple, set, frozenset)):
                    return None
                out.extend(inner)
            else:
                out.append(self.evaluate(node, frame))
        return out if len(out) < _LARGE else None

    def _list(self, node: ast.List, frame: Frame) -> Any:
        items = self._elements(node.elts, frame)
        return Unknown(text_of(node)) if items is None else items

    def _tuple(self, node: ast.Tuple, frame: Frame) -> Any:
        items = self._elements(node.elts, frame)
        return Unknown(text_of(node)) if items is None else tuple(items)

    def _set(self, node: ast.Set, frame: Frame) -> Any:
        """Kept as a tuple: its members may be values of ours that do not hash."""
        return self._tuple(ast.copy_location(ast.Tuple(node.elts, ast.Load()), node), frame)

    def _dict(self, node: ast.Dict, frame: Frame) -> Any:
        out: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            worth = self.evaluate(value, frame)
            if key is None:
                if not isinstance(worth, dict):
                    return Unknown(text_of(node))
                out.update(worth)
                continue
            name = self.evaluate(key, frame)
            try:
                out[name] = worth
            except TypeError:
                return Unknown(text_of(node))
        return out

    def _joinedstr(self, node: ast.JoinedStr, frame: Frame) -> Any:
        parts = [
            self.evaluate(p.value, frame) if isinstance(p, ast.FormattedValue) else self.evaluate(p, frame)
            for p in node.values
        ]
        plain = all(isinstance(p, (str, int, float)) and not isinstance(p, bool) for p in parts)
        if not plain or too_large(*(p for p in parts if isinstance(p, str))):
            shown = (str(p) if isinstance(p, str) else f"{{{describe(p)}}}" for p in parts)
            return Unknown("".join(s if len(s) < 200 else f"{s[:200]}..." for s in shown))
        return Text("".join(str(p) for p in parts), frame.place(node))

    def _lambda(self, node: ast.Lambda, frame: Frame) -> Any:
        return Function(frame.module, node, "<lambda>", frame.owner, frame.locals)

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Any:
        base = self.evaluate(node.value, frame)
        if isinstance(node.slice, ast.Slice):
            bounds = [self.evaluate(b, frame) for b in (node.slice.lower, node.slice.upper, node.slice.step)]
            index: Any = slice(*bounds)
            if any(isinstance(b, Unknown) for b in bounds):
                return Unknown(text_of(node))
        else:
            index = self.evaluate(node.slice, frame)
        if isinstance(base, Class) and isinstance(index, str) and self.names.is_enum(base):
            return self.names.enum_member(base, str(index), frame.place(node)) or Unknown(text_of(node))
        if isinstance(base, Unknown) or isinstance(index, Unknown):
            return Unknown(text_of(node))
        try:
            return base[index]
        except FAILURES:
            return Unknown(text_of(node))

    def _comprehension(
        self, generators: list[ast.comprehension], element: Callable[[Frame], Any], frame: Frame
    ) -> list[Any] | None:
        if len(generators) != 1:
            return None
        generator = generators[0]
        items = self.items(self.evaluate(generator.iter, frame), frame.place(generator.iter))
        if items is None:
            return None
        inner = Frame(frame.module, frame.function, dict(frame.locals), frame.owner, frame.relevant, frame.depth)
        out: list[Any] = []
        for item in items:
            self.bind(generator.target, item, inner)
            truths = [self.truth(self.evaluate(test, inner)) for test in generator.ifs]
            if None in truths:
                return None
            if all(truths):
                out.append(element(inner))
        return out

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, frame: Frame) -> Any:
        items = self._comprehension(node.generators, lambda f: self.evaluate(node.elt, f), frame)
        return Unknown(text_of(node)) if items is None else items

    _generatorexp = _listcomp
    _setcomp = _listcomp

    def _dictcomp(self, node: ast.DictComp, frame: Frame) -> Any:
        pairs = self._comprehension(
            node.generators, lambda f: (self.evaluate(node.key, f), self.evaluate(node.value, f)), frame
        )
        try:
            return Unknown(text_of(node)) if pairs is None else dict(pairs)
        except TypeError:
            return Unknown(text_of(node))

    def items(self, value: Any, at: Place) -> list[Any] | None:
        """What a loop over a value would see, None when that cannot be told."""
        if isinstance(value, Class) and self.names.is_enum(value):
            return [self.names.enum_member(value, name, at) for name in members(value)]
        return list(value) if isinstance(value, (list, tuple, dict, set, frozenset)) and len(value) < _LARGE else None

    def bind(self, target: ast.expr, value: Any, frame: Frame) -> None:
        """Assign to a name or unpack; other targets are the statements' business."""
        if isinstance(target, ast.Name):
            frame.locals[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            fits = isinstance(value, (tuple, list, Record)) and len(value) == len(target.elts)
            for i, part in enumerate(target.elts):
                self.bind(part, value[i] if fits else Unknown(text_of(part)), frame)


def too_large(*values: Any) -> bool:
    """Could putting these together (adding, repeating, joining, shifting) make something huge?"""
    sizes = [len(x) if isinstance(x, (str, list, tuple, dict)) else 1 for x in values]
    counts = [abs(x) if isinstance(x, int) and max(sizes) > 1 else 1 for x in values]
    shifts = [x for x in values if isinstance(x, int) and abs(x) > 2**62]
    return bool(shifts) or math.prod(sizes) * math.prod(counts) > _LARGE
