"""What the plugin adds to a server's life, against the least that could do the same job.

    python benchmarks/lifecycle.py [--rounds N] [--output FILE]

The engine is the stand-in of the tests, so that its own times are known: these are figures about this plugin, not
about any engine. *Hand-over* runs from the moment the server first answers /health with 200 (seen by a watcher that
polls every 2 ms) to the moment a test may measure. Within it the plugin proves whose socket and key it is, generates
tokens and reads the effective config; the bare way is one completion by the same client. *Stop* runs from the last
test to the end of the last process of the tree: an engine with two workers and two orphaned, deaf grandchildren, which
get half a second to end by themselves; the bare way is SIGTERM and wait, which leaves orphans behind. Both ways take
turns, and the table shows medians, so that a busy machine hurts both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from pytest_llmperf.engines.base import Endpoint, Engine, EngineSettings
from pytest_llmperf.engines.sglang.sglang_adapter import SGLang
from pytest_llmperf.server import http, ports
from pytest_llmperf.server.gpu_inventory import hardware
from pytest_llmperf.server.launch import PoolSettings
from pytest_llmperf.server.pool import ServerPool
from pytest_llmperf.server.readiness import COMPLETIONS, completion
from pytest_llmperf.server_config import ServerConfig

FAKE = Path(__file__).parents[1] / "tests" / "fake_engine" / "__main__.py"


@dataclass(frozen=True)
class Round:
    """Seconds of one launch; ``left`` counts processes that outlived its stop."""

    hand_over: float
    stop: float
    left: int


class CpuEngine(SGLang):
    """SGLang's adapter, without a claim on GPUs."""

    uses_gpu = False


class Watcher(threading.Thread):
    """Notes when the server on the port that the stand-in reported first answers /health with 200."""

    def __init__(self, launches: Path) -> None:
        super().__init__(daemon=True)
        self._launches = launches
        self.ready_at = 0.0
        self.start()

    def run(self) -> None:
        while not self._launches.exists() or not self._launches.read_text().endswith("\n"):
            time.sleep(0.002)
        port = json.loads(self._launches.read_text().splitlines()[-1])["port"]
        while http.get(Endpoint("127.0.0.1", port), "/health").status != 200:
            time.sleep(0.002)
        self.ready_at = time.monotonic()


def config(folder: Path) -> ServerConfig:
    env = {"FAKE_LAUNCH_LOG": str(folder / "launches"), "FAKE_PIDS_FILE": str(folder / "pids"), "FAKE_CHILDREN": "2"}
    return ServerConfig("sglang", "fake-model", env={**env, "FAKE_ORPHANS": "2", "FAKE_START_S": "0.2"})


def left_over(folder: Path) -> list[psutil.Process]:
    """Processes of that launch that still run."""
    found = []
    for line in (folder / "pids").read_text().splitlines():
        try:
            process = psutil.Process(int(line.split()[1]))
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def ours(folder: Path, engine: Engine) -> Round:
    settings = PoolSettings(
        log_dir=folder / "logs",
        state_dir=folder / "state",
        engines={"sglang": EngineSettings(command=(sys.executable, str(FAKE), "sglang"))},
    )
    pool = ServerPool(settings, {"sglang": engine}, lambda line: None)
    watcher = Watcher(folder / "launches")
    pool.get(config(folder))
    handed = time.monotonic()
    watcher.join()
    pool.close()
    stopped = time.monotonic()
    return Round(handed - watcher.ready_at, stopped - handed, len(left_over(folder)))


def bare(folder: Path, engine: Engine) -> Round:
    asked = config(folder)
    reservation = ports.reserve("127.0.0.1", hold=False)
    endpoint = Endpoint("127.0.0.1", reservation.port)
    command = engine.command(asked, EngineSettings(command=(sys.executable, str(FAKE), "sglang")), endpoint)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command.argv, env={**os.environ, **command.env}, stdout=log, stderr=log)
    watcher = Watcher(folder / "launches")
    while http.get(endpoint, engine.health_path).status != 200:
        time.sleep(0.1)
    http.Exchange(endpoint, "POST", COMPLETIONS, completion(engine, asked)).answer()
    handed = time.monotonic()
    watcher.join()
    process.terminate()
    process.wait()
    stopped = time.monotonic()
    left = left_over(folder)
    for orphan in left:
        orphan.kill()
    return Round(handed - watcher.ready_at, stopped - handed, len(left))


def run(way: Callable[[Path, Engine], Round]) -> Round:
    with tempfile.TemporaryDirectory() as folder:
        return way(Path(folder), CpuEngine())


def table(rounds: dict[str, list[Round]]) -> str:
    def row(name: str, values: dict[str, list[float]]) -> str:
        mine, least = (statistics.median(values[way]) * 1000 for way in ("ours", "bare"))
        return f"| {name} | {mine:.0f} ms | {least:.0f} ms | {mine / least:.1f} |"

    here = hardware()
    left = {way: sum(r.left for r in found) for way, found in rounds.items()}
    return "\n".join(
        [
            f"Stand-in engine, medians of {len(rounds['ours'])} rounds; {here.cores} cores of {here.cpu}, "
            f"{platform.system()} {platform.release()}, Python {platform.python_version()}, "
            f"load {os.getloadavg()[0]:.1f}",
            "",
            "| | plugin | bare | ratio |",
            "|---|---|---|---|",
            row("ready to hand-over", {way: [r.hand_over for r in found] for way, found in rounds.items()}),
            row("last test to last process gone", {way: [r.stop for r in found] for way, found in rounds.items()}),
            f"| processes left behind, all rounds | {left['ours']} | {left['bare']} | |",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="Launches of each way")
    parser.add_argument("--output", type=Path, metavar="FILE", help="Write the table there too")
    args = parser.parse_args()
    rounds: dict[str, list[Round]] = {"ours": [], "bare": []}
    for _ in range(args.rounds):
        rounds["ours"].append(run(ours))
        rounds["bare"].append(run(bare))
    text = table(rounds)
    print(text)
    if args.output:
        args.output.write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    main()
