"""What engines write when they cannot start, and the cause that is told."""

from __future__ import annotations

import pytest

from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.server.diagnose import find_cause

from .probe import sample

ENGINES = builtin()


@pytest.mark.parametrize(
    ("engine", "line", "cause"),
    [
        (
            "sglang",
            "launch_server.py: error: argument --attention-backend: invalid choice: 'fa5' (choose from 'fa3')",
            "no attention backend fa5",
        ),
        (
            "sglang",
            "ValueError: TRTLLM MHA backend for decode is only supported on Hopper (SM90) GPUs.",
            "TRTLLM MHA backend for decode is only supported on Hopper (SM90) GPUs.",
        ),
        (
            "sglang",
            "Exception: flashinfer_python with minimum required version 0.7.2 is not installed. Please uninstall",
            "its environment lacks flashinfer_python 0.7.2 or newer",
        ),
        (
            "vllm",
            "ValueError: Selected backend AttentionBackendEnum.FLASHMLA is not valid for this configuration. "
            "Reason: ['compute capability not supported']",
            "Selected backend AttentionBackendEnum.FLASHMLA is not valid for this configuration. "
            "Reason: ['compute capability not supported']",
        ),
        (
            "vllm",
            "ValueError: Free memory on device cuda:0 (3.1/139.8 GiB) on startup is less than desired",
            "too little free GPU memory: Free memory on device cuda:0 (3.1/139.8 GiB) on startup is less than desired",
        ),
        (
            "vllm",
            "  Value error, num_speculative_tokens must be greater than zero [type=value_error]",
            "a wrong configuration: num_speculative_tokens must be greater than zero [type=value_error]",
        ),
        (
            "vllm",
            "(Worker pid=393) INFO 11-29 [cpu.py:178] Cannot use AttentionBackendEnum.FLASHINFER backend on CPU.",
            "vLLM cannot use attention backend FLASHINFER on CPU, and would go on with another",
        ),
        (
            "llamacpp",
            "E llama_model_load: error loading model: unknown model architecture: 'brand-new'",
            "llama.cpp does not know the architecture brand-new",
        ),
    ],
)
def test_causes(engine: str, line: str, cause: str) -> None:
    patterns = ENGINES[engine].crash_patterns
    found = [m.expand(what) for pattern, what in patterns if (m := pattern.search(f"before\n{line}\nafter"))]
    assert found[:1] == [cause]


CORE = "(EngineCore_DP0 pid=1) ERROR 12-01 10:00:00 [core.py:718] "
RAISE = "raise the memory fraction"
LOWER = "lower the memory fraction"
NO_ROOM = "no GPU memory is left for the KV cache"


