"""What a running SGLang resolved to, out of ``/server_info`` (older ``/get_server_info``), its log and its metrics.

``/server_info`` holds the resolved arguments, so that every engine-only flag that was declared can be compared too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pytest_llmperf.engines.base import Counters, EffectiveConfig, Mismatch, Probe
from pytest_llmperf.engines.effective_reader import Reading, number, search
from pytest_llmperf.engines.metrics_text import Metrics
from pytest_llmperf.engines.mismatches import taken
from pytest_llmperf.server_config import ServerConfig

#: "Max running requests is reset to 48 for speculative decoding", unless it was declared.
_SPECULATIVE_CAP = 48
#: Newer name first.
_INFO = ("/server_info", "/get_server_info")
#: Whether a batch of decoding ran in a captured graph; prefill has lines of its own.
_DECODED = re.compile(r"Decode batch[^\n]*cuda graph: (True|False)")
_SPLIT = ("prefill_attention_backend", "decode_attention_backend")
#: Backends for decoding alone, and what prefills beside them.
_PREFILL = dict.fromkeys(("tokenspeed_mla", "cutedsl_mla"), ("cutedsl_mla", "trtllm_mla"))
#: Resolved arguments that explain a speed and have no field of their own.
_NOTED = (
    *("kv_cache_dtype", "page_size", "chunked_prefill_size", "mem_fraction_static", "sampling_backend", "device"),
    *("moe_runner_backend", "num_continuous_decode_steps", "stream_interval", "disable_overlap_schedule", "ep_size"),
    *("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"),
)


#: Newer releases write the class's name; a quick all-reduce of ROCm's is another thing.
_NO_CUSTOM_ALL_REDUCE = re.compile(r"Custom ?allreduce(?:V2)? is disabled|Setup Custom allreduce failed", re.I)
#: Beside a cache that is allocated, or only reserved until graphs are captured.
_CACHE_LINE = r"KV Cache (?:is allocated|VA upper bound)\. dtype: torch\."
#: What the scheduler has room for, as it says before the body knows: the last word of a start first.
_ROOM = (
    r"Post-capture KV sizing: max_running_requests \d+ -> (\d+)",
    r"max_running_requests=(\d+), context_len",
    r"max_running_requests is capped to (\d+)",
)


def effective(probe: Probe, declared: Collection[str]) -> EffectiveConfig:
    """The typed record; fields that neither source tells stay unknown. Flags that were ``declared`` are noted too."""
    r = Reading()
    path, info = _info(probe)
    log = probe.log
    # the arguments tell what was asked; only the log tells that the ranks could not do it
    r.take(
        "log",
        custom_all_reduce=False if _NO_CUSTOM_ALL_REDUCE.search(log) else None,
        cuda_graph=False if set(_DECODED.findall(log)) == {"False"} else None,
    )
    _read_running(r, path, info, log)
    r.note("kv_cache_dtype", _CACHE_DTYPES.get(search(_CACHE_LINE + r"(\w+)", log) or ""))
    _read_info(r, path, info, declared)
    r.note("moe_runner_backend", search(r"Use (\w+) as MoE runner backend", log))
    _read_log(r, log)
    return r.result()


def _info(probe: Probe) -> tuple[str, Mapping[str, Any]]:
    """The path that answers, and its body; an empty one where none does."""
    for path in _INFO:
        info = probe.json(path)
        if isinstance(info, dict):
            return path, info
    return _INFO[0], {}


def birthmark(probe: Probe) -> str | None:
    """The seed that it drew and how many seconds its start took: its metrics, of several processes, hold no start time.

    The tokenizer's part is left out: with several tokenizers each has its own.
    """
    _, info = _info(probe)
    took = info.get("startup_time")
    took = {k: v for k, v in took.items() if k != "tokenizer_e2e"} if isinstance(took, dict) else None
    mark = [info.get("random_seed"), took]
    return json.dumps(mark) if any(x is not None for x in mark) else None


def _read_running(r: Reading, path: str, info: Mapping[str, Any], log: str) -> None:
    """Requests that a replica runs at once: the scheduler's own number, in the body or the log, before the argument.

    Schedulers are one for each group of DP attention, and share what was asked; replicas of plain DP have all of it.
    """
    states = info.get("internal_states") or [{}]
    state = states[0] if isinstance(states[0], dict) else {}
    asked, groups = info.get("max_running_requests"), _attention_groups(info)

    def whole(share: int | None) -> int | None:
        if share is None:
            return None
        as_asked = isinstance(asked, int) and asked // groups == share  # but for what the division left over
        return asked if as_asked else share * groups

    r.take(path, max_running_requests=whole(state.get("effective_max_running_requests_per_dp")))
    r.take("log", max_running_requests=whole(next(filter(None, (number(p, log) for p in _ROOM)), None)))
    r.take(path, max_running_requests=asked)


def _attention_groups(info: Mapping[str, Any]) -> int:
    """Groups of DP attention: ``attn_dp_size``, in older releases ``dp_size`` where the switch is on."""
    dp = info.get("dp_size") if info.get("enable_dp_attention") else None
    return max(int(info.get("attn_dp_size") or 1), int(dp or 1))


def _read_info(r: Reading, path: str, info: Mapping[str, Any], declared: Collection[str]) -> None:
    r.take(
        path,
        engine_version=info.get("version"),
        model=info.get("model_path"),
        dtype=info.get("dtype") if info.get("dtype") != "auto" else None,
        quantization=info.get("quantization"),
        attention_backend=info.get("attention_backend"),
        prefill_attention_backend=info.get("prefill_attention_backend"),
        decode_attention_backend=info.get("decode_attention_backend"),
        cuda_graph=_decode_graph(info),
        custom_all_reduce=_negated(info.get("disable_custom_all_reduce")),
        prefix_cache=_negated(info.get("disable_radix_cache")),
        context_length=info.get("context_length"),
        kv_tokens=info.get("max_total_num_tokens"),
        speculative=info.get("speculative_algorithm"),
        tp=info.get("tp_size"),
    )
    r.version("sglang", info.get("version"))
    for name in (*_NOTED, *declared):
        if name not in _SPLIT and not isinstance(info.get(name), dict):
            r.note(name, info.get(name))


def _decode_graph(info: Mapping[str, Any]) -> bool | None:
    """``cuda_graph_config`` where there is one: the older ``disable_cuda_graph`` stays false beside it.

    A configuration that asks for graphs is no proof of one: on a device without them no time was spent on capturing.
    """
    phases = info.get("cuda_graph_config")
    if not isinstance(phases, dict) or not isinstance(phases.get("decode"), dict):
        return _negated(info.get("disable_cuda_graph"))
    if phases["decode"].get("backend") == "disabled":
        return False
    started = info.get("startup_time")
    spent = started.get("cuda_graph") if isinstance(started, dict) else None
    return any(s for phase, s in spent.items() if phase != "prefill") if isinstance(spent, dict) else True


#: Types of the KV cache under the names of ``--kv-cache-dtype``.
_CACHE_DTYPES = {
    **{"bfloat16": "bfloat16", "float16": "float16", "float32": "float32", "float8_e4m3fn": "fp8_e4m3"},
    **{"float8_e4m3fnuz": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"},
}


def _negated(value: object) -> bool | None:
    return None if value is None else not value


def _read_log(r: Reading, log: str) -> None:
    r.take(
        "log",
        attention_backend=search(r"Use (\S+) backend by default", log) or search(r"Use (\S+) attention backend", log),
        prefill_attention_backend=search(r"Using hybrid attention backend[^\n]*prefill_backend=(\w+)", log),
        decode_attention_backend=search(r"Using hybrid attention backend[^\n]*decode_backend=(\w+)", log),
        context_length=number(r"context_len=(\d+)", log),
        kv_tokens=number(r"max_total_num_tokens=(\d+)", log),
        # dtype="auto" is all that the arguments say; what it came to stands beside the cache that was allocated
        dtype=search(_CACHE_LINE + "(bfloat16|float16|float32)", log),
    )
    r.version("torch", search(r"\btorch(?:==|: | version )(\d\S*)", log))
    r.nccl(log)


def mismatches(
    config: ServerConfig, effective: EffectiveConfig, becomes: Mapping[str, Collection[str]]
) -> Iterator[Mismatch]:
    """What the comparison of like-named fields cannot see."""
    for field, names in (("prefill_attention_backend", {**becomes, **_PREFILL}), ("decode_attention_backend", becomes)):
        wanted, got = config.flags.get(field) or config.attention_backend, getattr(effective, field)
        if not taken(wanted, got, names):
            yield Mismatch(field, str(wanted), str(got), "SGLang splits attention into prefill and decode")
    speculates = config.speculative or effective.speculative
    if speculates and config.max_running_requests is None and effective.max_running_requests == _SPECULATIVE_CAP:
        why = "speculative mode caps the requests served at once; declare max_running_requests to choose"
        yield Mismatch("max_running_requests", "nothing", str(_SPECULATIVE_CAP), why)


def counters(text: str) -> Counters:
    """Names of SGLang 0.4 to 0.5.23."""
    m = Metrics(text)
    prompt = m.total("sglang:prompt_tokens_total")
    cached = m.total("sglang:cached_tokens_total")
    return Counters(
        generation_tokens=m.total("sglang:generation_tokens_total"),
        prompt_tokens=prompt,
        # the counter is born with the first cached token
        cached_tokens=0.0 if cached is None and prompt is not None else cached,
        preemptions=m.total("sglang:num_retracted_requests_total"),
        running=m.total("sglang:num_running_reqs"),
        waiting=m.total("sglang:num_queue_reqs"),
        drafts=m.total("sglang:spec_verify_calls_total"),
        captured_batches=_passes(m, "decode_cuda_graph"),
        uncaptured_batches=_passes(m, "decode_none"),
    )


def _passes(m: Metrics, mode: str) -> float | None:
    """A mode's counter is born with the first batch that runs in it."""
    name = "sglang:cuda_graph_passes_total"
    return None if m.total(name) is None else m.total(name, mode=mode) or 0.0
