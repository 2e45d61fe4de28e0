"""What the plugin costs at collection: 5,000 perf tests over 50 configs, with it and without it.

    python benchmarks/collection.py [--tests N] [--configs N] [--rounds N]

Collects the same folder in turns, each time in a process of its own: with ``-m perf --engine sglang``; with
``-p no:llmperf`` and two fixtures of the same names; and with ``-p no:llmperf`` where these have a parameter ``engine``
like the plugin's. Prints the medians of their CPU times and the ratios: the first one holds pytest's
own price of a parameter, the second one that of reading markers, grouping tests by server and ordering them.
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


PARAMETRIZED = """
import pytest

@pytest.fixture
def engine(request):
    return request.param

@pytest.fixture
def llm_server(engine): ...

@pytest.fixture
def baseline(): ...

def pytest_generate_tests(metafunc):
    metafunc.parametrize("engine", ["sglang"], indirect=True)
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
    kinds = {
        "with the plugin": ("", ("-m", "perf", "--engine", "sglang")),
        "two fixtures": (WITHOUT, ("-p", "no:llmperf")),
        "two fixtures and a parameter": (PARAMETRIZED, ("-p", "no:llmperf")),
    }
    spent: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, args.tests, args.configs)
        for _ in range(args.rounds):
            for kind, (conftest, words) in kinds.items():
                (folder / "conftest.py").write_text(conftest)
                spent[kind].append(cpu_seconds(folder, *words))
    mine, *plain = (statistics.median(values) for values in spent.values())
    print(f"{args.tests} tests, {args.configs} configs, medians of {args.rounds}; Python {platform.python_version()}")
    print(f"with the plugin {mine:.1f} s CPU")
    for kind, seconds in zip(list(kinds)[1:], plain, strict=True):
        print(f"{kind} without it {seconds:.1f} s CPU, ratio {mine / seconds:.2f}")


if __name__ == "__main__":
    main()
