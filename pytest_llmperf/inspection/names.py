"""What a name means in the engine's code: definitions are found by reading, and evaluated only when asked for."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from pytest_llmperf.inspection.source import Place, Source
from pytest_llmperf.inspection.values import MISSING, Class, Definition, Import, Member, Module, Text, Unknown


def definitions(tree: ast.Module) -> dict[str, list[Definition]]:
    """Every name a module binds, in order; ``*`` holds its star imports."""
    found: dict[str, list[Definition]] = {}

    def visit(body: list[ast.stmt], conditions: tuple[tuple[ast.expr, bool], ...]) -> None:
        for node in body:
            for name in bound_names(node):
                found.setdefault(name, []).append(Definition(node, conditions))
            if isinstance(node, ast.If):
                visit(node.body, (*conditions, (node.test, True)))
                visit(node.orelse, (*conditions, (node.test, False)))
            elif isinstance(node, ast.Try):
                visit(node.body, conditions)
                for handler in node.handlers:
                    visit(handler.body, conditions)
            elif isinstance(node, ast.With):
                visit(node.body, conditions)

    visit(tree.body, ())
    return found


def bound_names(node: ast.stmt) -> Iterator[str]:
    """The names that one statement binds, nested statements left out."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Import):
        yield from ((a.asname or a.name.split(".")[0]) for a in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from ((a.asname or a.name) for a in node.names)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id


class Names:
    """All modules of one source during one evaluation.

    ``constant`` evaluates a module-level expression; ``holds`` tells whether a module-level condition may hold.
    ``natives`` answers for a bare function name before the engine's code is asked.
    """

    def __init__(
        self,
        source: Source,
        natives: dict[str, Any],
        externals: dict[str, Any],
        constant: Callable[[Module, ast.expr], Any],
        holds: Callable[[Module, ast.expr, bool], bool],
    ) -> None:
        self.source, self.natives, self.externals = source, natives, externals
        self.constant, self.holds = constant, holds
        self.mentioned: dict[str, Place] = {}
        """Where each enum member was last met in this evaluation."""
        self._modules: dict[str, Module | None] = {}

    def file(self, path: str) -> Module | None:
        if path not in self._modules:
            tree = self.source.tree(path)
            known = self.source.memory
            if tree is not None and ("definitions", path) not in known:
                known["definitions", path] = definitions(tree)
            self._modules[path] = Module(self, path, tree, known["definitions", path]) if tree else None
        return self._modules[path]

    def module(self, dotted: str) -> Module | None:
        path = self.source.module_path(dotted)
        return self.file(path) if path else None

    def member(self, start: str, name: str) -> Any:
        """``from start import name``."""
        if name in self.natives:
            return self.natives[name]
        module = self.module(start)
        if module is None:
            return self.external(f"{start}.{name}")
        value = module.lookup(name)
        if value is MISSING:
            value = self.module(f"{start}.{name}") or Unknown(name)
        return value

    def found(self, value: Any) -> Any:
        """The value itself, or what an import turns out to bring."""
        if not isinstance(value, Import):
            return value
        if value.name is not None:
            return self.member(value.start, value.name)
        return self.module(value.start) or self.external(value.start)

    def external(self, dotted: str) -> Any:
        """A name outside the engine: a stated fact, or unknown."""
        return self.externals.get(dotted, Unknown(dotted))

    def in_module(self, module: Module, name: str) -> Any:
        if name in self.natives:
            return self.natives[name]
        return module.lookup(name)

    def class_at(self, dotted: str) -> Any:
        """The class of a dotted path (``vllm.v1.attention.backends.flash_attn.FlashAttentionBackend``)."""
        start, _, name = dotted.rpartition(".")
        module = self.module(start)
        value = module.lookup(name) if module else MISSING
        return Unknown(dotted) if value is MISSING else value

    def bases(self, klass: Class) -> list[Class]:
        """The class and its bases in the engine, nearest first."""
        order, queue = [], [klass]
        while queue:
            current = queue.pop(0)
            if current in order:
                continue
            order.append(current)
            for base in current.node.bases:
                found = self.constant(current.module, base)
                if isinstance(found, Class):
                    queue.append(found)
        return order

    def external_bases(self, klass: Class) -> set[str]:
        """Last components of the base classes' names, over the whole chain (``Enum``, ``NamedTuple``)."""
        return {ast.unparse(b).rsplit(".", 1)[-1] for c in self.bases(klass) for b in c.node.bases}

    def is_enum(self, klass: Class) -> bool:
        return bool(self.external_bases(klass) & {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"})

    def enum_member(self, klass: Class, name: str, at: Place) -> Member | None:
        for node in klass.node.body:
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                value = self.constant(klass.module, node.value)
                self.mentioned[name] = at
                return Member(klass.name, name, value if not isinstance(value, Unknown) else Text(name, at), at, klass)
        return None


def members(enum: Class) -> list[str]:
    """Names of an enum's members, private ones left out."""
    return [
        target.id
        for node in enum.node.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and not target.id.startswith("_")
    ]
