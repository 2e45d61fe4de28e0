"""Reading SGLang: its own resolution code is followed, from 0.4's ModelRunner to today's arg_groups pipeline."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from pytest_llmperf.inspection import declared_flags, machine
from pytest_llmperf.inspection.declared_flags import Flag
from pytest_llmperf.inspection.execution import Choices, Interpreter
from pytest_llmperf.inspection.facts import GpuFacts, ModelFacts, config_object
from pytest_llmperf.inspection.paths import Outcomes, explore
from pytest_llmperf.inspection.relevance import Relevance
from pytest_llmperf.inspection.source import Place, Source
from pytest_llmperf.inspection.values import MISSING, Bound, Class, Function, Module, Native, Object, Unknown

PACKAGE = "sglang"
ATTENTION = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
_ARGS = "sglang/srt/server_args.py"
_FIELDS = "sglang/srt/arg_groups/fields"
_CHOICES = "sglang/srt/arg_groups/choices.py"
_PIPELINE = "sglang/srt/arg_groups/pipeline.py"
_RUNNER = "sglang/srt/model_executor/model_runner.py"
_REGISTRARS = ("_register_for", "register_model_override", "register_model_override_predicate")
_COLLECT = "collect_model_override_declarations"


def launch_flags(source: Source) -> list[Flag]:
    """Every launch flag this release declares, sorted by name."""
    defaults: dict[str, Any] = {}
    reader = _interpreter(source, Choices(), GpuFacts("", ""), None, Relevance(frozenset(), frozenset()), defaults)
    found: dict[str, Flag] = {}
    for path in [*source.under(_FIELDS), _ARGS]:
        module = reader.names.file(path)
        if module is not None:
            fields = declared_flags.annotated(reader, module)
            defaults.update({f.field: f.value for f in fields})
            declared = [f for f in fields if f.name] + declared_flags.argparse_calls(reader, module)
            found = {f.field: f for f in declared} | found
    return sorted(found.values(), key=lambda f: f.name)


def constants(source: Source) -> dict[str, tuple[tuple[str, ...], Place]]:
    """Module-level lists of choices whose name says backend (``DETERMINISTIC_ATTENTION_BACKEND_CHOICES``)."""
    found: dict[str, tuple[tuple[str, ...], Place]] = {}
    for path in (_CHOICES, _ARGS):
        for node in (source.tree(path) or ast.Module([], [])).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if "BACKEND" in name and name.endswith("CHOICES") and isinstance(node.value, (ast.List, ast.Tuple)):
                    values = tuple(str(e.value) for e in node.value.elts if isinstance(e, ast.Constant))
                    found.setdefault(name, (values, Place(path, node.lineno)))
    return found


def relevance(source: Source, declared: list[Flag], targets: tuple[str, ...]) -> Relevance:
    """What code matters for ``targets``; made once and shared by every model and GPU."""
    answers = {c for f in declared if f.field in targets for c in f.choices}
    for name, (values, _) in constants(source).items():
        if any(t.upper() in name for t in targets):
            answers.update(values)
    return Relevance(frozenset(targets), frozenset(answers), frozenset({_COLLECT}))


def resolve(
    source: Source,
    declared: list[Flag],
    matters: Relevance,
    model: ModelFacts,
    gpu: GpuFacts,
    given: Mapping[str, Any],
) -> Outcomes:
    """What the engine would set the targets of ``matters`` (fields of its server arguments) to, on every open path.

    ``given`` holds flags that the launch sets, by field name.
    """
    defaults = {f.field: f.value for f in declared}

    def make(choices: Choices) -> Interpreter:
        return _interpreter(source, choices, gpu, model, matters, defaults)

    def run(interpreter: Interpreter) -> dict[str, Any]:
        arguments = _server_arguments(interpreter, defaults, gpu, given)
        _resolve_arguments(interpreter, arguments)
        _adjust_runner(interpreter, arguments)
        asked = [name for name in defaults if name in matters.targets]
        return {name: interpreter.attribute(arguments, name, Place(_ARGS, 0)) for name in asked}

    return explore(make, run)


def _server_arguments(
    interpreter: Interpreter, defaults: Mapping[str, Any], gpu: GpuFacts, given: Mapping[str, Any]
) -> Object:
    module = interpreter.names.file(_ARGS)
    klass = module.lookup("ServerArgs") if module else MISSING
    arguments = Object("server_args", klass=klass if isinstance(klass, Class) else None, complete=True)
    arguments.missing = lambda name: defaults.get(name, MISSING)
    arguments.attributes["model_path"] = "model"
    if gpu.vendor == "cpu":
        arguments.attributes["device"] = "cpu"
    arguments.attributes.update(given)
    return arguments


def _resolve_arguments(interpreter: Interpreter, arguments: Object) -> None:
    pipeline = interpreter.names.file(_PIPELINE)
    step = pipeline.lookup("run_resolution_pipeline") if pipeline else MISSING
    if step is not MISSING:
        interpreter.call(step, [arguments], {}, Place(_PIPELINE, 0))
    elif arguments.klass is not None:
        start = interpreter.attribute(arguments, "__post_init__", Place(_ARGS, 0))
        interpreter.call(start, [], {}, Place(_ARGS, 0))


def _adjust_runner(interpreter: Interpreter, arguments: Object) -> None:
    """Releases up to about 0.5.3 chose the attention backend in the model runner, after the arguments."""
    module = interpreter.names.file(_RUNNER)
    klass = module.lookup("ModelRunner") if module else MISSING
    if not isinstance(klass, Class):
        return
    runner = Object("model_runner", klass=klass)
    at = Place(_RUNNER, 0)
    adjust = interpreter.find_attribute(runner, "model_specific_adjustment", at)
    if not (isinstance(adjust, Bound) and interpreter.is_relevant(adjust.function)):
        return
    config = _model_config(interpreter, arguments)
    runner.attributes.update(server_args=arguments, model_config=config)
    known = {n: interpreter.find_attribute(arguments, n, at) for n in ("device", "tp_size", "dp_size", "page_size")}
    runner.attributes.update({name: value for name, value in known.items() if value is not MISSING})
    kind = interpreter.attribute(config, "attention_arch", at)
    runner.attributes["use_mla_backend"] = kind if isinstance(kind, Unknown) else getattr(kind, "name", "") == "MLA"
    speculation = interpreter.names.class_at("sglang.srt.speculative.spec_info.SpeculativeAlgorithm")
    runner.attributes["spec_algorithm"] = interpreter.call(
        interpreter.attribute(speculation, "from_string", at),
        [arguments.attributes.get("speculative_algorithm")],
        {},
        at,
    )
    interpreter.call(adjust, [], {}, at)


def _model_config(interpreter: Interpreter, arguments: Object) -> Any:
    klass = interpreter.names.class_at("sglang.srt.configs.model_config.ModelConfig")
    at = Place("sglang/srt/configs/model_config.py", 0)
    if isinstance(klass, Unknown):
        return klass
    return interpreter.call(interpreter.attribute(klass, "from_server_args", at), [arguments], {}, at)


def _interpreter(
    source: Source,
    choices: Choices,
    gpu: GpuFacts,
    model: ModelFacts | None,
    matters: Relevance,
    defaults: Mapping[str, Any],
) -> Interpreter:
    natives: dict[str, Any] = {}
    outside = machine.externals(gpu)
    outside["current_platform.is_out_of_tree()"] = False
    if gpu.vendor == "cpu":
        outside["os.environ"]["SGLANG_USE_CPU_ENGINE"] = "1"
    outside["msgspec.structs.fields"] = outside["dataclasses.fields"] = Native(
        "fields", lambda *_: [Object("field", {"name": name, "default": value}) for name, value in defaults.items()]
    )
    interpreter = Interpreter(source, matters, natives, outside, choices)
    natives.update(machine.builtins(interpreter))
    natives.update(_mechanism(interpreter))
    natives.update(_known(gpu, model))
    return interpreter


def _known(gpu: GpuFacts, model: ModelFacts | None) -> dict[str, Any]:
    """Functions that ask the machine or the model's files."""
    facts: dict[str, Any] = {
        "get_device": "cpu" if gpu.vendor == "cpu" else "cuda",
        "get_device_memory_capacity": Unknown("the GPU's memory"),
        "parse_connector_type": "",  # weights come from a folder or the hub
    }
    if gpu.capability:
        facts["get_device_sm"] = gpu.capability[0] * 10 + gpu.capability[1]
    if model is not None:
        config = config_object("config.json", model.config)
        facts["get_config"] = config
        facts["get_hf_text_config"] = config.attributes.get("text_config", config)
    return {name: _answer(name, value) for name, value in facts.items()}


