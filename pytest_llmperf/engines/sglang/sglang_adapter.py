"""SGLang: command line, request traits, log signs. What a running server resolved to is read in ``sglang_read``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from pytest_llmperf.engines.sglang import sglang_read
from pytest_llmperf.engines.speculation import Speculation
from pytest_llmperf.errors import did_you_mean
from pytest_llmperf.server_config import ServerConfig

#: Of SGLang 0.5.17-0.5.23 and the releases before them; an unknown name may be newer, so it is only hinted at.
ATTENTION_BACKENDS = frozenset(
    {
        *("triton", "torch_native", "flex_attention", "dsa", "nsa", "qsa", "dsv4", "fa3", "fa4", "flashinfer"),
        *("flashmla", "cutlass_mla", "trtllm_mla", "cutedsl_mla", "tokenspeed_mla", "trtllm_mha"),
        *("compressed", "hpc_ops", "llada2_cfg_flashinfer", "minicpm_flashattn", "minicpm_flashinfer"),
        *("aiter", "wave", "intel_amx", "ascend", "intel_xpu"),
    }
)
#: Its command line's further names (0.5.23), and older ones.
_ALIASES = {
    **{"tp": "tp_size", "tensor_parallel_size": "tp_size", "dp": "dp_size", "data_parallel_size": "dp_size"},
    **{"pp": "pp_size", "pipeline_parallel_size": "pp_size", "ep": "ep_size", "expert_parallel_size": "ep_size"},
    **{"attention_data_parallel_size": "attn_dp_size", "attention_context_parallel_size": "attn_cp_size"},
    **{"decode_context_parallel_size": "dcp_size", "moe_data_parallel_size": "moe_dp_size"},
    **{"model": "model_path", "speculative_draft_model": "speculative_draft_model_path"},
    **{"enable_hicache": "enable_hierarchical_cache", "nccl_init_addr": "dist_init_addr"},
    # what its command line takes for a name that begins so, as its reports have it
    **{"speculative_algo": "speculative_algorithm", "speculative_draft": "speculative_draft_model_path"},
    **{"mem_fraction": "mem_fraction_static"},
}
#: 0.5.23 reads them behind these flags: k is 1000, Ki is 1024, K is none.
_SUFFIXES = {
    **{name: 1000**power for power, name in enumerate("kMGT", 1)},
    **{f"{name}i": 1024**power for power, name in enumerate("KMGT", 1)},
}
_SUFFIXED = frozenset({"context_length", "max_total_tokens", "max_prefill_tokens", "cuda_graph_prefill_max_context"})
_ALGORITHMS = {"eagle": "EAGLE", "eagle3": "EAGLE3", "mtp": "NEXTN", "draft_model": "STANDALONE", "ngram": "NGRAM"}
#: It would wait a minute for core files that nobody asked for, with the dead scheduler's GPU memory in hand.
_CRASH_AT_ONCE = {"SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS": "0"}


def _speculation_flags(config: ServerConfig) -> dict[str, Any]:
    """A chain of N drafted tokens is N steps of one token each; SGLang counts the verified one too."""
    spec = Speculation.of(config.speculative or {})
    topk, steps, tokens = spec.topk, spec.num_steps, spec.num_tokens
    if spec.method == "ngram":
        tokens = tokens and tokens + 1
    elif steps or tokens:
        topk = topk or 1
        if topk == 1:
            steps = steps or tokens
            tokens = steps and steps + 1
    return {
        "speculative_algorithm": _ALGORITHMS[spec.method],
        "speculative_draft_model_path": spec.model,
        "speculative_num_steps": steps,
        "speculative_eagle_topk": topk,
        "speculative_num_draft_tokens": tokens,
    }


def _graphs_off(config: ServerConfig) -> dict[str, Any]:
    return {} if config.cuda_graph else {f"cuda_graph_backend_{phase}": "disabled" for phase in ("decode", "prefill")}


class SGLang(Engine):
    name = "sglang"
    launch_spread = 0.006  # on H200s launches differed by 0.07 to 0.26 % (3B)
    program = ("python", "-m", "sglang.launch_server")
    spelling = Spelling(aliases=_ALIASES, suffixes=_SUFFIXES, suffixed=_SUFFIXED)
    becomes: ClassVar[Mapping[str, Collection[str]]] = {
        **QUANTIZATIONS,
        "nextn": ("eagle", "frozen_kv_mtp"),
        "eagle": ("frozen_kv_mtp",),
        "tokenspeed_mla": ("cutedsl_mla",),
        "compressed": ("dsv4",),
        "nsa": ("dsa",),
        "flashinfer_trtllm": ("flashinfer_trtllm_routed",),
        "mxfp8": ("fp8_e4m3",),  # a KV cache: its log has torch's type alone
    }
    choose_gpus = ("base_gpu_id", "gpu_id_step")
    flags: ClassVar[Mapping[str, Translation]] = {
        "tokenizer": "tokenizer_path",
        "tp": "tp_size",
        "dp": "dp_size",
        "pp": "pp_size",
        "dtype": "dtype",
        "quantization": "quantization",
        "load_format": "load_format",
        "attention_backend": "attention_backend",
        "cuda_graph": _graphs_off,
        "custom_all_reduce": off("custom_all_reduce", "disable_custom_all_reduce"),
        "prefix_cache": off("prefix_cache", "disable_radix_cache"),
        "max_running_requests": "max_running_requests",
        "context_length": "context_length",
        "speculative": _speculation_flags,
        "seed": "random_seed",
    }
    reserved: ClassVar[Mapping[str, Sequence[str]]] = {
        "model": ("model_path", "served_model_name"),
    }
    programs = (("sglang", "serve"),)
    traits = RequestTraits(token_ids=True, tokenize_path="/tokenize", continuous_usage=True)
    progress_patterns = (
        (re.compile(r"Load weight begin|Loading safetensors|Multi-thread loading"), "loading weights"),
        (re.compile(r"Load weight end"), "weights loaded"),
        (re.compile(r"KV Cache is allocated|Memory pool end"), "allocating the KV cache"),
        (re.compile(r"Capturing batches|Capture .*graph begin"), "capturing graphs"),
        (re.compile(r"Init torch distributed|sglang is using nccl"), "joining ranks"),
        (re.compile(r"Application startup complete|POST /generate"), "warming up"),
    )
    crash_patterns = (
        (re.compile(r"error: argument --attention-backend: invalid choice: '([^']+)'"), r"no attention backend \1"),
        (
            re.compile(r"(\w+) with minimum required version (\S+) is not installed"),
            r"its environment lacks \1 \2 or newer",
        ),
        (re.compile(r"(?:AssertionError|ValueError): ([^\n]*\b(?:backend|GPUs|SM\d+)\b[^\n]*)", re.IGNORECASE), r"\1"),
    )
    # SGLang then dumps stacks and waits for core files, more than a minute, before it exits
    fatal_patterns = (re.compile(r"SIGQUIT received\.|Received sigquit from a child process"),)

    def own_flags(self, start: Starting) -> Mapping[str, Any]:
        return {
            "model_path": start.model,
            "served_model_name": self.model_name(start.config),
            "host": start.settings.bind,
            "port": start.endpoint.port,
            "api_key": start.endpoint.api_key,  # SGLang reads it from nowhere else, so that `ps` shows it
            "enable_metrics": True,
            "enable_cache_report": True,
        }

    def own_env(self, start: Starting) -> Mapping[str, str]:
        return {**_CRASH_AT_ONCE, **_speculation_env(start.config)}

    def problems(self, config: ServerConfig) -> list[str]:
        found = super().problems(config)
        if config.speculative:
            found += Speculation.problems(self.name, config.speculative, _ALGORITHMS)
            found += [] if found else _speculation_problems(config.speculative)
        backend = config.attention_backend
        if backend and backend not in ATTENTION_BACKENDS:
            hint = did_you_mean(backend.lower(), ATTENTION_BACKENDS)
            found.append(
                f"sglang has no attention_backend={backend!r}{hint}; one that is newer than this plugin goes into "
                f"sglang={{'attention_backend': {backend!r}}}"
            )
        return found

    def ranks(self, config: ServerConfig) -> int:
        """With DP attention the data-parallel groups share the tensor-parallel GPUs; a node leases its own share."""
        given = self.given(config)
        total = config.tp * config.pp * (1 if given.get("enable_dp_attention") else config.dp)
        return -(-total // (command_flags.count(given, "nnodes") or 1))

    def request_body(self, config: ServerConfig, output_tokens: int) -> dict[str, Any]:
        return {"ignore_eos": True, "min_tokens": output_tokens}

    def effective(self, config: ServerConfig, probe: Probe) -> EffectiveConfig:
        return sglang_read.effective(probe, self.given(config))

    def mismatches(self, config: ServerConfig, effective: EffectiveConfig) -> list[Mismatch]:
        found = super().mismatches(config, effective)
        return [*found, *sglang_read.mismatches(self.wanted(config), effective, self.becomes)]

    def counters(self, metrics: str) -> Counters:
        return sglang_read.counters(metrics)

    def birthmark(self, probe: Probe) -> str | None:
        return sglang_read.birthmark(probe)


def _speculation_problems(mapping: Mapping[str, Any]) -> Iterator[str]:
    steps, tokens, topk = mapping.get("num_steps"), mapping.get("num_tokens"), mapping.get("topk") or 1
    if mapping.get("method") == "ngram" and (steps or mapping.get("topk")):
        yield "sglang's n-gram speculation has no num_steps or topk; declare num_tokens"
    elif topk == 1 and steps and tokens and steps != tokens:
        yield f"speculative num_steps={steps} and num_tokens={tokens} disagree: with topk=1 each step drafts one token"
    elif topk > 1 and not (steps and tokens):
        yield f"speculative topk={topk} makes a tree: sglang needs num_steps and num_tokens (the tree's size) with it"


def _speculation_env(config: ServerConfig) -> dict[str, str]:
    length = (config.speculative or {}).get("acceptance_length")
    if length is None:
        return {}
    return {"SGLANG_SIMULATE_ACC_LEN": str(length), "SGLANG_SIMULATE_ACC_METHOD": "match-expected"}
