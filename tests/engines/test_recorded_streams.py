"""Chunks, metrics and resolved configuration of real SGLang and vLLM on a CPU, serving the tiny model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_llmperf.engines.base import Counters
from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.engines.vllm.vllm_read import INFO
from pytest_llmperf.server_config import ServerConfig

from .probe import Recorded, sample, sample_json

ENGINES = builtin()
STREAMS = {"sglang": "sglang-0.5.23-cpu.chunks.jsonl", "vllm": "vllm-0.32.0-cpu-ngram.chunks.jsonl"}


def chunks(engine: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in sample(STREAMS[engine]).splitlines()]


@pytest.mark.parametrize("engine", STREAMS)
def test_usage_comes_with_every_chunk_and_once_more_at_the_end(engine: str) -> None:
    assert ENGINES[engine].traits.continuous_usage
    counts = [c["usage"]["completion_tokens"] for c in chunks(engine)]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == counts[-2] == 64
    assert chunks(engine)[-1]["choices"] == []


@pytest.mark.parametrize("engine", STREAMS)
def test_cached_tokens_are_in_the_last_usage(engine: str) -> None:
    assert chunks(engine)[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_speculation_puts_several_tokens_into_a_chunk() -> None:
    """Five at a time: the four that were drafted, all accepted, and the one that verifies them."""
    counts = [c["usage"]["completion_tokens"] for c in chunks("vllm")]
    assert counts[-4:] == [55, 60, 64, 64]


def test_counters_of_vllm() -> None:
    assert ENGINES["vllm"].counters(sample("vllm-0.32.0-cpu-ngram.metrics")) == Counters(
        generation_tokens=72,
        prompt_tokens=200,
        cached_tokens=0,
        preemptions=0,
        running=0,
        waiting=0,
        drafts=6,
        draft_tokens=24,
        accepted_tokens=24,
    )


def test_counters_of_sglang() -> None:
    """Labels are summed; the counter of cached tokens is not there before there is one."""
    assert ENGINES["sglang"].counters(sample("sglang-0.5.23-cpu.metrics")) == Counters(
        generation_tokens=80,
        prompt_tokens=220,
        cached_tokens=0,
        running=0,
        waiting=0,
        captured_batches=0,
        uncaptured_batches=77,
    )


@pytest.mark.parametrize(
    ("text", "captured", "outside"),
    [
        ("", None, None),
        ('sglang:cuda_graph_passes_total{mode="decode_none"} 77.0\n', 0, 77),
        ('sglang:cuda_graph_passes_total{mode="decode_cuda_graph"} 3.0\n', 3, 0),
        ('sglang:cuda_graph_passes_total{mode="prefill_none"} 1.0\n', 0, 0),
    ],
)
def test_batches_in_and_outside_sglangs_graphs(text: str, captured: float | None, outside: float | None) -> None:
    """Each mode's counter is born with its first batch."""
    found = ENGINES["sglang"].counters(text)
    assert (found.captured_batches, found.uncaptured_batches) == (captured, outside)


def test_older_names_and_several_ranks() -> None:
    text = (
        "# TYPE vllm:gpu_prefix_cache_hits counter\n"
        'vllm:gpu_prefix_cache_hits_total{engine="0"} 3.0\n'
        'vllm:gpu_prefix_cache_hits_total{engine="1"} 4.0\n'
    )
    assert ENGINES["vllm"].counters(text).cached_tokens == 7


@pytest.mark.parametrize("text", ["", "<html>502</html>", 'vllm:generation_tokens_total{engine="0', "a b c d\n"])
@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_no_exposition_tells_nothing(engine: str, text: str) -> None:
    assert ENGINES[engine].counters(text) == Counters()


def test_the_json_form_of_vllms_configuration() -> None:
    engine = ENGINES["vllm"]
    spec = {"method": "ngram", "num_tokens": 4}
    config = ServerConfig(
        engine="vllm",
        model="tiny",
        max_running_requests=4,
        context_length=2048,
        cuda_graph=False,
        speculative=spec,
        flags={"block_size": 128, "stream_interval": 2, "async_scheduling": True},
    )
    bodies = {INFO: sample_json("vllm-0.32.0-cpu-server_info.json"), "/version": {"version": "0.32.0"}}
    effective = engine.effective(config, Recorded(sample("vllm-0.32.0-cpu.log"), bodies))
    assert effective.engine_version == "0.32.0"
    assert effective.max_running_requests == 4
    assert effective.context_length == 2048
    assert effective.kv_tokens == 131_072
    assert effective.cuda_graph is False
    assert effective.custom_all_reduce is False
    assert effective.prefix_cache is True
    assert effective.dtype == "float16"
    assert effective.speculative == "ngram"
    assert effective.attention_backend is None, "on a CPU its log does not say"
    assert effective.cache_state is None
    assert effective.versions["torch"] == "2.13.0+cu130"
    assert {(m.field, m.declared, m.effective) for m in engine.mismatches(config, effective)} == {
        ("stream_interval", "2", "1"),
        ("async_scheduling", "True", "False"),  # "not supported with ngram-based speculative decoding"
    }


def test_the_backend_that_was_asked_for_on_a_cpu() -> None:
    """A class path; that of another backend is shown too after it was refused, and proves nothing."""
    config = ServerConfig(engine="vllm", model="tiny", attention_backend="CPU_ATTN")
    body = sample_json("vllm-0.32.0-cpu-server_info.json")
    asked = body["vllm_config"]["attention_config"]
    for path, seen in {
        "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend": "CPU_ATTN",
        "vllm.v1.attention.backends.flashinfer.FlashInferBackend": None,
    }.items():
        asked["backend"] = path
        assert ENGINES["vllm"].effective(config, Recorded("", {INFO: body})).attention_backend == seen