def _answer(name: str, value: Any) -> Native:
    return Native(name, lambda *_, **__: value)


def _mechanism(interpreter: Interpreter) -> dict[str, Any]:
    """How resolution code reads and writes the arguments: views are the arguments, declarations are writes."""

    def apply(arguments: Any, declared: Any) -> None:
        if isinstance(arguments, Object) and isinstance(declared, dict):
            for name, value in declared.items():
                interpreter.write(arguments, str(name), value, interpreter.at)

    def run_hook(step: Any, arguments: Any, *_: Any) -> None:
        interpreter.call(step, [arguments], {}, Place(_PIPELINE, 0))

    def run_pass(arguments: Any, step: Any, *_: Any) -> None:
        apply(arguments, interpreter.call(step, [arguments], {}, Place(_PIPELINE, 0)))

    def collect(architecture: Any, arguments: Any, config: Any) -> list[Any]:
        for declared in _model_overrides(interpreter, architecture, arguments, config):
            apply(arguments, declared)
        return []

    table: dict[str, Callable[..., Any]] = {
        "resolved_view": lambda arguments, *_, **__: arguments,
        "resolving_view": lambda arguments, *_, **__: arguments,
        "record_of": lambda arguments, *_, **__: arguments,
        "run_hook": run_hook,
        "run_post_process_pass": run_pass,
        "declare_resolution": lambda arguments, _source, **declared: apply(arguments, declared),
        "validate_declarations": lambda *_, **__: None,
        _COLLECT: collect,
    }
    return {name: Native(name, call) for name, call in table.items()}


