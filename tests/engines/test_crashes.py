"""What engines write when they cannot start, and the cause that is told."""

from __future__ import annotations

import pytest

from pytest_llmperf.engines.registry import builtin

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
            "sglang",
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            "out of GPU memory for the KV cache",
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
