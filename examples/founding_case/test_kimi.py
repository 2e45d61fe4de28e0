"""The hunt that this plugin was made for: Kimi-K2.5 on eight Blackwell GPUs, SGLang 63.6 tok/s against vLLM's 82.5.

    pytest examples/founding_case -m perf --engine sglang                   # gate, and the target
    pytest examples/founding_case -m perf --engine sglang --engine vllm     # both, and the gap between them

It needs eight GPUs and the model; nothing here runs on a small machine. Start the engine from its own environment:

    [tool.llmperf.engines.sglang]
    command = ["/opt/sglang/bin/python", "-m", "sglang.launch_server"]
"""

import pytest

from pytest_llmperf import perf

pytestmark = pytest.mark.llm_server(
    model="moonshotai/Kimi-K2.5",
    tp=8,
    nccl={
        "proto": "LL",
        "algo": "Ring",
        "p2p_level": "SYS",
        "max_nchannels": 16,
        "buffsize": 16_777_216,
        "nthreads": 512,
    },
    custom_all_reduce=False,
    sglang={"num_continuous_decode_steps": 4},
    startup_timeout=1800,
)


@perf(target=82.5)
@pytest.mark.llm_server(attention_backend="flashinfer", engine="sglang")
def test_single_stream(llm_server, baseline):
    run = llm_server.stream(output_tokens=256)
    assert run.decode_tok_s in baseline


@perf
@pytest.mark.llm_server(engine="vllm")
def test_single_stream_vllm(llm_server, baseline):
    run = llm_server.stream(output_tokens=256)
    assert run.decode_tok_s in baseline


@perf(metric=("decode_tok_s", "acceptance_length"))
@pytest.mark.llm_server(
    attention_backend="flashinfer",
    engine="sglang",
    max_running_requests=64,  # unset, speculative mode would cap it at 48 without asking
    speculative={"method": "eagle3", "model": "AQ-MedAI/Kimi-K2.5-eagle3", "num_tokens": 4},
)
def test_single_stream_eagle3(llm_server, baseline):
    run = llm_server.stream(output_tokens=256)
    baseline.check(run)
