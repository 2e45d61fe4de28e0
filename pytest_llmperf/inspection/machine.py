"""The world outside the engine as facts: Python's builtins, torch, the environment. Keys are dotted names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_llmperf.inspection.calls import wrap
from pytest_llmperf.inspection.facts import GpuFacts
from pytest_llmperf.inspection.source import Place
from pytest_llmperf.inspection.values import (
    MISSING,
    Bound,
    Class,
    Function,
    Member,
    Native,
    Object,
    Partial,
    Record,
    Text,
    Unknown,
)

if TYPE_CHECKING:
    from pytest_llmperf.inspection.execution import Interpreter

_NOWHERE = Place("builtins", 0)
_RECENT_CUDA = "13.0"
#: Packages and parts of torch that only other accelerators bring.
_ELSEWHERE = frozenset({"torch_npu", "torch_musa", "mlx", "mlx_lm", "habana_frameworks", "npu", "hpu", "musa", "sail"})


def externals(gpu: GpuFacts) -> dict[str, Any]:
    """What torch and the operating system would say on this GPU. ``name()`` is what calling the name gives."""
    nvidia, amd = gpu.vendor == "nvidia", gpu.vendor == "amd"
    major, minor = gpu.capability or (0, 0)
    environment: dict[str, Any] = {}
    properties = Object("device_properties", {"gcnArchName": gpu.name} if amd else {})
    return {
        "os.environ": environment,
        "os.getenv": Native("getenv", wrap(lambda name, default=None: environment.get(name, default))),
        "torch.cuda.is_available": Native("is_available", lambda: nvidia or amd),
        "torch.cuda.device_count": Native("device_count", lambda: Unknown("the number of GPUs")),
        "torch.cuda.get_device_capability": Native(
            "get_device_capability", lambda *_: (major, minor) if gpu.capability else Unknown("the GPU's capability")
        ),
        "torch.cuda.get_device_properties": Native("get_device_properties", lambda *_: properties),
        "torch.version.cuda": _RECENT_CUDA if nvidia else None,
        "torch.version.hip": "7.0" if amd else None,
        "torch.version.musa": None,
        "torch.xpu.is_available()": False,
        "torch.hpu.is_available()": False,
        "torch.npu.is_available()": False,
        "torch.musa.is_available()": False,
        "torch.mps.is_available()": False,
        "torch.backends.mps.is_available()": False,
        "torch.cpu.is_available()": True,
        "platform.machine()": "x86_64",
        "platform.system()": "Linux",
        "sys.platform": "linux",
        "importlib.util.find_spec": Native(
            "find_spec", wrap(lambda name, *_: None if name in _ELSEWHERE else Object(name))
        ),
        "functools.partial": Native("partial", lambda f, *a, **k: Partial(f, a, k)),
        "functools.lru_cache": Native("lru_cache", _decorator),
        "functools.cache": Native("cache", _decorator),
        "typing.cast": Native("cast", lambda _kind, value: value),
        "copy.deepcopy": Native("deepcopy", lambda value, *_: value),
        "copy.copy": Native("copy", lambda value: value),
        "math.sqrt": Native("sqrt", wrap(math.sqrt)),
        "math.ceil": Native("ceil", wrap(math.ceil)),
        "dataclasses.field": Native("field", _field),
        "msgspec.field": Native("field", _field),
        "pydantic.Field": Native("Field", _field),
    }


def builtins(interpreter: Interpreter) -> dict[str, Any]:
    """Python's own functions, for plain values."""

    def get(value: Any, name: Any, *default: Any) -> Any:
        if isinstance(name, Unknown):
            return Unknown("")
        found = interpreter.find_attribute(value, str(name), _NOWHERE)
        if found is not MISSING:
            return found
        if isinstance(value, Object) and not value.complete:
            return Unknown(f"{value.name}.{name}")
        if default:
            return default[0]
        return interpreter.attribute(value, str(name), _NOWHERE)

    def has(value: Any, name: Any) -> Any:
        if isinstance(value, Unknown):
            return name not in _ELSEWHERE if value.text == "torch" else Unknown("")
        found = interpreter.find_attribute(value, str(name), _NOWHERE)
        if found is not MISSING:
            return True
        return Unknown("") if isinstance(value, Object) and not value.complete else False

    def put(value: Any, name: Any, new: Any) -> None:
        if isinstance(value, Object) and isinstance(name, str):
            interpreter.write(value, str(name), new, _NOWHERE)

    def each(function: Any, *items: Any) -> Any:
        return [interpreter.call(function, list(row), {}, _NOWHERE) for row in zip(*items, strict=False)]

    def order(items: Any, key: Any = None, reverse: bool = False) -> Any:
        keys = [interpreter.call(key, [x], {}, _NOWHERE) if key else x for x in items]
        if any(isinstance(k, Unknown) for k in keys):
            return Unknown("")
        ranked = sorted(range(len(keys)), key=lambda i: keys[i], reverse=reverse)
        return [list(items)[i] for i in ranked]

    def extreme(pick: Callable[..., Any]) -> Callable[..., Any]:
        def choose(*items: Any, key: Any = None, default: Any = MISSING) -> Any:
            row = list(items[0]) if len(items) == 1 else list(items)
            if not row:
                return Unknown("") if default is MISSING else default
            keys = [interpreter.call(key, [x], {}, _NOWHERE) if key else x for x in row]
            if any(isinstance(k, Unknown) for k in keys):
                return Unknown("")
            return row[keys.index(pick(keys))]

        return choose

    def every(stops: bool) -> Callable[..., Any]:
        def check(items: Any) -> Any:
            if isinstance(items, Unknown):
                return Unknown(f"{'any' if stops else 'all'}({items.text})")
            truths = [interpreter.truth(x) for x in items]
            return stops if stops in truths else Unknown("") if None in truths else not stops

        return check

    table: dict[str, Callable[..., Any]] = {
        "getattr": get,
        "hasattr": has,
        "setattr": put,
        "isinstance": lambda value, kinds: _is_instance(interpreter, value, kinds),
        "len": wrap(len),
        "str": lambda value="": _text(value),
        "int": wrap(int),
        "float": wrap(float),
        "bool": lambda value=False: Unknown("") if (t := interpreter.truth(value)) is None else t,
        "list": wrap(lambda items=(): list(items)),
        "tuple": wrap(lambda items=(): tuple(items)),
        "set": wrap(lambda items=(): tuple(items)),
        "frozenset": wrap(lambda items=(): tuple(items)),
        "dict": wrap(dict),
        "range": wrap(lambda *bounds: list(range(*bounds)) if max(map(abs, bounds)) < 100_000 else Unknown("")),
        "enumerate": wrap(lambda items, start=0: list(enumerate(items, start))),
        "zip": wrap(lambda *items, **_: list(zip(*items, strict=False))),
        "map": wrap(each),
        "reversed": wrap(lambda items: list(reversed(items))),
        "sorted": wrap(order),
        "min": wrap(extreme(min)),
        "max": wrap(extreme(max)),
        "any": every(True),
        "all": every(False),
        "sum": wrap(lambda items, start=0: sum(items, start)),
        "abs": wrap(abs),
        "round": wrap(round),
        "next": lambda items, *default: items[0] if items else default[0],
        "iter": lambda items: items,
        "print": lambda *_, **__: None,
        "callable": lambda value: isinstance(value, (Function, Bound, Native, Partial, Class)),
        "type": lambda value: value.klass if isinstance(value, Object) and value.klass else Unknown("type"),
        "object.__setattr__": put,
        "object.__getattribute__": get,
    }
    named = {f"builtins.{name}": Native(name, call) for name, call in table.items()}
    plain_object = Object("object", {n: named[f"builtins.object.{n}"] for n in ("__setattr__", "__getattribute__")})
    return {**named, "builtins.object": plain_object}


