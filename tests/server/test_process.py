"""pytest's end of a supervisor, with engines of a few lines."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_llmperf.server.masking import Environment, Masker
from pytest_llmperf.server.process import EngineProcess, ProcessSpec, Remains
from tests.server.fakes import alive, until

LISTEN = """
import signal, sys, time
def heard(number, frame):
    print("heard", signal.Signals(number).name, flush=True); sys.exit(0)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, heard)
print("up", flush=True)
time.sleep(60)
"""


class Starts:
    def __init__(self, folder: Path) -> None:
        self.log = folder / "engine.log"
        self.made: list[EngineProcess] = []

    def __call__(self, code: str, env: dict[str, str] | None = None, **spec: Any) -> EngineProcess:
        argv = spec.pop("argv", (sys.executable, "-c", code))
        environment = Environment({"PATH": os.environ["PATH"], **(env or {})})
        masker = Masker(spec.pop("secrets", ()))
        made = EngineProcess(ProcessSpec("launch-1", argv, environment, self.log, masker, **{"grace": 2.0, **spec}))
        self.made.append(made)
        return made

    def said(self, words: str) -> bool:
        return words in self.log.read_text("utf-8", "replace")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starts]:
    starts = Starts(tmp_path)
    yield starts
    for process in starts.made:
        process.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_engine_hears_the_signal_it_deserves(start: Starts, number: signal.Signals) -> None:
    process = start(LISTEN, stop_signal=number)
    until(lambda: start.said("up"))
    assert process.stop() == Remains()
    assert start.said(f"heard {number.name}")
    assert process.code == 0


def test_a_stop_asked_for_at_once_is_heard(start: Starts) -> None:
    process = start("import time; time.sleep(60)", grace=30.0)
    before = time.monotonic()
    assert process.stop() == Remains()
    assert time.monotonic() - before < 15.0
    assert process.remains is not None
    assert not process.lost
    assert process.stop() == Remains()


def test_the_end_is_reported_with_its_code(start: Starts) -> None:
    process = start("import sys; sys.exit(3)")
    until(lambda: not process.poll(0.1))
    assert process.code == 3
    killed = start("import os; os.kill(os.getpid(), 9)")
    until(lambda: not killed.poll(0.1))
    assert killed.code == -9


def test_a_program_that_is_missing(start: Starts) -> None:
    process = start("", argv=("/no/such/program",))
    until(lambda: not process.poll(0.1))
    assert process.failed is not None
    assert "/no/such/program" in process.failed
    assert process.stop() == Remains()


def test_an_environment_larger_than_a_pipe(start: Starts) -> None:
    big = {f"V{n}": "x" * 1000 for n in range(300)}
    process = start("import os; print(sum(k.startswith('V') for k in os.environ), flush=True)", env=big)
    until(lambda: not process.poll(0.1))
    assert start.said("300")


def test_odd_bytes_pass_through(start: Starts) -> None:
    odd = b"caf\xe9".decode("utf-8", "surrogateescape")
    process = start("import os, sys; print(os.environb[b'ODD'], sys.argv[1:], flush=True)", env={"ODD": odd})
    until(lambda: not process.poll(0.1))
    assert start.said(repr(b"caf\xe9"))


def test_secrets_are_gone_from_the_log_once_the_engine_has_ended(start: Starts) -> None:
    code = "import sys\nfor n in range(60_000): print('padding', n)\nprint('key=' + 'sk-' + 'secret-1', flush=True)"
    process = start(code, secrets=["sk-secret-1"])
    until(lambda: not process.poll(0.1))
    process.stop()
    text = start.log.read_text()
    assert text.endswith("key=***\n")
    assert text.count("padding") == 60_000
    assert start.log.stat().st_mode & 0o777 == 0o600


def test_a_secret_across_the_seam_of_two_reads_is_found(start: Starts) -> None:
    code = "import sys; sys.stdout.write('x' * ((1 << 20) - 3) + 'sk-' + 'secret-1' + 'y' * (1 << 20))"
    process = start(code, secrets=["sk-secret-1"])
    until(lambda: not process.poll(0.1))
    process.stop()
    text = start.log.read_text()
    assert text == "x" * ((1 << 20) - 3) + "***" + "y" * (1 << 20)


def test_a_storm_of_children_is_ended(start: Starts) -> None:
    """Each child starts another and ends, in sessions of their own, faster than anybody can count them."""
    code = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nend = time.time() + 60\n"
        "print('up', flush=True)\n"
        "while time.time() < end:\n    if os.fork() == 0: os.setsid(); continue\n    time.sleep(0.002); os._exit(0)\n"
    )
    process = start(
        "import os, sys, time\n"
        f"if os.fork() == 0: os.execv(sys.executable, [sys.executable, '-c', {code!r}])\ntime.sleep(60)"
    )
    until(lambda: start.said("up"))
    supervisor = psutil.Process(process.supervisor_pid)
    assert supervisor.children(recursive=True)
    assert process.stop() == Remains()
    assert alive([process.supervisor_pid]) == []
    cookie = [p for p in psutil.process_iter() if _carries(p)]
    assert cookie == []


def _carries(process: psutil.Process) -> bool:
    try:
        return process.environ().get("LLMPERF_LAUNCH") == "launch-1" and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False


def test_a_stopped_process_is_ended_too(start: Starts) -> None:
    process = start("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", grace=0.5)
    until(lambda: process.poll(0.1) and process.pid)
    assert process.pid is not None
    pid = process.pid
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    assert process.stop() == Remains()
    assert alive([pid]) == []


def test_gpus_whose_driver_fails_during_the_stop_are_not_called_free(
    start: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).with_name("fake_driver")), *sys.path])
    monkeypatch.setenv("LLMPERF_TEST_NVML", str(tmp_path / "nvml.json"))
    facts = {"gpus": [{"uuid": "GPU-aaaa"}]}
    (tmp_path / "nvml.json").write_text(json.dumps(facts))
    process = start("import time; time.sleep(60)", gpus=("GPU-aaaa",), gpu_timeout=0.2)
    until(lambda: process.poll(0.1) and process.pid)
    (tmp_path / "nvml.json").write_text(json.dumps({**facts, "fails": {"nvmlInit": "Unknown"}}))
    assert process.stop() == Remains(unseen=True)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no shared memory to look at")
def test_shared_memory_of_an_engine_that_had_to_be_killed_is_removed(start: Starts) -> None:
    """Python's resource tracker removes it, unless it is killed together with those that it tracks."""
    process = start(
        "import signal, time\nfrom multiprocessing.shared_memory import SharedMemory\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nkept = SharedMemory(create=True, size=4096)\n"
        "print(f'memory {kept.name} up', flush=True)\ntime.sleep(60)",
        grace=0.0,
    )
    until(lambda: start.said(" up"))
    segment = Path("/dev/shm") / start.log.read_text().split()[1]
    assert segment.exists()
    assert process.stop() == Remains()
    assert not segment.exists()
