"""Running the statements of an engine's functions over known and unknown values.

A condition that cannot be told splits the evaluation in two only where that can change the answer ("relevant"
code: it writes a field that was asked for, or returns one of its possible values). Anywhere else both branches are
skipped and what they would have assigned becomes unknown. The two sides of a split are run one after the other,
each from the start (``paths.explore``).
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_llmperf.inspection.calls import Calls, EngineError
from pytest_llmperf.inspection.comparison import FAILURES, text_of
from pytest_llmperf.inspection.expressions import BINARY, Frame, too_large
from pytest_llmperf.inspection.names import Names
from pytest_llmperf.inspection.relevance import Relevance, mutated, stored
from pytest_llmperf.inspection.source import Place, Source
from pytest_llmperf.inspection.values import Class, Function, Module, Object, Record, Unknown, describe

_STEPS = 400_000


@dataclass(frozen=True)
class Decision:
    """A condition that was met on the way. ``assumed``: the source does not tell, this side was taken.
    ``lines`` are those of the function it stands in."""

    at: Place
    text: str
    holds: bool
    assumed: bool
    lines: tuple[int, int] = (0, 0)


@dataclass
class Choices:
    """Which side to take at each open condition: ``wanted`` first, then the true side. ``taken`` is what was met."""

    wanted: tuple[bool, ...] = ()
    taken: list[tuple[str, Place, bool]] = field(default_factory=list)
    known: dict[str, bool] = field(default_factory=dict)

    def decide(self, text: str, at: Place) -> bool:
        """The same question always gets the same answer."""
        if text not in self.known:
            i = len(self.taken)
            self.known[text] = self.wanted[i] if i < len(self.wanted) else True
            self.taken.append((text, at, self.known[text]))
        return self.known[text]


class OutOfStepsError(Exception):
    """The evaluation took too long and was given up."""


class _ReturnSignal(BaseException):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class _LoopSignal(BaseException):
    def __init__(self, leave: bool) -> None:
        super().__init__()
        self.leave = leave


class _GiveUpSignal(BaseException):
    """An irrelevant function whose course cannot be told."""


class Interpreter(Calls):
    """One evaluation of engine code. ``trail`` holds every condition met in relevant code, ``notes`` what could not
    be followed, ``writes`` each write to a field that was asked for: (field, value, place)."""

    def __init__(
        self,
        source: Source,
        relevance: Relevance,
        natives: dict[str, Any],
        externals: dict[str, Any],
        choices: Choices,
    ) -> None:
        self.names = Names(source, natives, externals, self._module_constant, self._may_hold)
        self.relevance, self.choices = relevance, choices
        self.trail: list[Decision] = []
        self.notes: list[str] = []
        self.writes: list[tuple[str, Any, Place]] = []
        self.steps = 0

    def tick(self) -> None:
        self.steps += 1
        if self.steps > _STEPS:
            raise OutOfStepsError

    def decide(self, text: str, at: Place) -> bool:
        return self.choices.decide(text, at)

    def is_relevant(self, function: Function) -> bool:
        return self.relevance.function(function, self.names)

    def _module_constant(self, module: Module, node: ast.expr) -> Any:
        return self.evaluate(node, Frame(module, "<module>"))

    def _may_hold(self, module: Module, test: ast.expr, wanted: bool) -> bool:
        if isinstance(test, ast.Name) and test.id == "TYPE_CHECKING":
            return True  # the name is what is wanted here, not its run-time value
        truth = self.truth(self._module_constant(module, test))
        return truth is None or truth is wanted

    def write(self, target: Object, name: str, value: Any, at: Place) -> None:
        """Set a field; one that was asked for is remembered."""
        target.attributes[name] = value
        if name in self.relevance.targets:
            self.writes.append((name, value, getattr(value, "at", at)))

    def run_function(self, function: Function, frame: Frame) -> Any:
        body = function.node.body
        assert isinstance(body, list)
        if self._is_generator(function, body):
            return Unknown("")
        try:
            self.run(body, frame)
        except _ReturnSignal as done:
            return done.value
        except _GiveUpSignal:
            self._forget(body, frame)
            return Unknown("")
        return None

    def _is_generator(self, function: Function, body: Sequence[ast.stmt]) -> bool:
        known, key = self.names.source.memory, (function.module.path, function.node.lineno)
        if key not in known:
            known[key] = any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in _shallow(body))
        return bool(known[key])

    def run(self, body: Sequence[ast.stmt], frame: Frame) -> None:
        for node in body:
            self.tick()
            handler: Callable[[Any, Frame], None] | None = getattr(self, f"_do_{type(node).__name__.lower()}", None)
            if handler is not None:
                handler(node, frame)

    def _do_expr(self, node: ast.Expr, frame: Frame) -> None:
        self.evaluate(node.value, frame)

    def _do_return(self, node: ast.Return, frame: Frame) -> None:
        raise _ReturnSignal(self.evaluate(node.value, frame))

    def _do_raise(self, node: ast.Raise, frame: Frame) -> None:
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        kind = ast.unparse(raised).rsplit(".", 1)[-1] if raised else "Exception"
        message = self.evaluate(node.exc.args[0], frame) if isinstance(node.exc, ast.Call) and node.exc.args else kind
        raise EngineError(kind, message if isinstance(message, str) else describe(message), frame.place(node))

    def _do_assert(self, node: ast.Assert, frame: Frame) -> None:
        if self.truth(self.evaluate(node.test, frame)) is False:
            message = self.evaluate(node.msg, frame) if node.msg else text_of(node.test)
            raise EngineError("AssertionError", describe(message), frame.place(node))

    def _do_assign(self, node: ast.Assign, frame: Frame) -> None:
        value = self.evaluate(node.value, frame)
        for target in node.targets:
            self._assign(target, value, frame)

    def _do_annassign(self, node: ast.AnnAssign, frame: Frame) -> None:
        if node.value is not None:
            self._assign(node.target, self.evaluate(node.value, frame), frame)

    def _do_augassign(self, node: ast.AugAssign, frame: Frame) -> None:
        current = self.evaluate(_as_load(node.target), frame)
        change = self.evaluate(node.value, frame)
        result: Any = Unknown(text_of(node.target))
        operation = BINARY.get(type(node.op))
        plain = (int, float, str, list, tuple)
        if operation and isinstance(current, plain) and isinstance(change, plain) and not too_large(current, change):
            with contextlib.suppress(*FAILURES):
                result = operation(current, change)
        self._assign(node.target, result, frame)

    def _assign(self, target: ast.expr, value: Any, frame: Frame) -> None:
        if isinstance(target, ast.Attribute):
            base = self.evaluate(target.value, frame)
            if isinstance(base, Object):
                self.write(base, target.attr, value, frame.place(target))
        elif isinstance(target, ast.Subscript):
            base, key = self.evaluate(target.value, frame), self.evaluate(target.slice, frame)
            if isinstance(base, list) and isinstance(key, int) and abs(key) < len(base):
                base[key] = value
            if isinstance(base, dict) and isinstance(key, (str, int)):
                base[key] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            fits = isinstance(value, (tuple, list, Record)) and len(value) == len(target.elts)
            for i, part in enumerate(target.elts):
                self._assign(part, value[i] if fits else Unknown(text_of(part)), frame)
        else:
            self.bind(target, value, frame)

    def _do_if(self, node: ast.If, frame: Frame) -> None:
        condition = self.evaluate(node.test, frame)
        holds = self.truth(condition)
        assumed = holds is None
        if holds is None:
            refusals = [_only_refuses(b) for b in (node.body, node.orelse)]
            if any(refusals):
                holds = not refusals[0]  # the launch is taken to be one that the engine accepts
            elif frame.relevant and self.relevance.statements(node.body + node.orelse, frame, self.names):
                holds = self.decide(condition.text, frame.place(node.test))
            elif any(isinstance(n, (ast.Return, ast.Break, ast.Continue)) for n in _shallow(node.body + node.orelse)):
                raise _GiveUpSignal
            else:
                self._forget(node.body + node.orelse, frame)
                return
        if frame.relevant:
            text = condition.text if assumed else text_of(node.test)
            self.trail.append(Decision(frame.place(node.test), text, holds, assumed, frame.lines))
        self.run(node.body if holds else node.orelse, frame)

    def _do_for(self, node: ast.For, frame: Frame) -> None:
        items = self.items(self.evaluate(node.iter, frame), frame.place(node.iter))
        if items is None:
            if frame.relevant and self.relevance.statements(node.body, frame, self.names):
                self.notes.append(f"the loop at {frame.place(node)} over {text_of(node.iter)} could not be followed")
            self._forget(node.body, frame)
            return
        for item in items:
            self._assign(node.target, item, frame)
            try:
                self.run(node.body, frame)
            except _LoopSignal as jump:
                if jump.leave:
                    return
        self.run(node.orelse, frame)

    def _do_while(self, node: ast.While, frame: Frame) -> None:
        self._forget(node.body, frame)

    def _do_break(self, node: ast.Break, frame: Frame) -> None:
        raise _LoopSignal(True)

    def _do_continue(self, node: ast.Continue, frame: Frame) -> None:
        raise _LoopSignal(False)

    def _do_with(self, node: ast.With, frame: Frame) -> None:
        for item in node.items:
            value = self.evaluate(item.context_expr, frame)
            if item.optional_vars is not None:
                self._assign(item.optional_vars, value, frame)
        self.run(node.body, frame)

    def _do_try(self, node: ast.Try, frame: Frame) -> None:
        try:
            self.run(node.body, frame)
        except EngineError as error:
            handler = next((h for h in node.handlers if _catches(h, error.kind)), None)
            if handler is None:
                raise
            if handler.name:
                frame.locals[handler.name] = Unknown(error.text)
            self.run(handler.body, frame)
        else:
            self.run(node.orelse, frame)
        self.run(node.finalbody, frame)

    def _do_import(self, node: ast.Import | ast.ImportFrom, frame: Frame) -> None:
        frame.locals.update(frame.module.imported(node))

    _do_importfrom = _do_import

    def _do_functiondef(self, node: ast.FunctionDef, frame: Frame) -> None:
        frame.locals[node.name] = Function(frame.module, node, node.name, frame.owner, frame.locals)

    def _do_classdef(self, node: ast.ClassDef, frame: Frame) -> None:
        frame.locals[node.name] = Class(frame.module, node, node.name)

    def _do_match(self, node: ast.Match, frame: Frame) -> None:
        if any(isinstance(n, ast.Return) for n in _shallow([node])):
            raise _GiveUpSignal
        self._forget([node], frame)

    def _forget(self, body: Sequence[ast.stmt], frame: Frame) -> None:
        """Whatever these statements may assign is unknown from here on."""
        for target in stored(body):
            if isinstance(target, ast.Name):
                frame.locals[target.id] = Unknown(f"{target.id} (in {frame.function})")
            elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                base = frame.locals.get(target.value.id)
                if isinstance(base, Object):
                    base.attributes[target.attr] = Unknown(f"{target.value.id}.{target.attr}")
            elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                known = frame.locals.get(target.value.id)
                if isinstance(known, dict) and isinstance(target.slice, ast.Constant):
                    known[target.slice.value] = Unknown(text_of(target))
        for name in (mutated(node) for statement in body for node in ast.walk(statement)):
            if isinstance(name and frame.locals.get(name), (list, dict)):
                frame.locals[str(name)] = Unknown(f"{name} (in {frame.function})")


def _as_load(node: ast.expr) -> ast.expr:
    copy: ast.expr = ast.parse(ast.unparse(node), mode="eval").body
    return ast.copy_location(copy, node)


def _shallow(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes except those of nested functions and classes."""
    queue: list[ast.AST] = list(body)
    while queue:
        node = queue.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            queue.extend(ast.iter_child_nodes(node))


def _only_refuses(body: Sequence[ast.stmt]) -> bool:
    """True when these statements always end in an error."""
    return bool(body) and isinstance(body[-1], ast.Raise)


def _catches(handler: ast.ExceptHandler, kind: str) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return bool({ast.unparse(k).rsplit(".", 1)[-1] for k in kinds} & {kind, "Exception", "BaseException"})
