"""Which code can change the answer: what writes a field that was asked for, or returns one of its possible values."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pytest_llmperf.inspection.names import Names
from pytest_llmperf.inspection.values import MISSING, Bound, Class, Function, Native, Partial

if TYPE_CHECKING:
    from pytest_llmperf.inspection.expressions import Frame

_NOTHING = ast.Lambda(ast.arguments([], [], None, [], [], None, []), ast.Constant(None))
_MUTATORS = frozenset({"append", "extend", "insert", "pop", "remove", "update", "setdefault", "add", "clear"})


class Relevance:
    """Remembers its answers; they depend on the source alone, so one serves every path over it.

    ``targets`` are field names, ``answers`` string values or enum member names that a target may take,
    ``natives`` names of functions of ours that write targets.
    """

    def __init__(self, targets: frozenset[str], answers: frozenset[str], natives: frozenset[str] = frozenset()) -> None:
        self.targets, self.answers, self.natives = targets, answers, natives
        self._functions: dict[tuple[str, int], bool] = {}

    def function(self, function: Function, names: Names) -> bool:
        """Can calling this function change the answer?"""
        key = (function.module.path, function.node.lineno)
        if key not in self._functions:
            self._functions[key] = False  # ends recursion
            body = [function.node.body] if isinstance(function.node, ast.Lambda) else function.node.body
            self._functions[key] = self._any(body, function, names)
        return self._functions[key]

    def statements(self, body: Sequence[ast.stmt], frame: Frame, names: Names) -> bool:
        """Can these statements change the answer? A return does, in a function that can."""
        if any(isinstance(n, (ast.Return, ast.Break, ast.Continue)) for b in body for n in ast.walk(b)):
            return True
        where = Function(frame.module, _NOTHING, frame.function, frame.owner, frame.locals)
        return self._any(body, where, names)

    def _any(self, body: Sequence[ast.AST], where: Function, names: Names) -> bool:
        nodes = [n for b in body for n in ast.walk(b)]
        if any(self._direct(n) for n in nodes):
            return True
        local = dict(where.closure or {})
        for node in nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                local.update(where.module.imported(node))
        return any(self._callee(v, names) for n in nodes for v in self._named(n, where, local, names))

    def _direct(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute):
            return (isinstance(node.ctx, ast.Store) and node.attr in self.targets) or node.attr in self.answers
        if isinstance(node, ast.keyword):
            return node.arg in self.targets
        if isinstance(node, ast.Name):
            return isinstance(node.ctx, ast.Store) and node.id in self.targets
        if isinstance(node, ast.Call):
            return (changed := mutated(node)) is not None and changed in self.targets
        if isinstance(node, ast.Dict):
            return any(isinstance(k, ast.Constant) and k.value in self.targets for k in node.keys)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.slice, ast.Constant):
            return node.slice.value in self.targets
        if isinstance(node, ast.Return) and node.value is not None:
            return any(isinstance(n, ast.Constant) and n.value in self.answers for n in _yielded(node.value))
        return False

    def _named(self, node: ast.AST, where: Function, local: dict[str, Any], names: Names) -> Iterator[Any]:
        """The functions that a call names, as callee or (``run_hook(step, args)``) as argument."""
        if not isinstance(node, ast.Call):
            return
        for part in (node.func, *node.args):
            if isinstance(part, ast.Name):
                bound = names.found(local.get(part.id, MISSING))
                yield names.in_module(where.module, part.id) if bound is MISSING else bound
            elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                if part.value.id in ("self", "cls") and where.owner is not None:
                    yield method(names, where.owner, part.attr)
                else:
                    yield MISSING

    def _callee(self, value: Any, names: Names) -> bool:
        if isinstance(value, Partial):
            value = value.function
        if isinstance(value, Bound):
            value = value.function
        if isinstance(value, Native):
            return value.name in self.natives
        return isinstance(value, Function) and self.function(value, names)


def method(names: Names, klass: Class, name: str) -> Any:
    """A method of a class or of its bases, or ``MISSING``."""
    for owner in names.bases(klass):
        for node in owner.node.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
                return names.natives.get(name) or Function(owner.module, node, name, owner)
    return MISSING


def stored(body: Sequence[ast.stmt]) -> Iterator[ast.expr]:
    """Every target that these statements assign to."""
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
                yield node


def mutated(node: ast.AST) -> str | None:
    """The name of the list or dict that a call changes in place (``reasons.append(x)``), else None."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        return node.func.value.id if node.func.attr in _MUTATORS else None
    return None


def _yielded(node: ast.expr) -> Iterator[ast.AST]:
    """The parts of an expression that can become its value: ``"a" if x else "b"`` yields both strings."""
    if isinstance(node, ast.IfExp):
        yield from _yielded(node.body)
        yield from _yielded(node.orelse)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _yielded(value)
    else:
        yield node
