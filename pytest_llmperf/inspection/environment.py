"""Variables that the engine sets in its own environment, whatever the launch says: found by reading assignments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_llmperf.inspection.comparison import text_of
from pytest_llmperf.inspection.source import Place, Source

_NAMES = re.compile(
    r"^(NCCL|RCCL|TORCH_NCCL|NVSHMEM|TRTLLM|TORCH_SYMM_MEM)_|^CUDA_(DEVICE_MAX_CONNECTIONS|MODULE_LOADING|SCALE)"
)
_MENTIONED = (b"NCCL_", b"NVSHMEM_", b"TRTLLM_", b"TORCH_SYMM_MEM_", b"CUDA_DEVICE_MAX", b"CUDA_MODULE", b"CUDA_SCALE")
_NOT_SERVING = re.compile(r"/(tests?|benchmarks?|examples|multimodal_gen|third_party)/")


@dataclass(frozen=True)
class EnvironmentWrite:
    """One assignment to a variable. ``how``: ``set`` (whatever it was), ``default`` (only when unset) or ``removed``.

    ``conditions`` are the conditions it stands under in ``function``, outermost first, as source text.
    """

    name: str
    value: str
    how: str
    conditions: tuple[str, ...]
    function: str
    at: Place


def forced(source: Source) -> list[EnvironmentWrite]:
    """Every such assignment in the serving code, sorted by variable and place."""
    found: list[EnvironmentWrite] = []
    for path, read in source.files.items():
        if _NOT_SERVING.search(path):
            continue
        text = read()
        if any(word in text for word in _MENTIONED):
            tree = source.tree(path)
            if tree is not None:
                found += _writes(tree.body, path, "", ())
    return sorted(found, key=lambda w: (w.name, w.at.file, w.at.line))


def _writes(body: list[ast.stmt], path: str, function: str, conditions: tuple[str, ...]) -> Iterator[EnvironmentWrite]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _writes(node.body, path, node.name, ())
        elif isinstance(node, ast.ClassDef):
            yield from _writes(node.body, path, function, conditions)
        elif isinstance(node, ast.If):
            test = text_of(node.test)
            yield from _in_expression(node.test, path, function, conditions)
            yield from _writes(node.body, path, function, (*conditions, test))
            yield from _writes(node.orelse, path, function, (*conditions, f"not ({test})"))
        elif isinstance(node, (ast.With, ast.AsyncWith, ast.For, ast.While, ast.Try)):
            for part in ("body", "orelse", "finalbody"):
                yield from _writes(getattr(node, part, []), path, function, conditions)
            for handler in getattr(node, "handlers", []):
                yield from _writes(handler.body, path, function, conditions)
        else:
            yield from _statement(node, path, function, conditions)


def _statement(node: ast.stmt, path: str, function: str, conditions: tuple[str, ...]) -> Iterator[EnvironmentWrite]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_environment(target.value):
                yield from _write(target.slice, node.value, "set", path, function, conditions)
    elif isinstance(node, ast.Delete):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_environment(target.value):
                yield from _write(target.slice, None, "removed", path, function, conditions)
    yield from _in_expression(node, path, function, conditions)


def _in_expression(node: ast.AST, path: str, function: str, conditions: tuple[str, ...]) -> Iterator[EnvironmentWrite]:
    for call in ast.walk(node):
        if not (isinstance(call, ast.Call) and call.args):
            continue
        if isinstance(call.func, ast.Name):
            if "env" in call.func.id and isinstance(call.args[0], ast.Dict):  # pin_nccl_env({"NCCL_PROTO": "Simple"})
                yield from _each(call.args[0], path, function, conditions)
            continue
        if not isinstance(call.func, ast.Attribute):
            continue
        if not _is_environment(call.func.value):
            continue
        name = call.args[0]
        if call.func.attr == "setdefault":
            value = call.args[1] if len(call.args) > 1 else None
            yield from _write(name, value, "default", path, function, conditions)
        elif call.func.attr == "pop":
            yield from _write(name, None, "removed", path, function, conditions)
        elif call.func.attr == "update" and isinstance(name, ast.Dict):
            yield from _each(name, path, function, conditions)


def _each(table: ast.Dict, path: str, function: str, conditions: tuple[str, ...]) -> Iterator[EnvironmentWrite]:
    for key, value in zip(table.keys, table.values, strict=True):
        if key is not None:
            yield from _write(key, value, "set", path, function, conditions)


def _write(
    name: ast.expr, value: ast.expr | None, how: str, path: str, function: str, conditions: tuple[str, ...]
) -> Iterator[EnvironmentWrite]:
    if isinstance(name, ast.Constant) and isinstance(name.value, str) and _NAMES.search(name.value):
        text = "" if value is None else str(value.value) if isinstance(value, ast.Constant) else text_of(value)
        if how == "set" and any(c.replace('"', "'") == f"'{name.value}' not in os.environ" for c in conditions):
            how = "default"
        yield EnvironmentWrite(name.value, text, how, conditions, function, Place(path, name.lineno))


def _is_environment(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "environ" and isinstance(node.value, ast.Name) and node.value.id == "os"
    return isinstance(node, ast.Name) and node.id == "environ"
