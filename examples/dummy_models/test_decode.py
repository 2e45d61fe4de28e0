"""Decode speed of Llama shapes with random weights, on a real GPU, with nothing to download.

    llmperf tiny-model models/dummy-3b --shape 3b      # config and tokenizer, no weights (engines make them up)
    pytest examples/dummy_models -m perf --engine sglang --engine vllm

The baselines of these tests under baselines/ were recorded on the hardware that each file names.
"""

import pytest

from pytest_llmperf import perf

pytestmark = pytest.mark.llm_server(
    load_format="dummy",
    context_length=4096,
    max_running_requests=16,
    sglang={"cuda_graph_max_bs_decode": 16, "disable_prefill_cuda_graph": True, "mem_fraction_static": 0.5},
    vllm={"gpu_memory_utilization": 0.5},
)


@pytest.mark.llm_server(model="models/dummy-3b")
class Test3B:
    @perf(metric=("decode_tok_s", "ttft_ms"), repetitions=10)
    def test_single_stream(self, llm_server, baseline):
        baseline.check(llm_server.stream(prompt_tokens=128, output_tokens=256))

    @perf(metric="output_tok_s")
    def test_eight_streams(self, llm_server, baseline):
        baseline.check(llm_server.load(concurrency=8, requests=48, prompt_tokens=128, output_tokens=128))


@pytest.mark.llm_server(model="models/dummy-8b")
class Test8B:
    @perf(metric=("decode_tok_s", "ttft_ms"), repetitions=10)
    def test_single_stream(self, llm_server, baseline):
        baseline.check(llm_server.stream(prompt_tokens=128, output_tokens=256))
