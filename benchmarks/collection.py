"""What the plugin costs at collection: 5,000 perf tests over 50 configs, with it and without it.

    python benchmarks/collection.py [--tests N] [--configs N] [--rounds N]

Collects the same folder with ``-m perf --engine sglang`` and with ``-p no:llmperf`` in turns, each in a process of its
own, and prints the medians of their CPU times and the ratio. Without the plugin pytest neither reads the markers nor
groups tests by server, so the ratio is the price of that.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HEAD = """
import pytest
from pytest_llmperf import perf
pytestmark = pytest.mark.llm_server(model="org/model", tp=2, nccl={"proto": "LL"}, sglang={"stream_interval": %d})
"""
TEST = """
@perf(target=82.5)
def test_%d(llm_server, baseline):
    assert llm_server.stream().decode_tok_s in baseline
"""
WITHOUT = """
import pytest

@pytest.fixture
def llm_server(): ...

@pytest.fixture
def baseline(): ...
"""


def write(folder: Path, tests: int, configs: int) -> None:
    """``configs`` modules that share the tests, and the fixtures that are missing without the plugin."""
    for n in range(configs):
        body = "".join(TEST % i for i in range(tests // configs))
        (folder / f"test_{n:03}.py").write_text(HEAD % (n + 1) + body)


def cpu_seconds(folder: Path, *words: str) -> float:
    """User and system time of one collection."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *words]
    with (folder / "out.txt").open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit((folder / "out.txt").read_text()[-2000:])
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tests", type=int, default=5000, metavar="N", help="Tests in all")
    parser.add_argument("--configs", type=int, default=50, metavar="N", help="Different server configs")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="Collections of each kind")
    args = parser.parse_args()
    with_it: list[float] = []
    without: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, args.tests, args.configs)
        conftest = folder / "conftest.py"
        for _ in range(args.rounds):
            conftest.write_text("")
            with_it.append(cpu_seconds(folder, "-m", "perf", "--engine", "sglang"))
            conftest.write_text(WITHOUT)
            without.append(cpu_seconds(folder, "-p", "no:llmperf"))
    mine, plain = statistics.median(with_it), statistics.median(without)
    print(f"{args.tests} tests, {args.configs} configs, medians of {args.rounds}; Python {platform.python_version()}")
    print(f"with the plugin {mine:.1f} s CPU, without {plain:.1f} s CPU, ratio {mine / plain:.2f}")


if __name__ == "__main__":
    main()
