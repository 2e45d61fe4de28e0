"""What 5,000 stored baselines cost a session before its first verdict, against a session with none.

    python benchmarks/session_start.py [--files 5000] [--tests 50] [--repeats 5]

Each repeat is a fresh process that does what a session does: find the baselines of its tests, fit the priors, and at
the end look for unused baselines among all tests. It is run with an empty folder, with a full one and no cache of the
priors (a new CI machine), and with a full one and a cache. Prints seconds (wall clock and CPU, medians) and how many
baseline files were opened; exits 1 when the full folder costs more than a second over the empty one, in CPU time.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pytest_llmperf.baselines import fitted_priors, store, unused
from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.series import Epoch, Series, StoredLaunch, utc
from pytest_llmperf.measure.metrics import METRICS

LIMIT_S = 1.0
LAUNCHES, REPETITIONS = 5, 5
MARK = Fingerprint(
    {"gpu": "NVIDIA H200", "gpu count": "1", "gpu memory": "144 GiB", "compute capability": "9.0", "definitions": "1",
     "server.engine": "sglang", "server.model": "model", "workload.output_tokens": "256"}
)  # fmt: skip


def name(number: int) -> str:
    """Test ``number`` of 5,000: a hundred modules of fifty parametrized tests each."""
    return f"tests/perf/test_module_{number // 50}.py::test_decode[{number % 50}-long]"


def fill(folder: Path, count: int) -> None:
    rng = random.Random(0)
    facts = {f"library {i} version": f"{i}.{i}.{i}" for i in range(15)}
    for number in range(count):
        launches = []
        for n in range(LAUNCHES):
            level = 80 * (1 + rng.gauss(0, 0.01))
            values = {
                metric: tuple(level * (1 + rng.gauss(0, 0.004)) for _ in range(REPETITIONS))
                for metric in ("decode_tok_s", "itl_p99_ms", "ttft_ms")
            }
            launches.append(StoredLaunch(f"l-{number}-{n}", utc(1.77e9 + n), "host", "warm", values, facts))
        series = Series(name(number), "sglang", MARK, (Epoch("first recording", tuple(launches)),))
        store.write(store.path_of(folder, series.test, series.engine, MARK), series)


def session(folder: Path, cache: Path, tests: int, collected: int) -> dict[str, Any]:
    """What a session does with baselines, timed. Run in a process of its own."""
    opened: set[str] = set()
    inside = str(folder)

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and str(args[0]).startswith(inside) and str(args[0]).endswith(".toml"):
            opened.add(str(args[0]))

    sys.addaudithook(watch)
    wall, cpu = time.perf_counter(), time.process_time()
    for number in range(0, collected, max(collected // tests, 1)):
        store.find(folder, name(number), "sglang")
    fitted = fitted_priors.fit(folder, "sglang", MARK, cache)
    start = time.perf_counter() - wall, time.process_time() - cpu
    unused.unused(folder, [(name(n), "sglang") for n in range(collected)])
    end = time.perf_counter() - wall - start[0], time.process_time() - cpu - start[1]
    source = fitted.of(METRICS["decode_tok_s"], launch_spread=0.012).source
    return {"start": start, "end": end, "opened": len(opened), "prior": source}


def measured(folder: Path, cache: Path, args: argparse.Namespace, *, cold: bool) -> dict[str, Any]:
    """Medians over fresh processes."""
    runs = []
    for _ in range(args.repeats):
        if cold:
            for entry in cache.glob("*"):
                entry.unlink()
        argv = [sys.executable, __file__, "--session", str(folder), str(cache), str(args.tests), str(args.files)]
        said = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout
        runs.append(json.loads(said))
    out: dict[str, Any] = {k: runs[-1][k] for k in ("opened", "prior")}
    for part in ("start", "end"):
        out[part] = [statistics.median(r[part][i] for r in runs) for i in (0, 1)]
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--tests", type=int, default=50, help="Tests of the session")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--session", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.session:
        folder, cache, tests, files = args.session
        print(json.dumps(session(Path(folder), Path(cache), int(tests), int(files))))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        fill(root / "full", args.files)
        (root / "empty").mkdir()
        size = sum(p.stat().st_size for p in store.files(root / "full"))
        print(f"{args.files} baseline files of {size / args.files / 1024:.1f} KiB, {args.tests} tests in the session")
        rows = {
            "no baselines": measured(root / "empty", root / "cache", args, cold=True),
            "no cache": measured(root / "full", root / "cache", args, cold=True),
            "cached": measured(root / "full", root / "cache", args, cold=False),
        }
    print(f"{'':<14}{'start, s (CPU)':>18}{'end, s (CPU)':>18}{'files opened':>14}  prior")
    for label, row in rows.items():
        cells = "".join(f"{f'{row[p][0]:.3f} ({row[p][1]:.3f})':>18}" for p in ("start", "end"))
        print(f"{label:<14}{cells}{row['opened']:>14}  {row['prior']}")
    extra = max(rows[x]["start"][1] for x in ("no cache", "cached")) - rows["no baselines"]["start"][1]
    print(f"start costs {extra:.2f} s of CPU more than with no baselines (limit {LIMIT_S:g} s)")
    return 0 if extra <= LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
