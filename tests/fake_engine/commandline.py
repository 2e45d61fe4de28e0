"""Both engines' command lines, read into what the engine would resolve them to."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .settings import Settings

# destination: (takes a value, names)
SGLANG_FLAGS: Mapping[str, tuple[bool, tuple[str, ...]]] = {
    "model_path": (True, ("--model-path", "--model")),
    "tokenizer_path": (True, ("--tokenizer-path", "--tokenizer")),
    "host": (True, ("--host",)),
    "port": (True, ("--port",)),
    "api_key": (True, ("--api-key",)),
    "served_model_name": (True, ("--served-model-name",)),
    "ssl_certfile": (True, ("--ssl-certfile",)),
    "ssl_keyfile": (True, ("--ssl-keyfile",)),
    "attention_backend": (True, ("--attention-backend",)),
    "prefill_attention_backend": (True, ("--prefill-attention-backend",)),
    "decode_attention_backend": (True, ("--decode-attention-backend",)),
    "sampling_backend": (True, ("--sampling-backend",)),
    "moe_runner_backend": (True, ("--moe-runner-backend",)),
    "tp_size": (True, ("--tp-size", "--tp", "--tensor-parallel-size")),
    "dp_size": (True, ("--dp-size", "--dp", "--data-parallel-size")),
    "pp_size": (True, ("--pp-size", "--pp", "--pipeline-parallel-size")),
    "ep_size": (True, ("--ep-size", "--ep", "--expert-parallel-size")),
    "dtype": (True, ("--dtype",)),
    "quantization": (True, ("--quantization",)),
    "kv_cache_dtype": (True, ("--kv-cache-dtype",)),
    "load_format": (True, ("--load-format",)),
    "context_length": (True, ("--context-length",)),
    "max_running_requests": (True, ("--max-running-requests",)),
    "max_total_tokens": (True, ("--max-total-tokens",)),
    "mem_fraction_static": (True, ("--mem-fraction-static",)),
    "chunked_prefill_size": (True, ("--chunked-prefill-size",)),
    "page_size": (True, ("--page-size",)),
    "stream_interval": (True, ("--stream-interval",)),
    "num_continuous_decode_steps": (True, ("--num-continuous-decode-steps",)),
    "random_seed": (True, ("--random-seed",)),
    "cuda_graph_backend_decode": (True, ("--cuda-graph-backend-decode",)),
    "cuda_graph_backend_prefill": (True, ("--cuda-graph-backend-prefill",)),
    "cuda_graph_max_bs_decode": (True, ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs")),
    "speculative_algorithm": (True, ("--speculative-algorithm", "--speculative-algo")),
    "speculative_draft_model_path": (True, ("--speculative-draft-model-path", "--speculative-draft-model")),
    "speculative_num_steps": (True, ("--speculative-num-steps",)),
    "speculative_eagle_topk": (True, ("--speculative-eagle-topk",)),
    "speculative_num_draft_tokens": (True, ("--speculative-num-draft-tokens",)),
    "speculative_draft_attention_backend": (True, ("--speculative-draft-attention-backend",)),
    "nnodes": (True, ("--nnodes",)),
    "node_rank": (True, ("--node-rank",)),
    "dist_init_addr": (True, ("--dist-init-addr",)),
    "log_level": (True, ("--log-level",)),
    "trust_remote_code": (False, ("--trust-remote-code",)),
    "disable_cuda_graph": (False, ("--disable-cuda-graph",)),
    "disable_prefill_cuda_graph": (False, ("--disable-prefill-cuda-graph",)),
    "disable_decode_cuda_graph": (False, ("--disable-decode-cuda-graph",)),
    "disable_custom_all_reduce": (False, ("--disable-custom-all-reduce",)),
    "disable_radix_cache": (False, ("--disable-radix-cache",)),
    "disable_overlap_schedule": (False, ("--disable-overlap-schedule",)),
    "enable_metrics": (False, ("--enable-metrics",)),
    "enable_cache_report": (False, ("--enable-cache-report",)),
    "enable_deterministic_inference": (False, ("--enable-deterministic-inference",)),
}
VLLM_FLAGS: Mapping[str, tuple[bool, tuple[str, ...]]] = {
    "model_path": (True, ("--model",)),
    "tokenizer_path": (True, ("--tokenizer",)),
    "host": (True, ("--host",)),
    "port": (True, ("--port",)),
    "api_key": (True, ("--api-key",)),
    "served_model_name": (True, ("--served-model-name",)),
    "ssl_certfile": (True, ("--ssl-certfile",)),
    "ssl_keyfile": (True, ("--ssl-keyfile",)),
    "attention_backend": (True, ("--attention-backend",)),
    "attention_config": (True, ("--attention-config", "-ac")),
    "tp_size": (True, ("--tensor-parallel-size", "-tp")),
    "dp_size": (True, ("--data-parallel-size", "-dp")),
    "pp_size": (True, ("--pipeline-parallel-size", "-pp")),
    "dtype": (True, ("--dtype",)),
    "quantization": (True, ("--quantization", "-q")),
    "kv_cache_dtype": (True, ("--kv-cache-dtype",)),
    "load_format": (True, ("--load-format",)),
    "context_length": (True, ("--max-model-len",)),
    "max_running_requests": (True, ("--max-num-seqs",)),
    "max_num_batched_tokens": (True, ("--max-num-batched-tokens",)),
    "gpu_memory_utilization": (True, ("--gpu-memory-utilization",)),
    "block_size": (True, ("--block-size",)),
    "stream_interval": (True, ("--stream-interval",)),
    "random_seed": (True, ("--seed",)),
    "speculative_config": (True, ("--speculative-config", "-sc")),
    "compilation_config": (True, ("--compilation-config", "-cc")),
    "distributed_executor_backend": (True, ("--distributed-executor-backend",)),
    "nnodes": (True, ("--nnodes", "-n")),
    "node_rank": (True, ("--node-rank", "-r")),
    "trust_remote_code": (False, ("--trust-remote-code",)),
    "enforce_eager": (False, ("--enforce-eager",)),
    "disable_custom_all_reduce": (False, ("--disable-custom-all-reduce",)),
    "enable_prefix_caching": (False, ("--enable-prefix-caching",)),
    "no_enable_prefix_caching": (False, ("--no-enable-prefix-caching",)),
    "enable_prompt_tokens_details": (False, ("--enable-prompt-tokens-details",)),
    "disable_log_stats": (False, ("--disable-log-stats",)),
    "async_scheduling": (False, ("--async-scheduling",)),
    "no_async_scheduling": (False, ("--no-async-scheduling",)),
    "no_enable_flashinfer_autotune": (False, ("--no-enable-flashinfer-autotune",)),
}
BACKENDS = {
    "sglang": "triton torch_native flex_attention dsa nsa qsa dsv4 fa3 fa4 flashinfer flashmla trtllm_mla cutedsl_mla "
    "trtllm_mha aiter wave intel_amx ascend intel_xpu cutlass_mla",
    "vllm": "FLASH_ATTN FLASHINFER TRITON_ATTN FLEX_ATTENTION FLASHMLA FLASHINFER_MLA CUTLASS_MLA TRITON_MLA "
    "FLASH_ATTN_MLA TOKENSPEED_MLA TORCH_SDPA CPU_ATTN",
}
PROGRAM = {"sglang": "launch_server.py", "vllm": "vllm serve"}


class UsageExitError(SystemExit):
    """What argparse does with a wrong command line: usage on stderr, exit code 2."""


@dataclass(frozen=True)
class Options:
    """A resolved command line. ``given`` holds the flags as they came, by destination."""

    dialect: str
    model: str = "fake-model"
    host: str = "127.0.0.1"
    port: int = 0
    api_key: str | None = None
    served: str = "fake-model"
    backend: str = "fa3"
    backend_given: bool = False
    max_running: int = 256
    context: int = 131_072
    interval: int = 1
    tp: int = 1
    prefix_cache: bool = True
    decode_graph: bool = True
    custom_all_reduce: bool = True
    metrics: bool = True
    cached_in_usage: bool = False
    dev_mode: bool = False
    draft: Mapping[str, Any] | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    argv: tuple[str, ...] = ()

    def on_port(self, port: int) -> Options:
        """The same options after the kernel has chosen a port."""
        return replace(self, port=port)

    @property
    def url(self) -> str:
        return f"http{'s' if 'ssl_certfile' in self.given else ''}://{self.host}:{self.port}"

    @property
    def block(self) -> int:
        """Tokens in a block of the prefix cache."""
        return (
            int(self.given.get("page_size", 1)) if self.dialect == "sglang" else int(self.given.get("block_size", 16))
        )


def _usage_exit(dialect: str, message: str) -> UsageExitError:
    program = PROGRAM[dialect]
    sys.stderr.write(f"usage: {program} [-h] [--host HOST] [--port PORT] ...\n{program}: error: {message}\n")
    sys.stderr.flush()
    return UsageExitError(2)


def _read(argv: Sequence[str], dialect: str, strict: bool) -> dict[str, Any]:
    table = SGLANG_FLAGS if dialect == "sglang" else VLLM_FLAGS
    names = {name: (dest, valued) for dest, (valued, all_names) in table.items() for name in all_names}
    given: dict[str, Any] = {}
    unknown: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            if dialect == "vllm" and "model_path" not in given:
                given["model_path"] = word
            else:
                unknown.append(word)
            continue
        name, has_value, value = word.partition("=")
        name = "--" + name[2:].replace("_", "-") if name.startswith("--") else name
        dest, valued = names.get(name, (name.lstrip("-").replace("-", "_"), None))
        if valued is None:
            unknown.append(word)
            valued = not has_value and bool(rest) and not rest[0].startswith("--")
            valued = valued or bool(has_value)
        if valued and not has_value:
            if not rest:
                raise _usage_exit(dialect, f"argument {name}: expected one argument")
            value = rest.pop(0)
        given[dest] = value if valued else True
    if unknown and strict:
        raise _usage_exit(dialect, f"unrecognized arguments: {' '.join(unknown)}")
    return given


def dialect_of(argv: Sequence[str]) -> tuple[str, list[str]]:
    """The dialect (said first, or told from the flags) and the words that are left."""
    words = list(argv)
    if words and words[0] in ("sglang", "vllm"):
        dialect = words.pop(0)
    else:
        dialect = "sglang" if any("--model-path" in w for w in words) else "vllm"
    if words and words[0] == "serve":
        words.pop(0)
    return dialect, words


def _draft(dialect: str, given: Mapping[str, Any]) -> dict[str, Any] | None:
    if dialect == "vllm":
        text = given.get("speculative_config")
        return dict(json.loads(text)) if text else None
    if not given.get("speculative_algorithm"):
        return None
    steps = int(given.get("speculative_num_steps", 3))
    return {
        "method": given["speculative_algorithm"],
        "model": given.get("speculative_draft_model_path"),
        "num_speculative_tokens": int(given.get("speculative_num_draft_tokens", steps + 1)) - 1,
    }


def _graph_off(dialect: str, given: Mapping[str, Any]) -> bool:
    if dialect == "vllm":
        return bool(given.get("enforce_eager"))
    off = given.get("disable_cuda_graph") or given.get("disable_decode_cuda_graph")
    return bool(off) or given.get("cuda_graph_backend_decode") == "disabled"


def resolve(argv: Sequence[str], settings: Settings, environ: Mapping[str, str]) -> Options:
    """Raises ``UsageExitError`` as argparse would, for what is wrong in any case and, when strict, for the unknown."""
    dialect, words = dialect_of(argv)
    given = _read(words, dialect, settings.strict)
    sglang = dialect == "sglang"
    if "model_path" not in given:
        raise _usage_exit(dialect, "the following arguments are required: --model-path/--model")
    try:
        port = int(given.get("port", 30000 if sglang else 8000))
        limit = int(given["max_running_requests"]) if "max_running_requests" in given else None
        tp = int(given.get("tp_size", 1))
        draft = _draft(dialect, given)
    except ValueError as error:
        raise _usage_exit(dialect, f"argument: invalid value: {error}") from error
    asked = given.get("decode_attention_backend") or given.get("attention_backend")
    choices = BACKENDS[dialect].split()
    if asked and settings.strict and asked not in choices:
        quoted = ", ".join(repr(c) for c in choices)
        raise _usage_exit(dialect, f"argument --attention-backend: invalid choice: {asked!r} (choose from {quoted})")
    if limit is None and sglang and draft:
        limit = 48  # what the real one does in speculative mode
    return Options(
        dialect=dialect,
        model=given["model_path"],
        host=given.get("host", "127.0.0.1"),
        port=port,
        api_key=given.get("api_key") or (None if sglang else environ.get("VLLM_API_KEY")),
        served=given.get("served_model_name") or given["model_path"],
        backend=settings.replace_backend or asked or ("fa3" if sglang else "FLASH_ATTN"),
        backend_given=bool(asked),
        max_running=settings.max_running or limit or (2048 if sglang else 256),
        context=int(given.get("context_length", 131_072)),
        interval=int(given.get("stream_interval", 1)),
        tp=tp,
        prefix_cache=not (
            given.get("disable_radix_cache") or given.get("no_enable_prefix_caching") or settings.no_cache
        ),
        decode_graph=not _graph_off(dialect, given),
        custom_all_reduce=not given.get("disable_custom_all_reduce") and not settings.custom_all_reduce_off,
        metrics=bool(given.get("enable_metrics")) if sglang else True,
        cached_in_usage=bool(given.get("enable_cache_report" if sglang else "enable_prompt_tokens_details")),
        dev_mode=environ.get("VLLM_SERVER_DEV_MODE") == "1",
        draft=draft,
        given=given,
        argv=tuple(argv),
    )
