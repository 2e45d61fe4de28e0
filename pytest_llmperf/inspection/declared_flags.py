"""Launch flags as the engine's source declares them: name, default, choices, help and line."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pytest_llmperf.inspection.calls import EngineError
from pytest_llmperf.inspection.execution import Interpreter
from pytest_llmperf.inspection.expressions import Frame
from pytest_llmperf.inspection.names import members
from pytest_llmperf.inspection.source import Place
from pytest_llmperf.inspection.values import Class, Member, Module, Text, Unknown, describe


@dataclass(frozen=True)
class Flag:
    """One launch flag. ``default`` is text (``None`` for the engine's choice); ``choices`` empty when free."""

    name: str
    field: str
    default: str
    choices: tuple[str, ...]
    help: str
    at: Place
    value: Any = None
    """The default as a value, for working out what follows from it."""


#: Fields whose value changes how fast the engine answers; matched against the field's name.
_SPEED = re.compile(
    r"backend|cuda_graph|compil|chunked|overlap|radix|prefix_cach|mem_fraction|gpu_memory|page_size|block_size|schedul"
    r"|specul|max_running|max_num_|kv_cache_dtype|quantiz|stream_interval|determin|all_?reduce|nccl|continuous_decode"
    r"|eager|symm_mem|_parallel_size$|^(tp|dp|pp|ep)_size|two_batch|dbo|load_format|^dtype$|fusion|pdl"
)
_NOT_SPEED = re.compile(r"deprecat|grammar|lora_path|storage_backend|transfer_backend|distributed_executor|_url|_port$")


def for_speed(flags: list[Flag]) -> list[Flag]:
    """Those that matter for speed, by name."""
    return [f for f in flags if _SPEED.search(f.field) and not _NOT_SPEED.search(f.field)]


def annotated(interpreter: Interpreter, module: Module) -> list[Flag]:
    """Fields of the form ``name: A[type, "help" | Arg(help=…, choices=…)] = default`` in any class of the file.

    A field that is no flag (``no_cli``) has an empty name.
    """
    found = []
    frame = Frame(module, "<flags>")
    for klass in (n for n in ast.walk(module.tree) if isinstance(n, ast.ClassDef)):
        for node in klass.body:
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
                continue
            extras = _annotation_extras(node.annotation)
            if extras is None:
                continue
            arg = next((e for e in extras if isinstance(e, ast.Call)), None)
            options = {k.arg: k.value for k in arg.keywords if k.arg} if arg else {}
            help_node = options.get("help") or next((e for e in extras if not isinstance(e, ast.Call)), None)
            flag = _flag(interpreter, frame, node.target.id, node, node.value, options.get("choices"), help_node)
            hidden = _evaluate(interpreter, frame, options.get("no_cli")) is True
            found.append(replace(flag, name="") if hidden else flag)
    return found


def argparse_calls(interpreter: Interpreter, module: Module) -> list[Flag]:
    """Flags of the form ``parser.add_argument("--name", choices=…, default=…, help=…)``, in the order of the file.

    Names that the function sets before are known where they can be told.
    """
    found = []
    for function in (n for n in ast.walk(module.tree) if isinstance(n, ast.FunctionDef)):
        frame = Frame(module, function.name)
        for node in function.body:
            if isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Attribute):
                with contextlib.suppress(EngineError):
                    interpreter.run([node], frame)
            found += [_argument(interpreter, frame, c, name) for c, name in _add_argument(node)]
    return found


def _add_argument(node: ast.stmt) -> Iterator[tuple[ast.Call, str]]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            yield from ((call, name) for name in [n for n in names if n.startswith("--")][:1])


def _argument(interpreter: Interpreter, frame: Frame, node: ast.Call, name: str) -> Flag:
    options = {k.arg: k.value for k in node.keywords if k.arg}
    field = _evaluate(interpreter, frame, options.get("dest"))
    field = str(field) if isinstance(field, str) else name.lstrip("-").replace("-", "_")
    default = options.get("default")
    action = options.get("action")
    if default is None and isinstance(action, ast.Constant):
        default = ast.Constant(action.value == "store_false")
    flag = _flag(interpreter, frame, field, node, default, options.get("choices"), options.get("help"))
    return replace(flag, name=name)


def _annotation_extras(annotation: ast.expr) -> list[ast.expr] | None:
    """What follows the type in ``A[type, …]`` or ``Annotated[type, …]``; None for a plain annotation."""
    if not (isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Tuple)):
        return None
    if ast.unparse(annotation.value).rsplit(".", 1)[-1] not in ("A", "Annotated"):
        return None
    return annotation.slice.elts[1:]


def _flag(
    interpreter: Interpreter,
    frame: Frame,
    field: str,
    node: ast.stmt | ast.expr,
    default: ast.expr | None,
    choices: ast.expr | None,
    help_node: ast.expr | None,
) -> Flag:
    value = _evaluate(interpreter, frame, default)
    text = _evaluate(interpreter, frame, help_node)
    options = _evaluate(interpreter, frame, choices)
    return Flag(
        f"--{field.replace('_', '-')}",
        field,
        "" if default is None else value_text(value),
        tuple(choice_texts(interpreter, options)),
        tidy(text if isinstance(text, str) else _strings(help_node)),
        frame.place(node),
        value,
    )


def choice_texts(interpreter: Interpreter, options: Any) -> Iterator[str]:
    """Choices as text: a list of values, or an enum's members."""
    if isinstance(options, (list, tuple, dict)):
        yield from (value_text(o) for o in options)
    elif isinstance(options, Class) and interpreter.names.is_enum(options):
        for name in members(options):
            member = interpreter.names.enum_member(options, name, Place(options.module.path, options.node.lineno))
            yield name if member is None else value_text(member)


def _evaluate(interpreter: Interpreter, frame: Frame, node: ast.expr | None) -> Any:
    try:
        return interpreter.evaluate(node, frame)
    except EngineError as error:
        return Unknown(error.text)


def value_text(value: Any) -> str:
    if isinstance(value, Member):
        return str(value.value) if isinstance(value.value, (str, int)) else value.name
    return str(value) if isinstance(value, (Text, str, int, float, bool, type(None))) else describe(value)


def _strings(node: ast.expr | None) -> str:
    """The literal pieces of a text that is put together at run time."""
    pieces = [] if node is None else [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
    return " ".join(p for p in pieces if isinstance(p, str))


def tidy(text: str) -> str:
    """One line, no runs of blanks, no argparse escapes."""
    return " ".join(text.replace("%%", "%").split())
