"""Twelve streams at once and one alone, of an 8B shape with random weights, on a real GPU.

    llmperf tiny-model models/dummy-8b --shape 8b      # config and tokenizer, no weights (engines make them up)
    pytest examples/dummy_models/test_streams.py --engine vllm --engine sglang --update-baselines --launches 2

What it found from an emptied cache, and with graphs for too few streams, is in docs/examples/h200-today.md.
"""

import pytest

from pytest_llmperf import perf

pytestmark = pytest.mark.llm_server(
    model="models/dummy-8b",
    load_format="dummy",
    context_length=4096,
    max_running_requests=16,
    sglang={"disable_prefill_cuda_graph": True, "mem_fraction_static": 0.5},
    vllm={"gpu_memory_utilization": 0.5},
)


@perf(metric="output_tok_s")
def test_twelve_streams(llm_server, baseline):
    baseline.check(llm_server.load(concurrency=12, requests=48, prompt_tokens=128, output_tokens=128))


@perf(repetitions=10)
def test_single_stream(llm_server, baseline):
    baseline.check(llm_server.stream(prompt_tokens=128, output_tokens=256))
