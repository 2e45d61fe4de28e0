"""SGLang: command line, request traits, log signs. What a running server resolved to is read in ``sglang_read``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pytest_llmperf.engines import command_flags
from pytest_llmperf.engines.base import (
    Counters,
    EffectiveConfig,
    Engine,
    Mismatch,
    Probe,
    RequestTraits,
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
        *("aiter", "wave", "intel_amx", "ascend", "intel_xpu"),
    }
)
#: Flags under the names of the portable keys that they stand for: the engine-only one wins.
_SAME_NAME = ("attention_backend", "max_running_requests", "context_length", "dtype", "quantization")
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
        "model": ("model", "model_path", "served_model_name"),
        "tp": ("tp", "tensor_parallel_size"),
        "dp": ("dp", "data_parallel_size"),
        "pp": ("pp", "pipeline_parallel_size"),
    }
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

    def gpu_count(self, config: ServerConfig) -> int:
        """With DP attention the data-parallel groups share the tensor-parallel GPUs; a node leases its own share."""
        given = command_flags.normal(config.flags)
        total = config.tp * config.pp * (1 if given.get("enable_dp_attention") else config.dp)
        return -(-total // command_flags.count(given, "nnodes"))

    def request_body(self, config: ServerConfig, output_tokens: int) -> dict[str, Any]:
        return {"ignore_eos": True, "min_tokens": output_tokens}

    def effective(self, config: ServerConfig, probe: Probe) -> EffectiveConfig:
        return sglang_read.effective(config, probe)

    def mismatches(self, config: ServerConfig, effective: EffectiveConfig) -> list[Mismatch]:
        wanted = command_flags.overridden(config, {name: name for name in _SAME_NAME})
        return [*super().mismatches(wanted, effective), *sglang_read.mismatches(wanted, effective)]

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
