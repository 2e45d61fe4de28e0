"""vLLM: command line, request traits, log signs. What a running server resolved to is read in ``vllm_read``."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pytest_llmperf.engines import command_flags
from pytest_llmperf.engines.base import (
    QUANTIZATIONS,
    Counters,
    EffectiveConfig,
    Engine,
    Mismatch,
    Probe,
    RequestTraits,
    Spelling,
    Starting,
    Translation,
    off,
)
from pytest_llmperf.engines.speculation import LOOKUP, Speculation
from pytest_llmperf.engines.vllm import vllm_read
from pytest_llmperf.errors import did_you_mean
from pytest_llmperf.server_config import ServerConfig

#: Of vLLM 0.26-0.33; an unknown name may be newer, so it is only hinted at.
ATTENTION_BACKENDS = frozenset(
    {
        *("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "TORCH_SDPA", "CPU_ATTN", "CPU_MLA", "AMX_MLA"),
        *("FLASH_ATTN_MLA", "FLASHINFER_MLA", "TRITON_MLA", "CUTLASS_MLA", "FLASHMLA", "FLASHMLA_SPARSE"),
        *("TOKENSPEED_MLA", "FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM120", "FLASHINFER_MLA_SPARSE_SM90"),
        *("FLASH_ATTN_MLA_SPARSE", "FLASH_ATTN_MLA_SPARSE_FA4", "FLASHMLA_SPARSE_DSV4", "FLASHMLA_SPARSE_DSV41"),
        *("FLASHINFER_MLA_SPARSE_DSV4", "FLASHINFER_MLA_SPARSE_DSV41", "FLASHMLA_MEGA_ATTN_DSV41", "XPU_MLA_SPARSE"),
        *("FLASH_ATTN_DIFFKV", "TRITON_ATTN_DIFFKV", "HPC_ATTN", "TREE_ATTN", "XFORMERS", "CUSTOM", "TURBOQUANT"),
        *("B12X", "CUTLASS_MSA", "TRITON_MSA", "MINIMAX_M3_SPARSE", "STEP5_DSA", "TRITON_FLASHINFER", "ULTRAQUANT"),
        *("TRITON_FLASH_ATTN", "ROCM_ATTN", "ROCM_AITER_FA", "ROCM_AITER_MLA", "ROCM_AITER_TRITON_MLA"),
        *("ROCM_AITER_UNIFIED_ATTN", "ROCM_AITER_MLA_SPARSE", "ROCM_FLASHMLA_SPARSE_DSV4", "ROCM_OCTAVE"),
        *("ROCM_FLASHMLA_SPARSE_DSV41", "ROCM_SEGMENTED_ATTN"),
    }
)
_METHODS = {"eagle": "eagle", "eagle3": "eagle3", "mtp": "mtp", "draft_model": "draft_model", "ngram": "ngram"}
#: The short names of its command line (0.33.0). ``-O`` is none: it meant other things in other releases.
_ALIASES = {
    **{"-tp": "tensor_parallel_size", "tp": "tensor_parallel_size", "-pp": "pipeline_parallel_size"},
    **{"pp": "pipeline_parallel_size", "-dp": "data_parallel_size", "dp": "data_parallel_size"},
    **{"-dcp": "decode_context_parallel_size", "-pcp": "prefill_context_parallel_size"},
    **{"-dpn": "data_parallel_rank", "-dpr": "data_parallel_start_rank", "-dpl": "data_parallel_size_local"},
    **{"-dpa": "data_parallel_address", "-dpp": "data_parallel_rpc_port", "-dpb": "data_parallel_backend"},
    **{"-dph": "data_parallel_hybrid_lb", "-dpe": "data_parallel_external_lb"},
    **{"-dpm": "data_parallel_multi_port_external_lb", "-ep": "enable_expert_parallel"},
    **{"-n": "nnodes", "-r": "node_rank", "-q": "quantization", "-sc": "speculative_config"},
    **{"-cc": "compilation_config", "-ac": "attention_config", "-dc": "diffusion_config"},
    **{"-asc": "api_server_count", "tensor_parallel": "tensor_parallel_size"},
    **{"pipeline_parallel": "pipeline_parallel_size"},
}
#: It reads them behind these flags: k is 1000, K is 1024.
_SUFFIXES = {
    **{name: 1000**power for power, name in enumerate("kmgt", 1)},
    **{name: 1024**power for power, name in enumerate("KMGT", 1)},
}
_SUFFIXED = frozenset(
    {
        *("max_model_len", "max_num_batched_tokens", "max_num_scheduled_tokens", "max_num_queued_tokens"),
        *("kv_cache_memory_bytes", "safetensors_prefetch_block_size"),
    }
)


class VLLM(Engine):
    name = "vllm"
    launch_spread = 0.015  # on H200s launches differed by 0.65 to 2.0 % (3B), 0.9 % (8B)
    program = ("vllm", "serve")
    spelling = Spelling(negates=True, aliases=_ALIASES, dotted=True, suffixes=_SUFFIXES, suffixed=_SUFFIXED)
    becomes: ClassVar[Mapping[str, Collection[str]]] = {**QUANTIZATIONS, "fp8": ("fp8_e4m3", "fp8_ds_mla")}
    choose_gpus = ("device_ids",)
    flags: ClassVar[Mapping[str, Translation]] = {
        "tokenizer": "tokenizer",
        "tp": "tensor_parallel_size",
        "dp": "data_parallel_size",
        "pp": "pipeline_parallel_size",
        "dtype": "dtype",
        "quantization": "quantization",
        "load_format": "load_format",
        "attention_backend": lambda c: {"attention_backend": vllm_read.backend(c.attention_backend or "")},
        "cuda_graph": off("cuda_graph", "enforce_eager"),
        "custom_all_reduce": off("custom_all_reduce", "disable_custom_all_reduce"),
        "prefix_cache": "enable_prefix_caching",
        "max_running_requests": "max_num_seqs",
        "context_length": "max_model_len",
        "speculative": lambda c: {"speculative_config": _speculation(c.speculative or {})},
        "seed": "seed",
    }
    reserved: ClassVar[Mapping[str, Sequence[str]]] = {
        "model": ("model", "served_model_name"),
    }
    programs = (("-m", "vllm.entrypoints.openai.api_server"),)
    traits = RequestTraits(token_ids=True, tokenize_path="/tokenize", continuous_usage=True)
    progress_patterns = (
        (re.compile(r"Loading safetensors|Starting to load model|Loading model"), "loading weights"),
        (re.compile(r"Model loading took|Loading weights took"), "weights loaded"),
        (re.compile(r"Dynamo bytecode transform|Compiling a graph|torch\.compile|AOT compil"), "compiling kernels"),
        (re.compile(r"autotun", re.IGNORECASE), "autotuning kernels"),
        (re.compile(r"KV cache size|KV cache memory"), "allocating the KV cache"),
        (re.compile(r"Capturing CUDA graphs|Graph capturing"), "capturing graphs"),
        (re.compile(r"world_size=\d+ rank=\d+|vLLM is using nccl"), "joining ranks"),
    )
    crash_patterns = (
        (re.compile(r"ValueError: (Free memory on device[^\n]*)"), r"too little free GPU memory: \1"),
        (re.compile(r"ValueError: (To serve at least one request[^\n]{0,160})"), r"the KV cache is too small: \1"),
        (re.compile(r"ValueError: (Selected backend [^\n]{0,200})"), r"\1"),
        (re.compile(r"ValueError: (No valid attention backend[^\n]{0,200})"), r"\1"),
        (re.compile(r"Value error, ([^\n]{0,200})"), r"a wrong configuration: \1"),
        (vllm_read.REFUSED, r"vLLM cannot use attention backend \1 on \2, and would go on with another"),
    )
    fatal_patterns = (
        re.compile(r"EngineCore (?:failed to start|encountered a fatal error)"),
        vllm_read.REFUSED,  # a backend that was asked for: no need to wait for a server that will not do
    )

    def own_words(self, start: Starting) -> tuple[str, ...]:
        """`vllm serve` wants the model in first place, the module form by name."""
        return (start.model,) if start.program[-1] == "serve" else ("--model", start.model)

    def long_name(self, flag: str, value: Any) -> str:
        """``-O3`` is a level of optimization; with anything else ``-O`` has been the compilation config."""
        if flag == "-O":
            return "optimization_level" if str(value).isdecimal() else "compilation_config"
        return super().long_name(flag, value)

    def own_flags(self, start: Starting) -> Mapping[str, Any]:
        return {
            "served_model_name": self.model_name(start.config),
            "host": start.settings.bind,
            "port": start.endpoint.port,
            # not VLLM_API_KEY: vLLM keys its compile cache by its variables, so a new key makes every launch cold
            "api_key": start.endpoint.api_key,
            "enable_prompt_tokens_details": True,
        }

    def own_env(self, start: Starting) -> Mapping[str, str]:
        """On loopback alone the one that opens /server_info, and with it endpoints nobody else should reach."""
        return {"VLLM_SERVER_DEV_MODE": "1"} if _loopback(start.settings.bind) else {}

    def problems(self, config: ServerConfig) -> list[str]:
        found = super().problems(config)
        if config.speculative:
            found += Speculation.problems(
                self.name, config.speculative, _METHODS, unsupported=("topk", "num_steps"), needed=("num_tokens",)
            )
        backend = config.attention_backend
        if backend and vllm_read.backend(backend) not in ATTENTION_BACKENDS:
            hint = did_you_mean(vllm_read.backend(backend), ATTENTION_BACKENDS)
            found.append(
                f"vllm has no attention_backend={backend!r}{hint}; one that is newer than this plugin goes into "
                f"vllm={{'attention_backend': {backend!r}}}"
            )
        return found

    def ranks(self, config: ServerConfig) -> int:
        """A node of several leases its own share: its local replicas, or its part of the one that spans nodes."""
        given = self.given(config)
        local = 1 if "data_parallel_rank" in given or given.get("data_parallel_external_lb") else config.dp
        local = command_flags.count(given, "data_parallel_size_local", local)
        nodes = command_flags.count(given, "nnodes") or 1
        if local < config.dp:
            nodes = max(nodes * local // config.dp, 1)  # that one replica spans
        replica = config.tp * config.pp * (command_flags.count(given, "prefill_context_parallel_size") or 1)
        return -(-replica * local // nodes)

    def request_body(self, config: ServerConfig, output_tokens: int) -> dict[str, Any]:
        return {"ignore_eos": True, "min_tokens": output_tokens}

    def effective(self, config: ServerConfig, probe: Probe) -> EffectiveConfig:
        return vllm_read.effective(probe, self.given(config))

    def mismatches(self, config: ServerConfig, effective: EffectiveConfig) -> list[Mismatch]:
        found = super().mismatches(config, effective)
        return list(vllm_read.mismatches(self.wanted(config), effective, found))

    def wanted(self, config: ServerConfig) -> ServerConfig:
        wanted = super().wanted(config)
        named = wanted.attention_backend and vllm_read.backend(wanted.attention_backend)
        return replace(wanted, attention_backend=named)

    def counters(self, metrics: str) -> Counters:
        return vllm_read.counters(metrics)


def _speculation(mapping: Mapping[str, Any]) -> dict[str, Any]:
    spec = Speculation.of(mapping)
    out: dict[str, Any] = {"method": _METHODS[spec.method], "num_speculative_tokens": spec.num_tokens}
    if spec.model:
        out["model"] = spec.model
    if spec.method == "ngram":
        out["prompt_lookup_max"] = LOOKUP
    if spec.acceptance_length is not None:
        out |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": spec.acceptance_length}
    return out


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
