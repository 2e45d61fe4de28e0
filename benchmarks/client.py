"""How true and how cheap the client is, against a server that knows the truth and against other clients.

    python benchmarks/client.py                          # everything, about half an hour
    python benchmarks/client.py --rounds 1 --quick       # does it run
    python benchmarks/client.py --peer guidellm=/opt/guidellm/bin/python --tokenizer FOLDER

Clients take turns in an order that is drawn anew every round; each run is a process of its own on a fresh server. The
table shows medians over rounds of (client - truth); the worst round stands behind the median.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import client_peers
import numpy as np
from client_peers import Load
from ground_truth import GroundTruth

HERE = Path(__file__).parent
OWN = "pytest-llmperf"


@dataclass(frozen=True)
class Scenario:
    """``requests`` in all, over ``concurrency`` streams."""

    name: str
    itl_ms: float
    pattern: str
    requests: int
    tokens: int
    concurrency: int = 1
    ttft_ms: float = 20.0

    @property
    def chunks_s(self) -> float:
        """Chunks a second over all streams."""
        tokens = [int(n) for n in self.pattern.split(",")]
        return self.concurrency / (self.itl_ms / 1e3) / (sum(tokens) / len(tokens))


SINGLE = [
    Scenario(f"1 stream, ITL {itl} ms, {label} a chunk", itl, pattern, 8, tokens)
    for itl, tokens in ((12.1, 128), (2.0, 256), (0.5, 512))
    for pattern, label in (("1", "1 token"), ("4", "4 tokens"), ("1,4,2", "mixed tokens"))
]
MANY = [
    Scenario(f"{c} streams at {rate} tok/s", 1e3 / rate, "1", 3 * c, 64 if rate < 100 else 256, c)
    for c, rate in ((16, 82.5), (64, 82.5), (256, 82.5), (256, 400))
]
SATURATION = [
    Scenario(f"{c * rate // 1000}k chunks/s", 1e3 / rate, "1", 2 * c, int(2 * rate), c)
    for c, rate in ((32, 100), (64, 250), (64, 500), (128, 500), (240, 500))
]


def true_values(truth: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Per request, by METHOD's definitions, from the server's own send times."""
    out: dict[str, list[float]] = {"tok_s": [], "ttft_ms": [], "itl_p50_ms": [], "itl_p99_ms": []}
    for record in truth:
        at, tokens = np.array(record["at"]), np.array(record["tokens"])
        gaps = np.repeat(np.diff(at) / tokens[1:], tokens[1:]) * 1e3
        out["tok_s"].append(float(tokens[1:].sum() / (at[-1] - at[0])))
        out["ttft_ms"].append(float(at[0] - record["t0"]) * 1e3)
        out["itl_p50_ms"].append(float(np.percentile(gaps, 50)))
        out["itl_p99_ms"].append(float(np.percentile(gaps, 99)))
    return out


def clients_for(scenario: Scenario, peers: Mapping[str, str], chosen: Sequence[str] = ()) -> list[str]:
    """All that can play it, or those of them whose name holds one of ``chosen``."""
    plain = "openai" if scenario.concurrency == 1 else "openai async"
    return [name for name in (OWN, plain, *peers) if not chosen or any(part in name for part in chosen)]


