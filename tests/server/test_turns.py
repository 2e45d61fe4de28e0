from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_llmperf.errors import MeasurementError
from pytest_llmperf.server import turns
from pytest_llmperf.server.turns import measuring

HOLD = """
import sys
from pathlib import Path
from pytest_llmperf.server.turns import measuring
with measuring(Path(sys.argv[1]), 'sglang m, test a', print):
    print(flush=True)
    sys.stdin.read()
"""


def test_measurements_of_two_processes_take_turns(tmp_path: Path) -> None:
    entered = threading.Event()

    def measure() -> None:
        with measuring(tmp_path, "test b", print):
            entered.set()

    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdin is not None
    other.stdout.readline()
    waiting = threading.Thread(target=measure)
    waiting.start()
    assert not entered.wait(0.3)
    other.kill()  # a killed run must not hold everybody up
    assert entered.wait(10)
    waiting.join()
    other.wait()
    for pipe in (other.stdin, other.stdout):
        pipe.close()


def test_whoever_waits_is_told_for_whom_and_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SAY_S", 0.05)
    said: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        holder = f"sglang m, test a of pid {other.pid}"
        limited = measuring(tmp_path, "test b", said.append, limit=0.3)
        with pytest.raises(MeasurementError, match=f"test b: waited 0 s for the turn to measure, which {holder}"):
            limited.__enter__()
        assert said == [f"test b: waiting for the turn to measure, which {holder} holds"]
        other.kill()


def test_overlap_when_asked_for(tmp_path: Path) -> None:
    with measuring(tmp_path, "a", print), measuring(tmp_path, "b", print, enabled=False) as waited:
        assert waited == 0.0


def test_a_failing_measurement_gives_its_turn_back(tmp_path: Path) -> None:
    try:
        with measuring(tmp_path, "test b", print):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    with measuring(tmp_path, "test b", print) as waited:
        assert waited < 5.0
