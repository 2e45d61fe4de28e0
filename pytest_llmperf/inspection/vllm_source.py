"""Reading vLLM: its platform's own backend selection is followed, each backend's checks included."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmperf.inspection import declared_flags, machine
from pytest_llmperf.inspection.calls import EngineError, class_fields
from pytest_llmperf.inspection.declared_flags import Flag
from pytest_llmperf.inspection.execution import Choices, Interpreter
from pytest_llmperf.inspection.expressions import Frame
from pytest_llmperf.inspection.facts import GpuFacts, ModelFacts, config_object
from pytest_llmperf.inspection.names import members
from pytest_llmperf.inspection.paths import Outcomes, explore
from pytest_llmperf.inspection.relevance import Relevance
from pytest_llmperf.inspection.source import Place, Source
from pytest_llmperf.inspection.values import MISSING, Class, Native, Object, Record, Text, Unknown

PACKAGE = "vllm"
_ARGS = "vllm/engine/arg_utils.py"
_PLATFORMS = {
    "nvidia": ("vllm/platforms/cuda.py", "CudaPlatformBase"),
    "amd": ("vllm/platforms/rocm.py", "RocmPlatform"),
    "cpu": ("vllm/platforms/cpu.py", "CpuPlatform"),
}
#: Where the list of backends was kept, newest first: (module, enum).
_REGISTRIES = (
    ("vllm.v1.attention.backends.registry", "AttentionBackendEnum"),
    ("vllm.attention.backends.registry", "AttentionBackendEnum"),
    ("vllm.attention.backends.registry", "_Backend"),
    ("vllm.platforms.interface", "_Backend"),
)
#: Lists that the selection fills and then decides by.
_VERDICTS = frozenset({"invalid_reasons", "invalid_reasons_i", "valid_backends_priorities", "reasons"})


@dataclass(frozen=True)
class Registry:
    """The enum of attention backends: member names, and the class path of each where the enum has it."""

    names: tuple[str, ...]
    paths: Mapping[str, str]
    at: Place


def registry(source: Source) -> Registry | None:
    """The attention backends this release knows, or None when there is no such list where one is looked for."""
    reader = _interpreter(source, Choices(), GpuFacts("", ""), _nothing())
    for module, name in _REGISTRIES:
        klass = reader.names.class_at(f"{module}.{name}")
        if isinstance(klass, Class):
            at = Place(klass.module.path, klass.node.lineno)
            found = {n: reader.names.enum_member(klass, n, at) for n in members(klass)}
            paths = {n: str(m.value) for n, m in found.items() if m is not None and isinstance(m.value, str)}
            return Registry(tuple(found), paths, at)
    return None


def launch_flags(source: Source) -> list[Flag]:
    """Every launch flag: ``add_argument`` names, with defaults and help from the config classes behind them."""
    reader = _interpreter(source, Choices(), GpuFacts("", ""), _nothing())
    module = reader.names.file(_ARGS)
    if module is None:
        return []
    found: dict[str, Flag] = {}
    arguments = module.lookup("EngineArgs")
    defaults = class_fields(arguments) if isinstance(arguments, Class) else {}
    for flag in declared_flags.argparse_calls(reader, module):
        default = defaults.get(flag.field)
        value: Any = flag.value
        text, options, about = flag.default, flag.choices, flag.help
        if default is not None:
            try:
                value = reader.evaluate(default, Frame(module, "<flags>"))
            except EngineError:
                value = Unknown(ast.unparse(default))
            text = declared_flags.value_text(value)
            about, options = _documented(reader, module.path, default) or (about, options)
        found.setdefault(flag.field, Flag(flag.name, flag.field, text, options, about, flag.at, value))
    return sorted(found.values(), key=lambda f: f.name)


def _documented(reader: Interpreter, path: str, default: ast.expr) -> tuple[str, tuple[str, ...]] | None:
    """Help and choices of ``CacheConfig.block_size``: the text below the field, and its Literal or enum type."""
    if not (isinstance(default, ast.Attribute) and isinstance(default.value, ast.Name)):
        return None
    module = reader.names.file(path)
    owner = module.lookup(default.value.id) if module else None
    for klass in reader.names.bases(owner) if isinstance(owner, Class) else []:
        for node, after in zip(klass.node.body, [*klass.node.body[1:], None], strict=True):
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
                continue
            if node.target.id == default.attr:
                text = (
                    after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
                )
                about = declared_flags.tidy(text) if isinstance(text, str) else ""
                return about, tuple(_literals(reader, klass, node.annotation))
    return None


def _literals(reader: Interpreter, klass: Class, annotation: ast.expr) -> list[str]:
    """Values of the Literal or enum that an annotation names, one alias deep."""
    found: list[str] = []
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal"):
            found += [str(n.value) for n in ast.walk(node.slice) if isinstance(n, ast.Constant)]
        elif isinstance(node, ast.Name):
            for definition in klass.module.bindings.get(node.id, ())[:1]:
                if isinstance(definition.node, ast.Assign):
                    found += _literals(reader, klass, definition.node.value)
            value = klass.module.lookup(node.id)
            if isinstance(value, Class) and reader.names.is_enum(value):
                found += members(value)
    return found


def resolve(
    source: Source, model: ModelFacts, gpu: GpuFacts, known: Registry | None, given: Mapping[str, Any]
) -> Outcomes:
    """The attention backend that the platform would select when none is asked for, on every open path."""
    answers = frozenset(known.names) if known else frozenset()
    relevance = Relevance(_VERDICTS, answers)
    names = {path: name for name, path in known.paths.items()} if known else {}

    def run(interpreter: Interpreter) -> dict[str, Any]:
        path, klass = _PLATFORMS[gpu.vendor]
        platform = interpreter.names.class_at(f"{path.removesuffix('.py').replace('/', '.')}.{klass}")
        at = Place(path, 0)
        if not isinstance(platform, Class):
            return {"attention_backend": Unknown(f"{path} has no {klass}")}
        config = _config(model, given)
        here: dict[str, Any] = {"current_platform": Object("current_platform", klass=platform)}
        for name in ("get_current_vllm_config", "get_current_vllm_config_or_none"):
            here[name] = Native(name, lambda *_: config)
        interpreter.names.natives.update(here)
        wanted = _wanted(interpreter, platform, model, given)
        if "attn_selector_config" not in wanted:
            wanted["block_size"] = _block_size(interpreter, platform, config)
        select = interpreter.attribute(platform, "get_attn_backend_cls", at)
        accepted = getattr(getattr(select, "function", None), "node", None)
        parameters = {a.arg for a in accepted.args.args} if accepted is not None else set()
        chosen = interpreter.call(select, [], {k: v for k, v in wanted.items() if k in parameters}, at)
        return {"attention_backend": _named(chosen, names, interpreter.names.mentioned)}

    return explore(lambda choices: _interpreter(source, choices, gpu, relevance), run)


def _named(chosen: Any, names: Mapping[str, str], mentioned: Mapping[str, Place]) -> Any:
    """A class path as its name in the registry, at the line that put it forward; as its class where it has none."""
    if not isinstance(chosen, str):
        return chosen
    name = names.get(str(chosen), str(chosen).rsplit(".", 1)[-1])
    at = mentioned.get(name, getattr(chosen, "at", None))
    return Text(name, at) if at is not None else name


def _wanted(interpreter: Interpreter, platform: Class, model: ModelFacts, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a decoder layer of this model asks the platform for, in the words of every known release."""
    text = model.text
    facts: dict[str, Any] = {
        "head_size": model.head_size if model.head_size is not None else Unknown("the model's head size"),
        "dtype": Unknown("torch.bfloat16"),
        "kv_cache_dtype": given.get("kv_cache_dtype", "auto"),
        "use_mla": model.is_mla,
        "has_sink": model.config.get("model_type") == "gpt_oss",
        "use_sparse": model.is_mla and "index_topk" in text,
        "has_sliding_window": bool(text.get("sliding_window")) and text.get("use_sliding_window") is not False,
        "use_v1": True,
        "selected_backend": None,
        "num_heads": text.get("num_attention_heads"),
        "block_size": given.get("block_size"),
    }
    selector = interpreter.names.class_at("vllm.v1.attention.selector.AttentionSelectorConfig")
    if isinstance(selector, Class):
        fields = {
            n.target.id for n in selector.node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
        }
        stated = {k: v for k, v in facts.items() if k in fields}
        others = {"use_batch_invariant": False, "use_kv_connector": False}
        config = interpreter.call(
            selector, [], {**{k: v for k, v in others.items() if k in fields}, **stated}, Place("", 0)
        )
        return {**facts, "attn_selector_config": config}
    return facts