def run(client: str, scenario: Scenario, peers: Mapping[str, str], tokenizer: str) -> dict[str, float]:
    """(client - truth) of one run: shares for rates and gaps, ms for TTFT; CPU seconds per 1000 tokens."""
    crowd = scenario.concurrency > 1
    with GroundTruth(scenario.itl_ms, scenario.ttft_ms, scenario.pattern, lockstep=crowd) as server:
        meter = None
        if client in peers:
            load = Load(server.port, scenario.requests, scenario.tokens, scenario.concurrency, tokenizer)
            got, meter = client_peers.run(client, peers[client], load)
        else:
            numbers = (server.port, scenario.requests, scenario.tokens, scenario.concurrency)
            words = [sys.executable, str(HERE / "client_runs.py"), client, *(str(n) for n in numbers)]
            done = subprocess.run(words, check=False, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{client}: {done.stderr[-2000:]}")
            got = json.loads(done.stdout)
        log = server.truth()[-len(got["tok_s"]) :]
    truth = true_values(log)
    if meter is not None:
        cpu = meter.between(min(r["t0"] for r in log), max(r["at"][-1] for r in log))
        got |= {"cpu_s": cpu, "tokens": sum(sum(r["tokens"]) for r in log)}
    mean = statistics.fmean
    return {
        "tok_s": mean(got["tok_s"]) / mean(truth["tok_s"]) - 1,
        "ttft_ms": mean(got["ttft_ms"]) - mean(truth["ttft_ms"]),
        "itl_p50": mean(got["itl_p50_ms"]) / mean(truth["itl_p50_ms"]) - 1,
        "itl_p99": mean(got["itl_p99_ms"]) / mean(truth["itl_p99_ms"]) - 1,
        "cpu": got["cpu_s"] / got["tokens"] * 1e3,
    }


Results = dict[str, dict[str, list[dict[str, float]]]]


def play(
    scenarios: Sequence[Scenario], rounds: int, peers: dict[str, str], tokenizer: str, chosen: Sequence[str] = ()
) -> Results:
    rng = random.Random(1)
    results: Results = {}
    for number in range(rounds):
        turns = [(s, c) for s in scenarios for c in clients_for(s, peers, chosen)]
        rng.shuffle(turns)
        for scenario, client in turns:
            print(f"round {number + 1} of {rounds}: {scenario.name}: {client}", file=sys.stderr, flush=True)
            try:
                row = run(client, scenario, peers, tokenizer)
            except RuntimeError as error:
                print(error, file=sys.stderr)
                continue
            results.setdefault(scenario.name, {}).setdefault(client, []).append(row)
    return results


def table(results: Results, scenarios: Sequence[Scenario]) -> str:
    """Markdown: median over rounds, the worst round in brackets."""
    lines = [
        "| scenario | client | tok/s | TTFT added, ms | ITL p50 | ITL p99 | CPU s per 1000 tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for scenario in scenarios:
        for client, rows in sorted(results.get(scenario.name, {}).items(), key=lambda item: item[0] != OWN):
            cells = [_cell(rows, name, name != "ttft_ms") for name in ("tok_s", "ttft_ms", "itl_p50", "itl_p99")]
            cells.append(f"{statistics.median(row['cpu'] for row in rows):.3f}")
            lines.append(f"| {scenario.name} | {client} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(rows: Sequence[Mapping[str, float]], name: str, share: bool) -> str:
    values = [row[name] for row in rows]
    median, worst = statistics.median(values), max(values, key=abs)
    return f"{median:+.2%} ({worst:+.2%})" if share else f"{median:+.2f} ({worst:+.2f})"


def targets(results: Results) -> list[str]:
    """What the client promises, each with whether this run kept it."""
    said: list[str] = []

    def check(what: str, kept: bool, value: str) -> None:
        said.append(f"{'kept  ' if kept else 'MISSED'} {what}: {value}")

    def median(scenario: str, client: str, name: str) -> float | None:
        rows = results.get(scenario, {}).get(client)
        return statistics.median(row[name] for row in rows) if rows else None

    bounds = {s.name: (0.002, 0.3) for s in SINGLE} | {MANY[1].name: (0.005, 2.0), MANY[3].name: (0.01, None)}
    for scenario, (rate, added) in bounds.items():
        bias, ttft, cpu = (median(scenario, OWN, name) for name in ("tok_s", "ttft_ms", "cpu"))
        if bias is None or ttft is None or cpu is None:
            continue
        check(f"{scenario}: tok/s within {rate:.1%}", abs(bias) <= rate, f"{bias:+.3%}")
        if added is not None:
            check(f"{scenario}: TTFT within {added} ms", abs(ttft) <= added, f"{ttft:+.3f} ms")
        plain = median(scenario, "openai", "cpu")
        if plain is not None:
            check(f"{scenario}: CPU at most 1/4 of openai's", cpu <= plain / 4, f"{cpu / plain:.2f} of it")
        for client in results[scenario]:
            other, cost = median(scenario, client, "tok_s"), median(scenario, client, "cpu")
            if client != OWN and other is not None and cost is not None:
                better = abs(bias) <= max(abs(other), 5e-4) and cpu < cost
                check(
                    f"{scenario}: truer (or within 0.05 %) and cheaper than {client}",
                    better,
                    f"{other:+.2%}, {cost:.3f} s",
                )
    return said


def plot(results: Results, path: Path) -> None:
    """Bias of tok/s, TTFT added and CPU, a panel each, a mark per client."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    clients = sorted({c for rows in results.values() for c in rows}, key=lambda c: c != OWN)
    figure, axes = plt.subplots(1, 3, figsize=(15, 1.5 + 0.4 * len(results)), sharey=True)
    panels = (("tok_s", "tok/s off, %", 100), ("ttft_ms", "TTFT added, ms", 1), ("cpu", "CPU s per 1000 tokens", 1))
    for axis, (name, label, factor) in zip(axes, panels, strict=True):
        for client in clients:
            spots = [
                (abs(statistics.median(row[name] for row in rows[client])) * factor, y)
                for y, rows in enumerate(results.values())
                if client in rows
            ]
            axis.scatter([max(x, 1e-3) for x, _ in spots], [y for _, y in spots], label=client, s=40, alpha=0.8)
        axis.set_xscale("log")
        axis.set_xlabel(f"{label} (absolute)")
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(range(len(results)), list(results))
    axes[0].invert_yaxis()
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncols=len(clients))
    figure.savefig(path, dpi=110)


def hardware() -> str:
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return f"{len(names) or '?'} x {names[0] if names else platform.processor()}, Python {platform.python_version()}"


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="Two scenarios only")
    parser.add_argument("--only", action="append", default=[], help="Scenarios whose name holds this; repeat for more")
    parser.add_argument("--client", action="append", default=[], help="Clients whose name holds this; repeat for more")
    parser.add_argument("--longer", type=int, default=1, help="Times as many requests")
    parser.add_argument("--saturation", action="store_true", help="Also raise the rate until clients give way")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help="Where a peer is installed")
    parser.add_argument("--tokenizer", default="", help="Tokenizer folder for peers")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    peers = client_peers.installed(dict(item.split("=", 1) for item in options.peer)) if options.tokenizer else {}
    scenarios = [*SINGLE, *MANY, *(SATURATION if options.saturation else [])]
    if options.quick:
        scenarios = [SINGLE[3], MANY[0]]
    scenarios = [s for s in scenarios if not options.only or any(part in s.name for part in options.only)]
    scenarios = [replace(s, requests=s.requests * options.longer) for s in scenarios]
    played = play(scenarios, options.rounds, peers, options.tokenizer, options.client)
    results = {s.name: played[s.name] for s in scenarios if s.name in played}  # none where every client failed
    text = f"{hardware()}; medians of {options.rounds} rounds (worst round)\n\n{table(results, scenarios)}"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "client.md").write_text(text)
    (options.out / "client.json").write_text(json.dumps(results, indent=1))
    plot(results, options.out / "client.png")
    print(text)
    print("\n".join(targets(results)))


if __name__ == "__main__":
    main()
