"""What a running vLLM resolved to, out of its log, ``/server_info`` (development mode), ``/version`` and its metrics.

The log comes first for what a worker decides (attention backend, custom all-reduce): ``/server_info`` has the request.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pytest_llmperf.engines.base import Counters, EffectiveConfig, Mismatch, Probe
from pytest_llmperf.engines.effective_reader import Reading, number, search
from pytest_llmperf.engines.metrics_text import Metrics
from pytest_llmperf.server_config import ServerConfig

INFO = "/server_info?config_format=json"
_CHOSEN = re.compile(
    r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+) (?:attention )?backend(?:\.| out of potential| \()"
)
#: Said of a backend that was asked for, never of one that vLLM considered by itself.
REFUSED = re.compile(r"Cannot use (?:AttentionBackendEnum\.)?([A-Z0-9_]+) backend on (\w+)")
_WARM = re.compile(r"Directly load (?:AOT compilation|the compiled graph|the \d+-th graph)")
_COLD = re.compile(
    r"Compiling a graph for|Compiling model again|Cache the graph of compile range|saved AOT compiled function"
)
#: Said where no graph is captured, whatever the configuration asks for; and where one was.
_EAGER = re.compile(r"Enforce eager set|Cudagraph is disabled|setting cudagraph_mode=NONE|Skipping CUDA graph capture")
_CAPTURED = re.compile(r"Graph capturing finished")
#: (section, name) of the resolved configuration that explain a speed and have no field of their own.
_NOTED = (
    ("cache_config", "block_size"),
    ("compilation_config", "cudagraph_mode"),
    ("scheduler_config", "async_scheduling"),
    ("scheduler_config", "max_num_batched_tokens"),
    ("scheduler_config", "stream_interval"),
    ("device_config", "device"),
)
#: ``Using FlashInfer CUTLASS Unquantized MoE backend``: the name, and a word for the weights that it is for.
_MOE = r"Using '?(\w+(?: \w+)??)'?(?: \w+)? MoE (?:LoRA )?backend"
_ALL_REDUCE = re.compile(r"Using \[([^\]\n]*)\] all-reduce backends \(in dispatch order\) for group 'tp:")
#: What was asked for stands in the configuration, what came of it in the log.
_IN_THE_LOG = ("moe_backend",)


def effective(probe: Probe, declared: Collection[str]) -> EffectiveConfig:
    """The typed record; fields that no source tells stay unknown. Flags that were ``declared`` are noted too."""
    r = Reading()
    _read_workers(r, probe.log)
    version = probe.json("/version")
    if isinstance(version, dict):
        r.take("/version", engine_version=version.get("version"))
        r.version("vllm", version.get("version"))
    info = probe.json(INFO)
    if isinstance(info, dict):
        resolved, system = info.get("vllm_config"), info.get("system_env")
        if isinstance(resolved, dict):
            _read_resolved(r, resolved, declared)
        elif isinstance(resolved, str):
            _read_text(r, "/server_info", resolved)
        if isinstance(system, dict):
            _read_system(r, system)
    _read_text(r, "log", probe.log)
    return r.result()


def _read_workers(r: Reading, log: str) -> None:
    """What workers decided: nothing but the log tells it."""
    chosen, reduces = _CHOSEN.search(log), _ALL_REDUCE.search(log)
    all_reduce = re.findall(r"\w+", reduces[1]) if reduces else None
    off = re.search(r"Custom allreduce is disabled", log, re.IGNORECASE)
    compiled, loaded = _COLD.search(log), _WARM.search(log)
    r.take(
        "log",
        attention_backend=chosen[1] if chosen else None,
        custom_all_reduce=None if all_reduce is None else any(name.endswith("CUSTOM") for name in all_reduce),
        kv_tokens=number(r"KV cache size: ([\d,]+) tokens", log),
        cuda_graph=False if _EAGER.search(log) and not _CAPTURED.search(log) else None,
        cache_state="cold" if compiled else "warm" if loaded else None,
    )
    r.take("log", custom_all_reduce=False if off else None)
    r.note("all_reduce_backends", ", ".join(all_reduce) if all_reduce else None)
    r.note("moe_backend", search(_MOE, log))
    r.note("sampling_backend", _sampler(log))
    r.note("kv_cache_dtype", search(r"Using (\w+) (?:data type to store kv cache|KV cache format for)", log))
    if refused := REFUSED.search(log):
        r.note("attention_backend_refused", refused[1])
    r.note("flash_attention", search(r"Using FlashAttention version (\d+)", log))
    r.version("nccl", search(r"vLLM is using nccl==([\d.]+)", log))
    r.version("flashinfer", search(r"flashinfer(?:-python)?[ =v]+(\d+\.\d+\S*)", log))
    r.nccl(log)


def _sampler(log: str) -> str | None:
    if "Using FlashInfer for top-p & top-k sampling" in log:
        return "flashinfer"
    return "native" if re.search(r"FlashInfer top-p/top-k sampling (?:disabled|unavailable)", log) else None


def _read_resolved(r: Reading, resolved: Mapping[str, Any], declared: Collection[str]) -> None:
    sections = {k: v for k, v in resolved.items() if isinstance(v, dict)}

    def of(section: str, name: str) -> Any:
        return sections.get(section, {}).get(name)

    r.take(
        "/server_info",
        attention_backend=_for_cpu(of("attention_config", "backend")),
        model=of("model_config", "model"),
        dtype=_dtype(of("model_config", "dtype")),
        quantization=of("model_config", "quantization"),
        cuda_graph=_graphs(of("compilation_config", "cudagraph_mode"), of("model_config", "enforce_eager")),
        custom_all_reduce=_negated(of("parallel_config", "disable_custom_all_reduce")),
        prefix_cache=of("cache_config", "enable_prefix_caching"),
        max_running_requests=of("scheduler_config", "max_num_seqs"),
        context_length=of("model_config", "max_model_len"),
        kv_tokens=of("cache_config", "kv_cache_size_tokens"),
        speculative=of("speculative_config", "method"),
        tp=of("parallel_config", "tensor_parallel_size"),
    )
    for section, name in _NOTED:
        r.note(name, of(section, name))
    r.note("kv_cache_dtype", of("cache_config", "cache_dtype"))
    for name in declared:
        if name in _IN_THE_LOG:
            continue
        r.note(name, next((v[name] for v in sections.values() if v.get(name) is not None), None))


def _for_cpu(asked_for: Any) -> str | None:
    """The backend that was asked for is shown here, taken or not; this one cannot be refused where it is known."""
    return "CPU_ATTN" if ".cpu_attn." in str(asked_for) else None


def _read_text(r: Reading, source: str, text: str) -> None:
    """The one-line form of the configuration, which the engine also writes to its log (vLLM before the JSON form)."""
    r.take(
        source,
        engine_version=search(r"Initializing a V1 LLM engine \(v([^)\s]+)\)", text),
        model=search(r"with config: model='([^']+)'", text) or search(r"\Amodel='([^']+)'", text),
        dtype=search(r"\bdtype=torch\.(\w+)", text),
        quantization=_none(search(r"\bquantization=([\w-]+),", text)),
        context_length=number(r"max_seq_len=(\d+)", text),
        cuda_graph=_text_graphs(text),
        custom_all_reduce=_negated(_boolean(search(r"disable_custom_all_reduce=(True|False)", text))),
        prefix_cache=_boolean(search(r"enable_prefix_caching=(True|False)", text)),
        max_running_requests=number(r"'max_num_seqs': (\d+)", text),
        tp=number(r"tensor_parallel_size=(\d+)", text),
        speculative=search(r"speculative_config=SpeculativeConfig\(method='([^']+)'", text),
    )
    r.note("kv_cache_dtype", search(r"\bkv_cache_dtype=(\w+)", text))


def _read_system(r: Reading, system: Mapping[str, Any]) -> None:
    r.version("torch", system.get("torch_version"))
    r.version("cuda", _none(system.get("cuda_runtime_version")))
    r.version("driver", _none(system.get("nvidia_driver_version")))
    packages = str(system.get("pip_packages") or "")
    for name in ("flashinfer-python", "flash-attn", "triton", "transformers"):
        r.version(name.removesuffix("-python"), search(rf"(?m)^{name}==(\S+)", packages))
    r.version("nccl", search(r"(?m)^nvidia-nccl-cu\d+==(\S+)", packages))


def _graphs(mode: Any, eager: Any) -> bool | None:
    if eager:
        return False
    return None if mode is None else str(mode) not in ("0", "NONE", "CUDAGraphMode.NONE")


def _text_graphs(text: str) -> bool | None:
    mode = search(r"'cudagraph_mode': <CUDAGraphMode\.(\w+)", text)
    return _graphs(mode, _boolean(search(r"enforce_eager=(True|False)", text)))


def _dtype(value: Any) -> str | None:
    return None if value in (None, "auto") else str(value).removeprefix("torch.")


def _boolean(text: str | None) -> bool | None:
    return None if text is None else text == "True"


def _negated(value: object) -> bool | None:
    return None if value is None else not value


def _none(text: Any) -> str | None:
    return None if text in (None, "None", "null", "N/A", "") else str(text)


def mismatches(config: ServerConfig, effective: EffectiveConfig, found: list[Mismatch]) -> Iterator[Mismatch]:
    """``found`` by the comparison of like-named fields, less what only seems to differ, and what it cannot see."""
    seen = {m.field for m in found}
    # the log has names of its own: cutlass is VLLM_CUTLASS, deep_gemm is BATCHED_DEEPGEMM
    yield from (m for m in found if m.field != "moe_backend" or _letters(m.declared) not in _letters(m.effective))
    refused = effective.other.get("attention_backend_refused")
    if refused and config.attention_backend and "attention_backend" not in seen:
        yield Mismatch("attention_backend", refused, effective.attention_backend or "another", "refused in the log")


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


#: SGLang's names for what vLLM has too, so that one declaration serves both.
_BACKEND_NAMES = {"TRITON": "TRITON_ATTN", "TORCH_NATIVE": "TORCH_SDPA"}


def backend(name: str) -> str:
    """vLLM's name of an attention backend."""
    upper = name.upper().replace("-", "_")
    return _BACKEND_NAMES.get(upper, upper)


def counters(text: str) -> Counters:
    """Names of vLLM 0.6 to 0.33."""
    m = Metrics(text)
    return Counters(
        generation_tokens=m.total("vllm:generation_tokens_total"),
        prompt_tokens=m.total("vllm:prompt_tokens_total"),
        cached_tokens=m.total("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        preemptions=m.total("vllm:num_preemptions_total"),
        running=m.total("vllm:num_requests_running"),
        waiting=m.total("vllm:num_requests_waiting"),
        drafts=m.total("vllm:spec_decode_num_drafts_total"),
        draft_tokens=m.total("vllm:spec_decode_num_draft_tokens_total"),
        accepted_tokens=m.total("vllm:spec_decode_num_accepted_tokens_total"),
    )
