"""Comparing values of which some are unknown: True, False, or None when it cannot be told."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from pytest_llmperf.inspection.names import Names
from pytest_llmperf.inspection.values import Class, Member, Object, Unknown, describe

#: What an operation on plain values may raise; the answer is then unknown.
FAILURES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def text_of(node: ast.AST) -> str:
    """The expression as source on one line, shortened."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 100 else text[:97] + "..."


class Comparisons:
    """Three-valued comparison."""

    names: Names

    def compare(self, op: ast.cmpop, left: Any, right: Any) -> bool | None:
        """The result of one comparison, None when it cannot be told."""
        if isinstance(op, (ast.In, ast.NotIn)):
            inside = self._contains(right, left)
            return inside if inside is None or isinstance(op, ast.In) else not inside
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            same = isinstance(left, Unknown) and left == right and isinstance(op, (ast.Eq, ast.Is))
            return True if same else None
        if isinstance(op, (ast.Is, ast.Eq)):
            return self._same(left, right)
        if isinstance(op, (ast.IsNot, ast.NotEq)):
            same = self._same(left, right)
            return None if same is None else not same
        try:
            return bool(_ORDER[type(op)](left, right))
        except FAILURES:
            return None

    def _same(self, left: Any, right: Any) -> bool | None:
        if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)) and type(left) is type(right):
            results = [self.compare(ast.Eq(), a, b) for a, b in zip(left, right, strict=False)]
            return None if None in results else len(left) == len(right) and all(results)
        if isinstance(left, Class) and isinstance(right, Class):
            return left.node is right.node
        if isinstance(left, Member) != isinstance(right, Member):
            value, other = (left.value, right) if isinstance(left, Member) else (right.value, left)
            return None if isinstance(value, Unknown) else bool(value == other) and not isinstance(other, Object)
        return bool(left == right)

    def _contains(self, container: Any, item: Any) -> bool | None:
        if isinstance(container, Class) and self.names.is_enum(container):
            return None
        if not isinstance(container, (str, list, tuple, dict, set, frozenset)):
            return None
        if isinstance(container, str):
            return item in container if isinstance(item, str) else None
        results = [self.compare(ast.Eq(), item, x) for x in container]
        return True if True in results else None if None in results else False


def comparison_text(node: ast.Compare, left: Any, right: Any) -> str:
    """What is open in a comparison, shown with the values that are known (``page_size == 1``)."""
    if len(node.ops) == 1 and isinstance(left, Unknown) and isinstance(right, (bool, int, str, type(None))):
        middle = text_of(ast.Compare(ast.Name("a"), node.ops, [ast.Name("b")]))[1:-1]
        return f"{left.text}{middle}{describe(right)}"
    return text_of(node)
