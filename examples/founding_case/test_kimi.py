"""The hunt that this plugin was made for: Kimi-K2.5 on eight Blackwell GPUs, SGLang 63.6 tok/s against vLLM's 82.5.

    pytest examples/founding_case -m perf --engine sglang                   # gate, and the target
    pytest examples/founding_case -m perf --engine sglang --engine vllm     # both, and the gap between them
    pytest examples/founding_case -k settings --engine sglang               # A/B: are the settings what made it faster?

It needs eight GPUs and the model; nothing here runs on a small machine. Start the engine from its own environment:

    [tool.llmperf.engines.sglang]
    command = ["/opt/sglang/bin/python", "-m", "sglang.launch_server"]

docs/how-to/find-the-gap.md goes through it.
"""

import pytest

from pytest_llmperf import perf

SETTINGS = {
    "nccl": {
        "proto": "LL",
        "algo": "Ring",
        "p2p_level": "SYS",
        "max_nchannels": 16,
        "buffsize": 16_777_216,
        "nthreads": 512,
    },
    "custom_all_reduce": False,
    "sglang": {"attention_backend": "flashinfer", "num_continuous_decode_steps": 4},
}

pytestmark = pytest.mark.llm_server(model="moonshotai/Kimi-K2.5", tp=8, startup_timeout=1800)


@perf(target=82.5)
@pytest.mark.llm_server(**SETTINGS)
def test_single_stream(llm_server, baseline):
    run = llm_server.stream(output_tokens=256)
    assert run.decode_tok_s in baseline


@perf(metric=("decode_tok_s", "acceptance_length"))
@pytest.mark.llm_server(
    engine="sglang",
    max_running_requests=64,  # unset, speculative mode would cap it at 48 without asking
    speculative={"method": "eagle3", "model": "AQ-MedAI/Kimi-K2.5-eagle3", "num_tokens": 4},
    **SETTINGS,
)
def test_single_stream_eagle3(llm_server, baseline):
    run = llm_server.stream(output_tokens=256)
    baseline.check(run)


@perf(metric="output_tok_s")
@pytest.mark.parametrize("concurrency", [1, 2, 4, 8, 16, 32, 48, 64])
@pytest.mark.llm_server(**SETTINGS)
def test_peak(llm_server, baseline, concurrency):
    run = llm_server.load(concurrency=concurrency, output_tokens=128)
    assert run.output_tok_s in baseline


@pytest.mark.llm_ab(b=SETTINGS)
@pytest.mark.llm_server(engine="sglang")
def test_settings_are_what_made_it_faster(ab):
    result = ab(lambda server: server.stream(output_tokens=256))
    assert result.better == "b"
