"""What counts as progress, on a clock of the test's own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.server.startup_progress import StartupProgress
from tests.server.fakes import until


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        ("Loading safetensors checkpoint shards:  43% Completed | 3/7", "loading weights 43 %"),
        ("[2026-11-29 14:49:31] Load weight begin. avail mem=138.74 GB", "loading weights"),
        ("Capturing batches (bs=8 avail_mem=60.1 GB):  50%|#####     | 2/4 [00:01<00:01]", "capturing graphs 50 %"),
        ("INFO Dynamo bytecode transform; torch.compile takes 8.2 s in total", "compiling kernels"),
        ("Fetching 12 files:  25%|##        | 3/12", "downloading 25 %"),
    ],
)
def test_stages_of_any_engine(line: str, stage: str) -> None:
    progress = StartupProgress((), now=0.0)
    progress.feed(line + "\n", now=5.0)
    assert (progress.stage, progress.at) == (stage, 5.0)


def test_an_engines_own_words_come_first_and_may_use_groups() -> None:
    progress = StartupProgress([(re.compile(r"shard (\d+)"), r"reading shard \1")], now=0.0)
    progress.feed("Loading shard 3 of 9\n", now=1.0)
    assert progress.stage == "reading shard 3"


def test_chatter_is_no_progress() -> None:
    progress = StartupProgress((), now=0.0)
    progress.feed("INFO: GET /health 503\nheartbeat 17\n", now=5.0)
    assert progress.at == 0.0


def test_the_same_line_again_is_no_progress_though_its_clock_moves() -> None:
    progress = StartupProgress((), now=0.0)
    progress.feed("[2026-11-29 14:49:31] Loading weights: waiting for lock (pid=7)\n", now=1.0)
    progress.feed("[2026-11-29 14:50:31] Loading weights: waiting for lock (pid=8)\n", now=61.0)
    assert progress.at == 1.0
    progress.feed("[2026-11-29 14:51:31] Loading weights: 1 of 7\n", now=121.0)
    assert progress.at == 121.0


def test_a_heartbeat_that_names_work_is_no_progress() -> None:
    """vLLM writes it each minute while ranks wait for each other, in one line or in two."""
    progress = StartupProgress(builtin()["vllm"].progress_patterns, now=0.0)
    joining = "(Worker_TP0 pid=9) INFO 11-11 12:30:00 [parallel_state.py:1394] world_size=2 rank=0 local_rank=0\n"
    progress.feed(
        joining + "(Worker_TP0 pid=9) INFO 11-11 12:30:01 [pynccl.py:103] vLLM is using nccl==2.27.3\n", now=1.0
    )
    head = "(EngineCore_DP0 pid=7) INFO 11-11 12:31:53 [shm_broadcast.py:466] "
    lost = "No available shared memory broadcast block found in 60 seconds."
    rest = "This typically happens when some processes are hanging or doing some time-consuming work (e.g. compilation"
    progress.feed(f"{head}{lost} {rest}).\n", now=61.0)
    progress.feed(f"{head}{lost}\n{head}{rest}, weight/kv cache quantization).\n", now=121.0)
    assert (progress.stage, progress.at) == ("joining ranks", 1.0)


def test_a_bare_bar_belongs_to_the_stage_before_it() -> None:
    progress = StartupProgress((), now=0.0)
    progress.feed("Capture target decode CUDA graph begin.\n  50%|#####     | 2/4 [00:01<00:01]\n", now=1.0)
    assert progress.stage == "capturing graphs 50 %"
    progress.feed("  75%|#######   | 3/4 [00:01<00:01]\n", now=2.0)
    assert progress.stage == "capturing graphs 75 %"


def test_a_bar_that_rewrites_its_line_and_pieces_of_lines() -> None:
    progress = StartupProgress((), now=0.0)
    progress.feed("\rLoading weights: 10%", now=1.0)
    progress.feed("\rLoading weights: 20%\rLoading wei", now=2.0)
    assert (progress.stage, progress.at) == ("loading weights 20 %", 2.0)
    progress.feed("ghts: 30%\n", now=3.0)
    assert (progress.stage, progress.at) == ("loading weights 30 %", 3.0)


def test_a_working_compiler_is_progress_without_a_line_in_the_log(tmp_path: Path) -> None:
    compiler = tmp_path / "cicc"
    compiler.symlink_to(Path(sys.executable).resolve())
    work = "import sys\nfor line in sys.stdin:\n    sum(range(3_000_000))\n    print(flush=True)\n"
    env = {"PYTHONHOME": sys.base_prefix} if shutil.which("python3") else {}
    with subprocess.Popen(
        [compiler, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        process = psutil.Process(running.pid)
        until(lambda: process.name() == "cicc")
        progress = StartupProgress((), now=0.0)
        progress.compilers([process], now=1.0)
        assert (progress.stage, progress.at) == ("compiling kernels (cicc)", 1.0)
        progress.compilers([process], now=2.0)
        idle = progress.at
        running.stdin.write("go\n")
        running.stdin.flush()
        running.stdout.readline()
        progress.compilers([process], now=3.0)
        assert progress.at == 3.0
        assert idle in (1.0, 2.0)  # 2.0 when the interpreter was still starting
        running.stdin.close()
