"""Launch flags as the engine's source declares them: name, default, choices, help and line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pytest_llmperf.inspection.calls import EngineError
from pytest_llmperf.inspection.execution import Interpreter
from pytest_llmperf.inspection.expressions import Frame
from pytest_llmperf.inspection.names import Module
from pytest_llmperf.inspection.source import Place
from pytest_llmperf.inspection.values import Class, Member, Text, Unknown, describe


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
    """Fields of the form ``name: A[type, "help" | Arg(help=…, choices=…)] = default`` in any class of the file."""
    found = []
    for klass in (n for n in ast.walk(module.tree) if isinstance(n, ast.ClassDef)):
        for node in klass.body:
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
                continue
            extras = _annotation_extras(node.annotation)
            if extras is None:
                continue
            arg = next((e for e in extras if isinstance(e, ast.Call)), None)
            options = {k.arg: k.value for k in arg.keywords if k.arg} if arg else {}
            if _evaluate(interpreter, module, options.get("no_cli")) is True:
                continue
            help_node = options.get("help") or next((e for e in extras if not isinstance(e, ast.Call)), None)
            found.append(_flag(interpreter, module, node.target.id, node, node.value, options.get("choices"), help_node))
    return found


def argparse_calls(interpreter: Interpreter, module: Module) -> list[Flag]:
    """Flags of the form ``parser.add_argument("--name", choices=…, default=…, help=…)``."""
    found = []
    for node in ast.walk(module.tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"):
            continue
        names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        name = next((n for n in names if n.startswith("--")), None)
        if name is None:
            continue
        options = {k.arg: k.value for k in node.keywords if k.arg}
        field = _evaluate(interpreter, module, options.get("dest"))
        field = str(field) if isinstance(field, str) else name.lstrip("-").replace("-", "_")
        default = options.get("default")
        if default is None and isinstance(options.get("action"), ast.Constant):
            default = ast.Constant(options["action"].value == "store_false")  # type: ignore[attr-defined]
        flag = _flag(interpreter, module, field, node, default, options.get("choices"), options.get("help"))
        found.append(Flag(name, flag.field, flag.default, flag.choices, flag.help, flag.at, flag.value))
    return found


def _annotation_extras(annotation: ast.expr) -> list[ast.expr] | None:
    """What follows the type in ``A[type, …]`` or ``Annotated[type, …]``; None for a plain annotation."""
    if not (isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Tuple)):
        return None
    if ast.unparse(annotation.value).rsplit(".", 1)[-1] not in ("A", "Annotated"):
        return None
    return annotation.slice.elts[1:]


def _flag(
    interpreter: Interpreter,
    module: Module,
    field: str,
    node: ast.stmt | ast.expr,
    default: ast.expr | None,
    choices: ast.expr | None,
    help_node: ast.expr | None,
) -> Flag:
    value = _evaluate(interpreter, module, default)
    text = _evaluate(interpreter, module, help_node)
    options = _evaluate(interpreter, module, choices)
    return Flag(
        f"--{field.replace('_', '-')}",
        field,
        "" if default is None else _value_text(value),
        tuple(choice_texts(interpreter, options)),
        tidy(text if isinstance(text, str) else _strings(help_node)),
        Place(module.path, node.lineno),
        value,
    )


def choice_texts(interpreter: Interpreter, options: Any) -> Iterator[str]:
    """Choices as text: a list of values, or an enum's members."""
    if isinstance(options, (list, tuple)):
        yield from (_value_text(o) for o in options)
    elif isinstance(options, dict):
        yield from (_value_text(o) for o in options)
    elif isinstance(options, Class) and interpreter.names.is_enum(options):
        yield from members(options)


def members(enum: Class) -> list[str]:
    """Names of an enum's members, private ones left out."""
    return [
        target.id
        for node in enum.node.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and not target.id.startswith("_")
    ]


def _evaluate(interpreter: Interpreter, module: Module, node: ast.expr | None) -> Any:
    try:
        return interpreter.evaluate(node, Frame(module, "<flags>"))
    except EngineError as error:
        return Unknown(error.text)


def _value_text(value: Any) -> str:
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
