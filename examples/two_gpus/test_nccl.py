"""What NCCL's settings do to decode at tensor parallelism 2, on two GPUs of one host, with nothing to download.

    llmperf tiny-model models/dummy-8b --shape 8b      # config and tokenizer, no weights (engines make them up)
    pytest examples/two_gpus/test_nccl.py -m "perf and not llm_sweep" --engine sglang --update-baselines --launches 3
    pytest examples/two_gpus/test_nccl.py -m "perf and not llm_sweep" --engine sglang                    # gate
    NCCL_PROTO=Simple pytest examples/two_gpus/test_nccl.py -k through_nccl --engine sglang               # a regression
    pytest examples/two_gpus/test_nccl.py -m llm_sweep --engine sglang --engine vllm --llmperf-json nccl.json

``NCCL_DEBUG=INFO`` makes NCCL say in the server's log which variables it took; the report's effective config has them.
vLLM may fuse all-reduce with the norm that follows, through FlashInfer, which is neither NCCL nor its own all-reduce:
that pass is off here, so that both engines choose between the same two.
"""

import pytest

from pytest_llmperf import perf

#: NVLink multicast stays off; what else is set, NCCL tells.
NCCL = {"debug": "INFO", "nvls_enable": 0}
pytestmark = pytest.mark.llm_server(
    model="models/dummy-8b",
    load_format="dummy",
    tp=2,
    context_length=4096,
    max_running_requests=16,
    nccl=NCCL,
    env={"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0"},
    sglang={"cuda_graph_max_bs_decode": 16, "disable_prefill_cuda_graph": True, "mem_fraction_static": 0.5},
    vllm={
        "gpu_memory_utilization": 0.5,
        "compilation_config": {"pass_config": {"fuse_allreduce_rms": False}},
    },
)


@perf(repetitions=10, max_repetitions=10)
def test_single_stream(llm_server, baseline):
    assert llm_server.stream(prompt_tokens=128, output_tokens=128).decode_tok_s in baseline


@perf(repetitions=10, max_repetitions=10)
@pytest.mark.llm_server(custom_all_reduce=False)
def test_single_stream_through_nccl(llm_server, baseline):
    assert llm_server.stream(prompt_tokens=128, output_tokens=128).decode_tok_s in baseline


@perf(repetitions=10, max_repetitions=10)
@pytest.mark.llm_sweep(
    base={"custom_all_reduce": False},
    custom_all_reduce=[True],
    nccl__proto=["LL", "Simple"],
    nccl__algo=["Ring"],
    nccl__p2p_level=["SYS"],
    nccl__max_nchannels=[16],
    nccl__buffsize=[16_777_216],
    nccl__nthreads=[512],
)
def test_one_variable_at_a_time(llm_server):
    llm_server.stream(prompt_tokens=128, output_tokens=128)


@perf(repetitions=10, max_repetitions=10)
@pytest.mark.llm_sweep(base={"custom_all_reduce": False}, nccl=[["ll-ring", NCCL]], name="the six together")
def test_the_six_together(llm_server):
    llm_server.stream(prompt_tokens=128, output_tokens=128)
