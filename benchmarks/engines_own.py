"""This project's client beside an engine's own benchmark, in turns on one live server.

    pytest examples/test_tiny.py -m perf --engine vllm --keep-servers --update-baselines    # a server of the tiny model
    python benchmarks/engines_own.py vllm --rounds 5

Runs `vllm bench serve` or `sglang.bench_serving` out of the environment that ``tools/real_engines`` made, with requests
of the same lengths, one at a time. A row is a quantity; its third column is what our own recorded requests give when
they are put through the other side's formula, so that what is left between it and the fourth is not definition.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import runpy
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pytest_llmperf.engines.base import Counters, Endpoint
from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.engines.tiny_model import cached
from pytest_llmperf.measure.connection import Connection
from pytest_llmperf.measure.metrics import Workload
from pytest_llmperf.measure.prompts import PromptLedger
from pytest_llmperf.measure.stream import stream
from pytest_llmperf.server import attach, http, kept
from pytest_llmperf.server.config import ServerConfig
from pytest_llmperf.server.state import state_dir

REPOSITORY = Path(__file__).resolve().parents[1]
ENVIRONMENTS = runpy.run_path(str(REPOSITORY / "tools" / "real_engines" / "__main__.py"))
PROMPT, OUTPUT = 32, 96
#: The wheel for CPUs is not called vllm, which the program `vllm` insists on.
VLLM_BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""

#: Quantity to its value, over all requests of one side's turn.
Values = dict[str, float]


@dataclass(frozen=True)
class Row:
    """``ours``: by this project's definition. ``theirs``: by the engine's, on whatever each side recorded."""

    name: str
    ours: Callable[[Sequence[Any]], float]
    same: Callable[[Sequence[Any]], float]
    key: str
    why: str


def mean(of: Callable[[Any], float]) -> Callable[[Sequence[Any]], float]:
    return lambda requests: statistics.fmean(of(r) for r in requests)


ROWS = (
    Row("TTFT, ms", mean(lambda r: r.ttft_ms), mean(lambda r: r.ttft_ms), "mean_ttft_ms",
        "the same quantity; theirs opens the connection inside it and stamps after parsing"),
    Row("time per token after the first, ms", mean(lambda r: 1e3 / r.decode_tok_s),
        mean(lambda r: (r.e2e_ms - r.ttft_ms) / (r.output_tokens - 1)), "mean_tpot_ms",
        "ours divides by the tokens after the first chunk, theirs by all but one; SGLang's ends with [DONE]"),
    Row("gap p50, ms", mean(lambda r: r.itl_p50_ms), mean(lambda r: r.itl_p50_ms), "median_itl_ms",
        "ours per token, theirs per chunk: one of n tokens counts as one gap"),
    Row("gap p99, ms", mean(lambda r: r.itl_p99_ms), mean(lambda r: r.itl_p99_ms), "p99_itl_ms",
        "as above; ours is the mean of requests' p99, theirs is over all gaps together"),
    Row("tok/s", mean(lambda r: r.decode_tok_s),
        lambda rs: 1e3 * sum(r.output_tokens for r in rs) / sum(r.e2e_ms for r in rs), "output_throughput",
        "ours is decoding alone; theirs is tokens over the whole duration: prefill and pauses between requests too"),
)  # fmt: skip


def newest(engine: str) -> Endpoint:
    """The kept server (``--keep-servers``) of this engine that was started last."""
    found = [k for k in kept.list_kept(state_dir()) if k.engine == engine and k.model == "tiny"]
    if not found:
        raise SystemExit(f"no kept {engine} server of the tiny model; `llmperf servers list` shows what there is")
    return max(found, key=lambda k: k.started_at).endpoint


def ours(engine: str, endpoint: Endpoint, requests: int, seed: str) -> tuple[list[Any], float | None]:
    """The requests of one turn, and the tokens that the engine counted for each that we received."""
    adapter = builtin()[engine]

    def counters() -> Counters | None:
        answer = http.get(endpoint, adapter.metrics_path or "/metrics")
        return adapter.counters(answer.text) if answer.ok else None

    config = ServerConfig(engine, "tiny")
    connection = Connection(endpoint, "tiny", adapter, config, seed, counters)
    work = Workload(PROMPT, OUTPUT, repetitions=requests, precision=0.0)
    run = stream(connection, work, seed=seed, reuse=PromptLedger())
    if run.measurement.invalid:
        raise SystemExit("\n".join(run.measurement.invalid))
    counted = run.measurement.evidence["counters"].get("generation_tokens")
    return list(run.requests), counted and counted / (requests * OUTPUT)


def theirs(engine: str, endpoint: Endpoint, requests: int, seed: int) -> Mapping[str, float]:
    """The summary that the engine's own benchmark writes."""
    common = ["--base-url", endpoint.root_url, "--model", "tiny", "--tokenizer", str(cached())]
    common += ["--num-prompts", str(requests), "--max-concurrency", "1"]
    common += ["--seed", str(seed)]  # else every turn repeats its prompts, and meets them in the prefix cache
    common += ["--random-input-len", str(PROMPT), "--random-output-len", str(OUTPUT)]
    python = ENVIRONMENTS["python_of"](engine)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        if engine == "vllm":
            words = [python, "-c", VLLM_BENCH_SERVE, "--backend", "openai", "--endpoint", "/v1/completions"]
            words += ["--dataset-name", "random", "--ignore-eos", "--temperature", "0", "--num-warmups", "1"]
            words += ["--save-result", "--result-dir", folder, "--result-filename", result.name]
        else:
            words = [python, "-m", "sglang.bench_serving", "--backend", "sglang-oai", "--dataset-name", "random-ids"]
            words += ["--random-range-ratio", "1", "--output-file", str(result)]
        env = {**os.environ, "OPENAI_API_KEY": endpoint.api_key or "none", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run([*words, *common], check=False, env=env, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{words[:4]}: exit {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
        summary: Mapping[str, float] = json.loads(result.read_text().splitlines()[-1])
        return summary


def play(engine: str, endpoint: Endpoint, rounds: int, requests: int) -> dict[str, list[tuple[float, float, float]]]:
    """Row to (ours, ours by their formula, theirs) of each round; who comes first is drawn."""
    drawn = random.Random(1)
    got: dict[str, list[tuple[float, float, float]]] = {row.name: [] for row in ROWS}
    for number in range(rounds):
        mine: list[Any] = []
        summary: Mapping[str, float] = {}
        for side in drawn.sample(["ours", "theirs"], 2):
            print(f"round {number + 1} of {rounds}: {side}", file=sys.stderr, flush=True)
            if side == "ours":
                mine, share = ours(engine, endpoint, requests, f"{engine}-{os.getpid()}-{number}")
                print(f"  the engine counted {share} tokens for each that came", file=sys.stderr)
            else:
                summary = theirs(engine, endpoint, requests, os.getpid() + number)
        for row in ROWS:
            got[row.name].append((row.ours(mine), row.same(mine), float(summary[row.key])))
        print(table(got), file=sys.stderr, flush=True)
    return got


def table(got: Mapping[str, Sequence[tuple[float, float, float]]]) -> str:
    """Markdown: medians over rounds."""
    lines = ["| quantity | ours | ours by their formula | theirs | why |", "|---|---|---|---|---|"]
    for row in ROWS:
        ours_, same, other = (float(x) for x in np.median(np.array(got[row.name]), axis=0))
        lines.append(f"| {row.name} | {ours_:.2f} | {same:.2f} | {other:.2f} ({other / same - 1:+.1%}) | {row.why} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["vllm", "sglang"])
    parser.add_argument("url", nargs="?", help="Instead of a kept server; its API key in LLMPERF_API_KEY")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=10, help="Of each side in a round")
    options = parser.parse_args()
    endpoint = attach.parse(options.url, "LLMPERF_API_KEY") if options.url else newest(options.engine)
    print(table(play(options.engine, endpoint, options.rounds, options.requests)))


if __name__ == "__main__":
    main()
