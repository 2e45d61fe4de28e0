"""The cause comes first, in words, whatever the engine printed around it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_llmperf.server.diagnose import LINE_WIDTH, exit_text, find_cause, port_lost, tail
from tests.fake_engine.faults import CRASHES, HOSTILE

CAUSES = {
    "oom": "out of GPU memory",
    "nccl": "an NCCL error",
    "backend": "the attention backend is not supported here",
    "arch": "the engine does not support this model's architecture",
    "kernel": "a kernel does not support this GPU's architecture",
    "model": "the model could not be found or read",
    "gated": "the model could not be found or read",
    "port": "its port was already in use",
    "module": "the Python that starts it has no module flashinfer",
    "usage": "it does not know the flag --no-such-flag 3",
    "context": "no GPU memory is left for the KV cache",
    "segfault": "crashed (SIGSEGV)",
    "illegal": "CUDA error: an illegal memory access was encountered",
}


@pytest.mark.parametrize("name", CAUSES)
def test_known_crashes_are_named(name: str) -> None:
    noise = "[2026-11-29 14:49:27] INFO starting\n"
    after = "\nRuntimeError: Engine core initialization failed. See root cause above.\n"
    found = find_cause(noise + CRASHES[name] + after, -11 if name == "segfault" else 1)
    assert CAUSES[name] in found.what
    assert found.line or name in ("segfault", "illegal")


def test_an_engines_own_sign_wins_and_may_use_its_groups() -> None:
    own = [(re.compile(r"Rank (\d+) scheduler is dead"), r"the scheduler of rank \1 died")]
    found = find_cause("ImportError: x\nRank 3 scheduler is dead. See above\n", 1, own)
    assert found.what == "the scheduler of rank 3 died"
    assert found.line == "Rank 3 scheduler is dead. See above"


def test_an_engines_own_sign_keeps_the_general_advice() -> None:
    own = [(re.compile(r"torch\.OutOfMemoryError: [^\n]*"), "out of GPU memory while loading")]
    found = find_cause(CRASHES["oom"], 1, own)
    assert found.what == "out of GPU memory while loading"
    assert "mem_fraction_static" in found.advice


@pytest.mark.parametrize(
    ("code", "words"),
    [(-9, "killed by SIGKILL"), (-4, "SIGILL"), (-7, "SIGBUS"), (3, "exit code 3"), (-12, "ended by SIGUSR2")],
)
def test_without_a_word_in_the_log_the_exit_code_speaks(code: int, words: str) -> None:
    assert words in find_cause("all fine\n", code).what


def test_an_unknown_exception_is_quoted_but_not_the_one_that_points_back() -> None:
    log = (
        "(EngineCore pid=640) ERROR Traceback (most recent call last):\n"
        "(EngineCore pid=640) ERROR 11-29 14:42:00 [core.py:1] KeyError: 'model.layers.0'\n"
        "(APIServer pid=510) RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert find_cause(log, 1).what == "KeyError: 'model.layers.0'"


def test_the_first_sign_in_the_log_is_shown() -> None:
    log = "torch.OutOfMemoryError: CUDA out of memory. first\n" + "worker: CUDA out of memory. echo\n" * 5
    assert find_cause(log, 1).line.endswith("first")


def test_real_logs_of_good_starts_show_no_cause() -> None:
    for text in (
        "INFO 11-29 14:42:00 Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN']\n",
        "[2026-11-29 14:49:28] Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit\n",
        "[2026-11-29 14:49:56] Ignore import error when loading sglang.srt.models.inkling: No module named 'helion'\n",
        "WARNING Custom allreduce is disabled because your platform lacks GPU P2P capability\n",
    ):
        assert find_cause(text, 1).what == "exit code 1"


def test_the_end_of_a_log_says_more_than_its_beginning() -> None:
    survived = "torch.OutOfMemoryError: CUDA out of memory. retried with less\n"
    log = survived + "step\n" * 500 + "ModuleNotFoundError: No module named 'flashinfer'\n"
    assert "flashinfer" in find_cause(log, 1).what
    assert find_cause(survived + "step\n" * 500, 1).what == "out of GPU memory"


def test_hostile_bytes_are_shown_harmless() -> None:
    shown = tail(HOSTILE.decode("utf-8", "replace"), 50)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", shown.replace("\n", ""))
    assert max(map(len, shown.splitlines())) <= LINE_WIDTH + len("  | ")
    assert "owned" not in shown  # the window title that the log tried to set


def test_an_endless_line_takes_no_time() -> None:
    endless = "not enough memory free memory on device " * 200_000
    assert find_cause(endless, 3).what == "exit code 3"


def test_a_tail_is_the_last_lines_and_an_empty_log_says_so() -> None:
    assert tail("\n".join(str(n) for n in range(100)), 2) == "  | 98\n  | 99"
    assert "wrote nothing" in tail("")


def test_port_lost_reads_every_engines_words(tmp_path: Path) -> None:
    assert port_lost(CRASHES["port"])
    assert port_lost("OSError: [Errno 98] Address already in use")
    assert port_lost("main: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 1")
    assert not port_lost("INFO: Uvicorn running on http://127.0.0.1:30000")


@pytest.mark.parametrize(
    ("code", "words"), [(137, "killed by SIGKILL, and not by this session (exit code 137)"), (139, "(SIGSEGV)")]
)
def test_a_shell_or_a_container_passes_a_signal_on_as_an_exit_code(code: int, words: str) -> None:
    found = find_cause("all fine\n", code)
    assert words in found.what
    assert found.advice


def test_an_exception_comes_before_the_signal_that_it_led_to() -> None:
    """SGLang's launcher kills itself when a child has raised; what the child raised is the cause."""
    log = (
        "[2026-11-29 16:35:22 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        "AttributeError: 'NoneType' object has no attribute 'rope_scaling'\n"
        "[2026-11-29 16:35:23] Received sigquit from a child process. It usually means the child failed.\n"
        "EOFError: the pipe to TP0\n"
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -3). If exit code is -9 (SIGKILL), a "
        "common cause is the OS OOM killer.\n"
    )
    found = find_cause(log, -9, fatal_patterns=[re.compile("Received sigquit")])
    assert found.what == "AttributeError: 'NoneType' object has no attribute 'rope_scaling'"
    assert "memory" not in found.advice


