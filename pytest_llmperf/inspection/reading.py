"""Reading one engine release: choices, defaults, flags and forced variables, put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.inspection import environment, facts, sglang_source, vllm_source
from pytest_llmperf.inspection.declared_flags import Flag, for_speed
from pytest_llmperf.inspection.facts import GpuFacts, ModelFacts
from pytest_llmperf.inspection.findings import Choice, Default, Inspection
from pytest_llmperf.inspection.source import Source

_T = TypeVar("_T")
ENGINES = (sglang_source.PACKAGE, vllm_source.PACKAGE)
#: Kinds of backend a reader asks about; one without a choice in the source is said to have none.
_KINDS = ("attention", "sampling", "moe", "mamba", "lora", "deterministic")
#: What else SGLang settles by model and GPU; worked out when both are named.
_SETTLED = (
    *("sampling_backend", "moe_runner_backend", "mamba_backend", "linear_attn_backend", "page_size"),
    *("max_running_requests", "disable_overlap_schedule", "kv_cache_dtype"),
)


def inspect(
    source: Source, model: ModelFacts | None = None, gpu: str | None = None, given: Mapping[str, str] | None = None
) -> Inspection:
    """Read ``source`` (``source.open_source``). Without a model or a GPU the usual ones are shown side by side.

    ``given`` are launch flags by field name (``speculative_algorithm``: ``EAGLE3``). Raises ``ConfigError`` for an
    engine that cannot be read this way, a GPU that is not known, or a flag that this release does not have.
    """
    if source.package not in ENGINES:
        raise ConfigError(f"no reader for {source.package}; inspect reads {' and '.join(ENGINES)}")
    models = (model,) if model else facts.usual_models()
    gpus = [facts.gpu(g) for g in ((gpu,) if gpu else facts.USUAL_GPUS)]
    of_package = sglang_source.launch_flags if source.package == sglang_source.PACKAGE else vllm_source.launch_flags
    flags = _once(source, "flags", of_package)
    wanted = _values(flags, given or {}, source)
    asked = _SETTLED if model and gpu else ()
    read = _sglang if source.package == sglang_source.PACKAGE else _vllm
    choices, defaults, silent = read(source, flags, models, gpus, wanted, asked)
    return Inspection(
        engine=source.package,
        version=source.version,
        origin=source.origin,
        choices=choices,
        defaults=defaults,
        flags=tuple(for_speed(flags)),
        environment=tuple(_once(source, "environment", environment.forced)),
        assumed=facts.ASSUMED,
        given=dict(given or {}),
        silent=(*silent, *_unanswered(choices)),
    )


def _once(source: Source, what: str, read: Callable[[Source], list[_T]]) -> list[_T]:
    """What depends on the source alone is read once, however often it is inspected."""
    if (what, "") not in source.memory:
        source.memory[what, ""] = read(source)
    found: list[_T] = source.memory[what, ""]
    return found


def _sglang(
    source: Source,
    flags: list[Flag],
    models: Sequence[ModelFacts],
    gpus: Sequence[GpuFacts],
    given: Mapping[str, Any],
    asked: Sequence[str],
) -> tuple[tuple[Choice, ...], tuple[Default, ...], list[str]]:
    declared = {f.field for f in flags}
    choices = [*_flag_choices(flags), *_constant_choices(source, flags)]
    groups = [tuple(n for n in sglang_source.ATTENTION if n in declared), *((n,) for n in asked if n in declared)]
    defaults = []
    for group in filter(None, groups):
        matters = sglang_source.relevance(source, flags, group)
        defaults += [
            Default(gpu.name, model.label, group, sglang_source.resolve(source, flags, matters, model, gpu, given))
            for model in models
            for gpu in gpus
        ]
    silent = [] if groups[0] else ["this release has no --attention-backend flag where one is looked for"]
    return tuple(choices), tuple(defaults), silent


def _vllm(
    source: Source,
    flags: list[Flag],
    models: Sequence[ModelFacts],
    gpus: Sequence[GpuFacts],
    given: Mapping[str, Any],
    asked: Sequence[str],
) -> tuple[tuple[Choice, ...], tuple[Default, ...], list[str]]:
    known = vllm_source.registry(source)
    choices = _flag_choices(flags)
    silent = [
        "what vLLM settles besides the attention backend is decided while it runs: see --running",
        "vLLM may change the KV-cache type for some models before it selects a backend; try --set kv_cache_dtype=...",
    ]
    if known is None:
        return tuple(choices), (), [*silent, "no registry of attention backends was found in this release"]
    flag = next((f.name for f in flags if f.field == "attention_backend"), "VLLM_ATTENTION_BACKEND")
    choices = [c for c in choices if c.flag != flag]
    choices.insert(0, Choice("attention backend", flag, "", known.names, known.at))
    defaults = [
        Default(gpu.name, model.label, ("attention_backend",), vllm_source.resolve(source, model, gpu, known, given))
        for model in models
        for gpu in gpus
    ]
    return tuple(choices), tuple(defaults), silent


def _flag_choices(flags: list[Flag]) -> list[Choice]:
    """Every flag that picks a backend out of a list, attention first."""
    found = [
        Choice(f.field.replace("_", " "), f.name, f.default, f.choices, f.at)
        for f in for_speed(flags)
        if "backend" in f.field and f.choices
    ]
    return sorted(found, key=lambda c: (c.kind != "attention backend", "attention" not in c.kind, c.kind))


def _constant_choices(source: Source, flags: list[Flag]) -> list[Choice]:
    """Lists of backends that no flag offers as they are (those that deterministic inference may use)."""
    offered = {f.choices for f in flags}
    return [
        Choice(name.removesuffix("_CHOICES").replace("_", " ").lower(), "", "", values, at)
        for name, (values, at) in sglang_source.constants(source).items()
        if values not in offered
    ]


def _unanswered(choices: Sequence[Choice]) -> list[str]:
    return [
        f"no choice of {kind} backend was found in this source"
        for kind in _KINDS
        if not any(kind in c.kind for c in choices)
    ]


def _values(flags: list[Flag], given: Mapping[str, str], source: Source) -> dict[str, Any]:
    """Flags as the engine would parse them: typed by their default, checked against their choices."""
    known = {f.field: f for f in flags}
    out: dict[str, Any] = {}
    for name, text in given.items():
        flag = known.get(name.lstrip("-").replace("-", "_"))
        if flag is None:
            raise ConfigError(f"--set {name}: {source.package} {source.version or ''} has no such launch flag".rstrip())
        if flag.choices and text not in flag.choices:
            raise ConfigError(f"--set {name}={text}: choose from {', '.join(flag.choices)}")
        out[flag.field] = _typed(text, flag.value)
    return out


def _typed(text: str, like: Any) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return type(like)(text) if isinstance(like, (int, float)) and not isinstance(like, bool) else int(text)
    except ValueError:
        return None if text == "None" else text
