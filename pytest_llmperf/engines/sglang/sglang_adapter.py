"""SGLang: command line, request traits, log signs. What a running server resolved to is read in ``sglang_read``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pytest_llmperf.engines import command_flags
from pytest_llmperf.engines.base import (
    PORTABLE,
    Command,
    Counters,
    EffectiveConfig,
    Endpoint,
    Engine,
    EngineSettings,
    Mismatch,
    Probe,
    RequestTraits,
)
from pytest_llmperf.engines.sglang import sglang_read
from pytest_llmperf.engines.speculation import Speculation
from pytest_llmperf.errors import did_you_mean
from pytest_llmperf.models import tiny_model
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


class SGLang(Engine):
    name = "sglang"
    launch_spread = 0.006  # on H200s launches differed by 0.07 to 0.26 % (3B)
    portable = frozenset(PORTABLE)
    traits = RequestTraits(token_ids=True, tokenize_path="/tokenize", continuous_usage=True, cached_in_usage=True)
    progress_patterns = (
        (re.compile(r"Load weight begin|Loading safetensors|Multi-thread loading"), "loading weights"),
        (re.compile(r"Load weight end"), "weights loaded"),
        (re.compile(r"KV Cache is allocated|Memory pool end"), "allocating the KV cache"),
        (re.compile(r"Capturing batches|Capture .*graph begin"), "capturing graphs"),
        (re.compile(r"Init torch distributed"), "joining ranks"),
        (re.compile(r"Application startup complete|POST /generate"), "warming up"),
    )
    crash_patterns = (
        (re.compile(r"Not enough memory[^\n]*mem-fraction-static[^\n]*"), "out of GPU memory for the KV cache"),
        (re.compile(r"error: argument --attention-backend: invalid choice: '([^']+)'"), r"no attention backend \1"),
        (
            re.compile(r"(\w+) with minimum required version (\S+) is not installed"),
            r"its environment lacks \1 \2 or newer",
        ),
        (re.compile(r"(?:AssertionError|ValueError): ([^\n]*\b(?:backend|GPUs|SM\d+)\b[^\n]*)", re.IGNORECASE), r"\1"),
    )
    # SGLang then dumps stacks and waits for core files, more than a minute, before it exits
    fatal_patterns = (re.compile(r"SIGQUIT received\.|Received sigquit from a child process"),)
    #: Written by the adapter itself, each with what to write in its place.
    reserved: ClassVar[Mapping[str, str]] = {
        "host": "bind = ... in [tool.llmperf.engines.sglang]",
        "port": "port = ... in [tool.llmperf.engines.sglang]",
        "api_key": "nothing: each launch gets a key of its own",
        **dict.fromkeys(("model", "model_path", "served_model_name"), "model=..."),
        **dict.fromkeys(("tp", "tp_size", "tensor_parallel_size"), "tp=..., which also leases the GPUs"),
        **dict.fromkeys(("dp", "dp_size", "data_parallel_size"), "dp=..., which also leases the GPUs"),
        **dict.fromkeys(("pp", "pp_size", "pipeline_parallel_size"), "pp=..., which also leases the GPUs"),
    }

    def command(self, config: ServerConfig, settings: EngineSettings, endpoint: Endpoint) -> Command:
        own: dict[str, Any] = {
            "model_path": tiny_model.resolve(config.model, settings),
            "served_model_name": self.model_name(config),
            "host": settings.bind,
            "port": endpoint.port,
            "api_key": endpoint.api_key,  # SGLang reads it from nowhere else, so that `ps` shows it
            "enable_metrics": True,
            "enable_cache_report": True,
            **_portable_flags(config),
        }
        argv = command_flags.argv(own | command_flags.normal(config.flags))
        program = settings.command or ("python", "-m", "sglang.launch_server")
        return Command((*program, *argv), {**_CRASH_AT_ONCE, **_speculation_env(config), **config.nccl, **config.env})

    def problems(self, config: ServerConfig) -> list[str]:
        found = [*super().problems(config), *command_flags.problems(self.name, config.flags, self.reserved)]
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


def _portable_flags(config: ServerConfig) -> dict[str, Any]:
    graphs_off = "disabled" if config.cuda_graph is False else None
    out = {
        "tokenizer_path": config.tokenizer,
        "tp_size": config.tp if config.tp > 1 else None,
        "dp_size": config.dp if config.dp > 1 else None,
        "pp_size": config.pp if config.pp > 1 else None,
        "dtype": config.dtype,
        "quantization": config.quantization,
        "load_format": config.load_format,
        "attention_backend": config.attention_backend,
        "cuda_graph_backend_decode": graphs_off,
        "cuda_graph_backend_prefill": graphs_off,
        "disable_custom_all_reduce": config.custom_all_reduce is False,
        "disable_radix_cache": config.prefix_cache is False,
        "max_running_requests": config.max_running_requests,
        "context_length": config.context_length,
        "random_seed": config.seed,
    }
    if config.speculative:
        out |= _speculation_flags(Speculation.of(config.speculative))
    return out


def _speculation_flags(spec: Speculation) -> dict[str, Any]:
    """A chain of N drafted tokens is N steps of one token each; SGLang counts the verified one too."""
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