def test_an_exception_that_was_survived_long_ago_does_not_explain_a_signal() -> None:
    log = "ValueError: optional kernel is missing\n" + "step\n" * 500
    assert "killed by SIGKILL" in find_cause(log, -9).what
    assert find_cause(log, 1).what == "ValueError: optional kernel is missing"


def test_native_code_that_fails_is_not_explained_by_an_exception_before_it() -> None:
    assert find_cause(f"ValueError: survived\n{CRASHES['segfault']}\n", -11).what == "crashed (SIGSEGV)"


def test_a_launcher_that_kills_itself_without_a_word_of_why_does_not_blame_memory() -> None:
    fatal = re.compile("Received sigquit from a child process")
    found = find_cause("Received sigquit from a child process. It usually means the child failed.\n", -9, (), [fatal])
    assert found.what == "one of its processes failed without saying why"
    assert "Received sigquit" in found.line
    assert "memory" not in found.advice


def test_a_child_that_was_killed_is_blamed_on_who_kills() -> None:
    log = (
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), ...\n"
    )
    assert find_cause(log, 1).what == "killed by SIGKILL, and not by this session"


def test_a_rank_that_saw_another_one_go_is_no_cause() -> None:
    log = (
        "KeyError: 'model.layers.61.mlp'\n"
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or network error\n"
        "ConnectionResetError: [Errno 104] Connection reset by peer\n"
    )
    assert find_cause(log, 1).what == "KeyError: 'model.layers.61.mlp'"
    assert "ConnectionResetError" in find_cause(log.partition("\n")[2], 1).what


def test_exit_text() -> None:
    assert exit_text(0) == "exit code 0"
    assert exit_text(-200) == "signal 200"


def test_a_fatal_line_is_the_cause_whatever_its_level() -> None:
    """vLLM refuses a backend at level INFO."""
    refused = re.compile(r"Cannot use (\w+) backend")
    log = "(Worker pid=1) INFO 11-29 18:03:15 [cpu.py:178] Cannot use FLASHINFER backend on CPU.\n"
    patterns = [(refused, r"no \1 here")]
    assert str(find_cause(log, None, patterns, [refused])).startswith("no FLASHINFER here")
    assert str(find_cause(log, None, patterns)) == "no known cause in its log"