def _decorator(*args: Any, **_: Any) -> Any:
    """Caching changes no answer: the function itself."""
    return args[0] if args and not isinstance(args[0], int) and args[0] is not None else Native("same", lambda f: f)


def _field(default: Any = None, *, default_factory: Any = None, **_: Any) -> Any:
    """The default of a dataclass, msgspec or pydantic field."""
    if default_factory is None:
        return default
    empty: dict[str, Any] = {"list": [], "dict": {}}
    name = default_factory.name if isinstance(default_factory, (Native, Class)) else ""
    return empty[name] if name in empty else Unknown(f"{name}()")


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, Member) and isinstance(value.value, str):
        return Text(value.value, value.at)
    return str(value) if isinstance(value, (int, float, type(None))) else Unknown("")


def _is_instance(interpreter: Interpreter, value: Any, kinds: Any) -> Any:
    """isinstance over Python's plain types and the engine's own classes."""
    plain: dict[str, Any] = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict}
    plain["tuple"] = plain["set"] = plain["frozenset"] = tuple
    results: list[Any] = []
    for kind in kinds if isinstance(kinds, tuple) else (kinds,):
        if isinstance(value, Unknown) or isinstance(kind, Unknown):
            results.append(None)
        elif isinstance(kind, Native) and kind.name == "type":
            results.append(isinstance(value, Class))
        elif isinstance(kind, Native):
            ours = isinstance(value, (Object, Member, Record, Class, Function))
            results.append(not ours and kind.name in plain and isinstance(value, plain[kind.name]))
        elif isinstance(kind, Class):
            klass = value.klass if isinstance(value, (Object, Record, Member)) else None
            results.append(klass is not None and any(k.node is kind.node for k in interpreter.names.bases(klass)))
    return True if True in results else Unknown("") if None in results or not results else False