def _config(model: ModelFacts, given: Mapping[str, Any]) -> Object:
    """vLLM's own view of the launch, as far as a selection looks at it."""
    text = config_object("hf_text_config", model.text)
    kind = {"use_mla": model.is_mla, "attn_type": "decoder", "is_encoder_decoder": False}
    models = {**kind, "hf_config": config_object("hf_config", model.config), "hf_text_config": text}
    cache = {"block_size": given.get("block_size"), "cache_dtype": given.get("kv_cache_dtype", "auto")}
    return Object(
        "vllm_config",
        {
            "model_config": Object("model_config", models),
            "cache_config": Object("cache_config", dict(cache)),
            "parallel_config": Object("parallel_config", {"decode_context_parallel_size": 1}),
            "speculative_config": None,
            "kv_transfer_config": None,
        },
    )


def _block_size(interpreter: Interpreter, platform: Class, config: Object) -> Any:
    """Older releases settle the block size first, and choose the backend by it."""
    at = Place("vllm/platforms/interface.py", 0)
    settle = interpreter.find_attribute(platform, "check_and_update_config", at)
    if settle is not MISSING:
        interpreter.call(settle, [config], {}, at)
    return config.attributes["cache_config"].attributes["block_size"]


def _nothing() -> Relevance:
    return Relevance(frozenset(), frozenset())


def _interpreter(source: Source, choices: Choices, gpu: GpuFacts, relevance: Relevance) -> Interpreter:
    natives: dict[str, Any] = {}
    interpreter = Interpreter(source, relevance, natives, machine.externals(gpu), choices)
    natives.update(machine.builtins(interpreter))
    natives["resolve_obj_by_qualname"] = Native("resolve", lambda dotted: interpreter.names.class_at(str(dotted)))
    if gpu.capability is not None:
        capability = interpreter.names.class_at("vllm.platforms.interface.DeviceCapability")
        if isinstance(capability, Class):
            found = Record(("major", "minor"), gpu.capability, capability)
            natives["get_device_capability"] = Native("get_device_capability", lambda *_, **__: found)
    return interpreter
