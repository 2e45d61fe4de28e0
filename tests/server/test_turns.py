from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from pytest_llmperf.server.turns import measuring

HOLD = """
import sys
from pathlib import Path
from pytest_llmperf.server.turns import measuring
with measuring(Path(sys.argv[1])):
    print(flush=True)
    sys.stdin.read()
"""


def test_measurements_of_two_processes_take_turns(tmp_path: Path) -> None:
    entered = threading.Event()

    def measure() -> None:
        with measuring(tmp_path):
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


def test_overlap_when_asked_for(tmp_path: Path) -> None:
    with measuring(tmp_path), measuring(tmp_path, enabled=False) as waited:
        assert waited == 0.0


def test_a_failing_measurement_gives_its_turn_back(tmp_path: Path) -> None:
    try:
        with measuring(tmp_path):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    with measuring(tmp_path) as waited:
        assert waited < 5.0