def _model_overrides(interpreter: Interpreter, architecture: Any, arguments: Any, config: Any) -> list[Any]:
    """What every provider registered for this architecture declares, constants first."""
    if not isinstance(architecture, str):
        return []
    declared = []
    base = "sglang/srt/arg_groups"
    files = [f"{base}/model_override_base.py", *interpreter.names.source.under(f"{base}/model_overrides")]
    for path in [*files, f"{base}/overrides.py"]:
        module = interpreter.names.file(path)
        if module is None:
            continue
        table = module.lookup("MODEL_OVERRIDES")
        if isinstance(table, dict) and architecture in table and "MODEL_OVERRIDES" in module.bindings:
            declared.append(table[architecture])
        for node in module.tree.body:
            if isinstance(node, ast.FunctionDef) and _registered(interpreter, module, node, architecture):
                provider = Function(module, node, node.name)
                declared.append(interpreter.call(provider, [arguments, config], {}, Place(path, node.lineno)))
    return declared


def _registered(interpreter: Interpreter, module: Module, node: ast.FunctionDef, architecture: str) -> bool:
    for mark in node.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func).rsplit(".", 1)[-1] in _REGISTRARS:
            values = interpreter.names.constant(module, ast.copy_location(ast.List(mark.args, ast.Load()), mark))
            for value in values if isinstance(values, list) else []:
                if isinstance(value, Function):
                    if interpreter.call(value, [architecture], {}, Place(module.path, node.lineno)) is True:
                        return True
                elif value == architecture:
                    return True
    return False
