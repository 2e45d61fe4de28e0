"""Speed of one small server: single stream, time to first token, a few streams at once.

    pytest examples/test_tiny.py -m perf --engine llamacpp --update-baselines --launches 3    # record
    pytest examples/test_tiny.py -m perf --engine llamacpp                                    # gate

``model="tiny"`` is a random-weights Llama of 28 M parameters, made on the spot. ``--engine sglang`` or ``--engine
vllm`` runs the same tests on a real one; put your own model's path or name in its place.
"""

import pytest

from pytest_llmperf import perf

pytestmark = [
    pytest.mark.llm_server(model="tiny", max_running_requests=4, context_length=1024),
    perf(precision=0.02, max_repetitions=8),  # launches on a CPU differ by more than 2 %: no need to know one better
]


@perf
def test_single_stream(llm_server, baseline):
    run = llm_server.stream(prompt_tokens=32, output_tokens=64)
    assert run.decode_tok_s in baseline


@perf
def test_single_stream_long_prompt(llm_server, baseline):
    run = llm_server.stream(prompt_tokens=256, output_tokens=64)
    assert run.decode_tok_s in baseline


@perf(metric="ttft_ms")
def test_time_to_first_token(llm_server, baseline):
    run = llm_server.stream(prompt_tokens=256, output_tokens=4)
    assert run.ttft_ms in baseline


@perf(metric=("output_tok_s", "itl_p50_ms"))
def test_four_streams(llm_server, baseline):
    run = llm_server.load(concurrency=4, requests=24, output_tokens=32, prompt_tokens=32)
    baseline.check(run)
