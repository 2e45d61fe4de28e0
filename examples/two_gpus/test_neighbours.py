"""Two servers side by side, a GPU each: what one that works does to the speed measured on the other.

    llmperf tiny-model models/dummy-8b --shape 8b
    pytest examples/two_gpus/test_neighbours.py --engine sglang -n 2 --update-baselines --launches 3    # in turns
    pytest examples/two_gpus/test_neighbours.py --engine sglang -n 2 --llmperf-parallel-measure         # at once

The second run judges each server, measured while its neighbour works, by what it did while the neighbour stood still.
"""

import pytest

from pytest_llmperf import perf

pytestmark = pytest.mark.llm_server(
    model="models/dummy-8b",
    load_format="dummy",
    max_running_requests=16,
    sglang={"cuda_graph_max_bs_decode": 16, "disable_prefill_cuda_graph": True, "mem_fraction_static": 0.5},
    vllm={"gpu_memory_utilization": 0.5},
)


@perf(repetitions=10, max_repetitions=10)
@pytest.mark.llm_server(context_length=4096)
def test_measured(llm_server, baseline):
    baseline.check(llm_server.stream(prompt_tokens=128, output_tokens=256))


@perf(metric="output_tok_s")
@pytest.mark.llm_server(context_length=3072)
def test_neighbour(llm_server, baseline):
    baseline.check(llm_server.load(concurrency=16, seconds=15, prompt_tokens=128, output_tokens=256))
