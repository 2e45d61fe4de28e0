"""Speculative decoding on an 8B Llama shape with random weights: the engine's part of it, told from the drafter's.

    llmperf tiny-model models/dummy-8b --shape 8b
    llmperf tiny-model models/dummy-8b-eagle3 --shape 8b-eagle3
    pytest examples/dummy_models/test_speculation.py -m perf --engine sglang --engine vllm

Random weights soon repeat themselves, so that n-gram lookup guesses nearly all; a random drafter guesses nearly
nothing; ``acceptance_length`` makes engines accept as if it guessed that much, so that their speed shows apart from it.
``max_running_requests`` is declared because SGLang takes 48 when it speculates and nothing is said, which is refused as
not what was declared.
"""

import pytest

from pytest_llmperf import perf

pytestmark = [
    pytest.mark.llm_server(
        model="models/dummy-8b",
        load_format="dummy",
        context_length=4096,
        max_running_requests=16,
        sglang={"cuda_graph_max_bs_decode": 16, "disable_prefill_cuda_graph": True, "mem_fraction_static": 0.5},
        vllm={"gpu_memory_utilization": 0.5},
    ),
    perf(metric=("decode_tok_s", "acceptance_length"), repetitions=10, max_repetitions=10),
]
EAGLE3 = {"method": "eagle3", "model": "models/dummy-8b-eagle3", "num_tokens": 3}


@perf
@pytest.mark.llm_server(speculative={"method": "ngram", "num_tokens": 4})
def test_ngram(llm_server, baseline):
    baseline.check(llm_server.stream(prompt_tokens=128, output_tokens=256))


@perf
@pytest.mark.llm_server(speculative=EAGLE3)
def test_eagle3(llm_server, baseline):
    baseline.check(llm_server.stream(prompt_tokens=128, output_tokens=256))


@perf
@pytest.mark.llm_server(speculative={**EAGLE3, "acceptance_length": 2.5})
def test_eagle3_as_if_it_guessed(llm_server, baseline):
    baseline.check(llm_server.stream(prompt_tokens=128, output_tokens=256))