@pytest.mark.parametrize(
    ("engine", "line", "code", "what", "advice"),
    [
        (
            "vllm",
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine.",
            1,
            NO_ROOM,
            RAISE,
        ),
        (
            "vllm",
            "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (6.84 GiB). Based on the available memory, "
            "the estimated maximum model length is 57344. Try increasing `gpu_memory_utilization` or decreasing "
            "`max_model_len`.",
            1,
            "the KV cache is too small: To serve at least one request",
            RAISE,
        ),
        (
            "vllm",
            "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token. "
            "Try increasing `gpu_memory_utilization`.",
            1,
            NO_ROOM,
            RAISE,
        ),
        (
            "vllm",
            "ValueError: Externally held weights on device cuda:0 (90.0/95.0 GiB) exceed the desired GPU memory "
            "utilization (0.9, 85.5 GiB). Increase GPU memory utilization or reduce GPU memory used by others.",
            1,
            NO_ROOM,
            RAISE,
        ),
        (
            "vllm",
            "ValueError: Free memory on device cuda:0 (3.1/139.8 GiB) on startup is less than desired GPU memory "
            "utilization (0.9, 125.8 GiB). Decrease GPU memory utilization or reduce GPU memory used by others.",
            1,
            "too little free GPU memory",
            LOWER,
        ),
        (
            "sglang",
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            -9,
            NO_ROOM,
            RAISE,
        ),
        (
            "sglang",
            "RuntimeError: Not enough memory to allocate KV cache.\nPossible fixes: increase --mem-fraction-static, "
            "reduce --chunked-prefill-size, or reduce --max-running-requests.",
            -9,
            NO_ROOM,
            RAISE,
        ),
        (
            "sglang",
            "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.7. Raise "
            "--mem-fraction-static above 0.812 (minimum viable = 1 - available/pre = 0.8117).",
            -9,
            NO_ROOM,
            RAISE,
        ),
        (
            "sglang",
            "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 1 GiB.\nPossible solutions:\n"
            "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)",
            -9,
            "out of GPU memory",
            LOWER,
        ),
        ("vllm", f"{CORE}RuntimeError: CUDA error: out of memory", 1, "out of GPU memory", LOWER),
        (
            "vllm",
            f"{CORE}torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled cuda error\n"
            f"{CORE}Last error:\n{CORE}Cuda failure 2 'out of memory'",
            1,
            "out of GPU memory",
            LOWER,
        ),
        (
            "vllm",
            f"{CORE}torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system "
            f"error\n{CORE}ncclSystemError: System call or external library call failed or device error.\n"
            f"{CORE}Last error:\n{CORE}socketStartConnect: Connect to 10.0.0.7<4711> failed : No route to host",
            1,
            "an NCCL error: socketStartConnect: Connect to 10.0.0.7<4711> failed : No route to host",
            "nccl={'debug': 'INFO'}",
        ),
        ("vllm", f"{CORE}RuntimeError: NCCL error: unhandled cuda error", 1, "an NCCL error", "nccl={'debug': 'INFO'}"),
        (
            "sglang",
            "DistBackendError: NCCL error in: x.cpp:1\nError while creating shared memory segment /dev/shm/nccl-Xq3 "
            "(size 33030528)",
            -9,
            "an NCCL error: no room in /dev/shm",
            "--shm-size",
        ),
        (
            "vllm",
            f"{CORE}triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error\n"
            f"{CORE}ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
            1,
            "its ptxas is too old for this GPU (sm_121a)",
            "TRITON_PTXAS_PATH",
        ),
        ("sglang", "nvcc fatal   : Unsupported gpu architecture 'compute_120a'", -9, "its nvcc is too old", "build"),
        (
            "vllm",
            f"{CORE}RuntimeError: No supported CUDA architectures found for major versions [10].",
            1,
            "a kernel does not support this GPU's architecture",
            "a build of the engine for this GPU",
        ),
        (
            "sglang",
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            -9,
            "a kernel does not support this GPU's architecture",
            "a build of the engine for this GPU",
        ),
        (
            "vllm",
            f"{CORE}TimeoutError: RPC call to sample_tokens timed out.",
            1,
            "a worker did not answer sample_tokens in time",
            "p2p_disable",
        ),
        (
            "vllm",
            f'{CORE}  File "shm_broadcast.py", line 460, in acquire_read\n{CORE}    raise TimeoutError\n'
            f"{CORE}TimeoutError",
            1,
            "a worker did not answer in time",
            "p2p_disable",
        ),
        (
            "sglang",
            "[rank1]:[E] [PG ID 2 Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, "
            "OpType=ALLREDUCE, NumelIn=1) ran for 600000 milliseconds before timing out.",
            -6,
            "its ranks waited in vain for each other (ALLREDUCE)",
            "p2p_disable",
        ),
        (
            "sglang",
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
            -9,
            "not all of its ranks joined",
            "p2p_disable",
        ),
    ],
)
def test_what_is_told_and_what_to_do_about_it(engine: str, line: str, code: int, what: str, advice: str) -> None:
    """Opposite causes have opposite advice, and the exit code that a cause led to is not it."""
    e = ENGINES[engine]
    after = "RuntimeError: Engine core initialization failed. See root cause above.\n"
    found = find_cause(f"before\n{line}\nafter\n{after}", code, e.crash_patterns, e.fatal_patterns)
    assert found.what.startswith(what)
    assert advice in found.advice
    assert [a for a in (RAISE, LOWER) if a in found.advice] in ([], [advice])


def test_a_warning_of_a_healthy_sglang_is_no_cause() -> None:
    """It has no level of its own in the log."""
    line = (
        "[2026-11-29 16:35:22 TP0] KV pool holds 900 tokens, fewer than --context-length 4096. One full-length request "
        "cannot fit. Lower --context-length, raise --mem-fraction-static, or free memory taken before."
    )
    e = ENGINES["sglang"]
    assert find_cause(line + "\n", 3, e.crash_patterns, e.fatal_patterns).what == "exit code 3"


@pytest.mark.parametrize(
    ("engine", "line"),
    [
        (
            "sglang",
            "[2026-11-29 16:35:23] SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
        ),
        ("sglang", "Received sigquit from a child process. It usually means the child failed."),
        ("vllm", "(EngineCore pid=640) ERROR 11-29 14:42:00 [core.py:1510] EngineCore failed to start."),
        ("vllm", "(Worker pid=393) INFO [cpu.py:178] Cannot use AttentionBackendEnum.FLASHINFER backend on CPU."),
    ],
)
def test_lines_that_end_a_start_before_the_process_does(engine: str, line: str) -> None:
    assert any(pattern.search(line) for pattern in ENGINES[engine].fatal_patterns)


def test_a_scheduler_that_died_in_a_real_start() -> None:
    """SGLang went on for another minute after these lines, and called itself ready before them."""
    log = sample("sglang-0.5.23-cpu-crash.log")
    assert ENGINES["sglang"].fatal_patterns[0].search(log)
    assert "IndexError: index out of range in self" in log
