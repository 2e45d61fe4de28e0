"""llama.cpp: the server embedded here (``xllamacpp`` wheel), or a ``llama-server`` of the user's own.

Both take the same command line. Slots divide the context among them, so that ``context_length`` is multiplied by the
number of slots: each request gets what was declared. One thread unless told otherwise: with more, any other load on
the machine ruins a measurement.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pytest_llmperf.engines.base import (
    Counters,
    EffectiveConfig,
    Engine,
    Mismatch,
    Probe,
    RequestTraits,
    Spelling,
    Starting,
    Translation,
)
from pytest_llmperf.engines.effective_reader import Reading
from pytest_llmperf.engines.metrics_text import Metrics
from pytest_llmperf.engines.speculation import LOOKUP, Speculation
from pytest_llmperf.models import CONTEXT, TINY
from pytest_llmperf.server_config import ServerConfig

EMBEDDED = (sys.executable, "-m", "pytest_llmperf.engines.llamacpp.llamacpp_serve")
#: Slots (requests served at once) when ``max_running_requests`` is not declared.
SLOTS = 4
_SPECULATION = {"ngram": "ngram-simple", "draft_model": "draft-simple", "eagle3": "draft-eagle3", "mtp": "draft-mtp"}
_ALIASES = {
    **{"-m": "model", "-a": "alias", "-c": "ctx_size", "-np": "parallel", "-n": "n_predict", "-s": "seed"},
    **{"-ngl": "n_gpu_layers", "gpu_layers": "n_gpu_layers", "-t": "threads", "-tb": "threads_batch"},
    **{"-b": "batch_size", "-ub": "ubatch_size", "-fa": "flash_attn", "-cb": "cont_batching", "-md": "model_draft"},
    **{"-ctk": "cache_type_k", "-ctv": "cache_type_v", "-ot": "override_tensor", "-ncmoe": "n_cpu_moe"},
    **{"-sm": "split_mode", "-ts": "tensor_split", "-mg": "main_gpu"},
}
_DTYPES = {"F16": "float16", "BF16": "bfloat16", "all F32": "float32"}
_SERVE_LINE = re.compile(r"llamacpp_serve: xllamacpp (\S+) (\{.*\})")


class LlamaCpp(Engine):
    name = "llamacpp"
    uses_gpu = False
    compiles = False
    launch_spread = 0.07  # tiny model, two cores of a shared host: sessions within an hour differed by 5 to 8 %
    program = EMBEDDED
    spelling = Spelling(negates=True, aliases=_ALIASES)
    flags: ClassVar[Mapping[str, Translation]] = {
        "prefix_cache": "cache_prompt",
        "max_running_requests": lambda c: {"parallel": _slots(c), "ctx_size": _slots(c) * _context(c)},
        "context_length": lambda c: {"ctx_size": _slots(c) * _context(c)},
        "speculative": lambda c: _speculation_flags(Speculation.of(c.speculative or {})),
        "seed": "seed",
    }
    reserved: ClassVar[Mapping[str, Sequence[str]]] = {"model": ("model", "alias")}
    programs = (("llama-server",),)
    traits = RequestTraits(token_ids=True, tokenize_path="/tokenize", continuous_usage=False)
    progress_patterns = (
        (re.compile(r"load_model: loading model"), "loading weights"),
        (re.compile(r"llama threadpool init|n_slots ="), "allocating the KV cache"),
    )
    crash_patterns = (
        (re.compile(r"failed to open GGUF file '([^']+)' \(([^)]+)\)"), r"the model file \1 could not be read: \2"),
        (re.compile(r"invalid magic characters|not a GGUF file"), "the model file is not a GGUF file"),
        (re.compile(r"unknown model architecture: '([^']+)'"), r"llama.cpp does not know the architecture \1"),
        (re.compile(r"failed to allocate (?:buffer|compute|KV)\b.*"), "out of memory"),
        (re.compile(r"No module named 'xllamacpp'"), "xllamacpp is missing: pip install 'pytest-llmperf[llamacpp]'"),
    )

    def own_flags(self, start: Starting) -> Mapping[str, Any]:
        config = start.config
        return {
            "model": _gguf(start.model),
            "alias": self.model_name(config),
            "host": start.settings.bind,
            "port": start.endpoint.port,
            "metrics": True,
            "slots": True,
            "threads": 1,
            "parallel": _slots(config),
            "ctx_size": _slots(config) * _context(config),
        }

    def own_env(self, start: Starting) -> Mapping[str, str]:
        return {"LLAMA_API_KEY": start.endpoint.api_key} if start.endpoint.api_key else {}

    def problems(self, config: ServerConfig) -> list[str]:
        found = super().problems(config)
        if config.speculative:
            found += Speculation.problems(
                self.name, config.speculative, _SPECULATION, unsupported=("topk", "num_steps")
            )
        if config.model != TINY and not _gguf(config.model).endswith(".gguf"):
            found.append(
                f"llamacpp serves GGUF files: model={config.model!r} is neither one, nor a folder with one, nor 'tiny'"
            )
        return found

    def request_body(self, config: ServerConfig, output_tokens: int) -> dict[str, Any]:
        # in every chunk the tokens so far: what other engines say in usage
        return {"ignore_eos": True, "cache_prompt": bool(config.prefix_cache), "timings_per_token": True}

    def effective(self, config: ServerConfig, probe: Probe) -> EffectiveConfig:
        props = probe.json("/props")
        props = props if isinstance(props, dict) else {}
        settings = props.get("default_generation_settings") or {}
        slots, context = props.get("total_slots"), settings.get("n_ctx")
        ftype, build = props.get("model_ftype"), props.get("build_info")
        busy = probe.json("/slots")
        drafting = isinstance(busy, list) and any(slot.get("speculative") for slot in busy)
        embedded, said = _serve_line(probe.log)
        r = Reading()
        r.take(
            "/props",
            model=props.get("model_path"),
            dtype=_DTYPES.get(str(ftype)),
            quantization=ftype if ftype and ftype not in _DTYPES else None,
            max_running_requests=slots,
            context_length=context,
            kv_tokens=slots * context if slots and context else None,
            engine_version=None if embedded else build,
        )
        # /props says "none" here even while slots draft
        r.take("/slots", speculative=said.get("spec_type", "on") if drafting else None)
        r.take("log", engine_version=embedded, prefix_cache=said.get("cache_prompt"))
        r.version("xllamacpp", embedded)
        r.version("llama.cpp", None if embedded else build)
        for name in ("threads", "flash_attn", "n_gpu_layers"):
            r.note(name, said.get(name))
        return r.result()

    def mismatches(self, config: ServerConfig, effective: EffectiveConfig) -> list[Mismatch]:
        found = super().mismatches(config, effective)
        # slots are padded, and a model may have been trained for less: more context than declared is no loss
        return [m for m in found if m.field != "context_length" or int(m.effective) < int(m.declared)]

    def counters(self, metrics: str) -> Counters:
        m = Metrics(metrics)
        return Counters(
            generation_tokens=m.total("llamacpp:tokens_predicted_total"),
            prompt_tokens=m.total("llamacpp:prompt_tokens_total"),
            cached_tokens=m.total("llamacpp:prompt_tokens_cached_total"),
            running=m.total("llamacpp:requests_processing"),
            waiting=m.total("llamacpp:requests_deferred"),
            drafts=m.total("llamacpp:spec_decode_num_drafts_total"),
            draft_tokens=m.total("llamacpp:spec_decode_num_draft_tokens_total"),
            accepted_tokens=m.total("llamacpp:spec_decode_num_accepted_tokens_total"),
        )


def _slots(config: ServerConfig) -> int:
    return config.max_running_requests or SLOTS


def _context(config: ServerConfig) -> int:
    """Tokens of one request; 0 leaves it to the model."""
    return config.context_length or (CONTEXT if config.model == TINY else 0)


def _gguf(model: str) -> str:
    folder = Path(model)
    found = sorted(folder.glob("*.gguf")) if folder.is_dir() else []
    return str(found[0]) if found else model


def _speculation_flags(spec: Speculation) -> dict[str, Any]:
    ngram = spec.method == "ngram"
    return {
        "spec_type": _SPECULATION[spec.method],
        "model_draft": spec.model,
        "spec_ngram_simple_size_n": LOOKUP if ngram else None,
        "spec_ngram_simple_size_m" if ngram else "spec_draft_n_max": spec.num_tokens,
        "spec_synth_len": spec.acceptance_length,
    }


def _serve_line(log: str) -> tuple[str | None, dict[str, Any]]:
    """Version and settings that the embedded server wrote down; a server of the user's own writes no such line."""
    found = _SERVE_LINE.search(log)
    return (found[1], json.loads(found[2])) if found else (None, {})
