"""What the fields of a request cost the server: the same load with and without each, in turns on one live server.

    python benchmarks/request_fields.py sglang http://127.0.0.1:30000 --model NAME --concurrency 1 --concurrency 64

A client that asks for more than a user does makes the server slower than the user sees it. ``plain`` asks for
``ignore_eos`` alone. ``min_tokens``, which this project adds, makes an engine mask the end tokens of each step; usage
in every chunk is asked for where chunks hold several tokens. A cell is a ratio to ``plain`` of the same round: median
over rounds, and its range.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from engines_own import Bench, newest, ours, whole_number

from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.server import attach

USAGE = {"include_usage": True, "continuous_usage_stats": True}
#: Rate and time per token, alone and among several streams.
METRICS = {True: ("decode_tok_s", "tpot_ms"), False: ("output_tok_s", "tpot_ms")}


def variants(output: int) -> dict[str, dict[str, Any]]:
    plain = {"ignore_eos": True}
    return {
        "plain": plain,
        "min_tokens": {**plain, "min_tokens": output},
        "usage in every chunk": {**plain, "stream_options": USAGE},
    }


def measure(bench: Bench, streams: int, seed: str, fields: Mapping[str, Any]) -> dict[str, float]:
    """Raises ``RuntimeError`` when the measurement is invalid."""
    with mock.patch.object(type(builtin()[bench.engine]), "request_body", return_value=dict(fields)):
        run = ours(bench, streams, seed)
    return {name: float(getattr(run, name)) for name in METRICS[streams == 1]}


def play(bench: Bench, levels: Sequence[int], rounds: int, out: Path | None) -> dict[int, list[dict[str, Any]]]:
    """Level to its rounds: variant to values; ``order`` is who came when, turned by one from round to round."""
    known = variants(bench.output)
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for number in range(rounds):
        for streams in levels:
            order = [*known][number % len(known) :] + [*known][: number % len(known)]
            values: dict[str, Any] = {"order": order}
            for name in order:
                print(f"round {number + 1} of {rounds}, {streams} at once: {name}", file=sys.stderr, flush=True)
                values[name] = measure(bench, streams, f"fields-{os.getpid()}-{number}-{streams}-{name}", known[name])
            found[streams].append(values)
            if out:
                out.write_text(json.dumps({"engine": bench.engine, "model": bench.model, "levels": found}))
    return found


def table(streams: int, rounds: Sequence[Mapping[str, Any]]) -> str:
    metrics = METRICS[streams == 1]
    lines = [f"{streams} at once, {len(rounds)} rounds:", ""]
    lines += ["| request | " + " | ".join(metrics) + " |", "|---" * (len(metrics) + 1) + "|"]
    for name in [n for n in rounds[0] if n != "order"]:
        cells = []
        for metric in metrics:
            ratios = np.array([r[name][metric] / r["plain"][metric] for r in rounds])
            value = np.median([r[name][metric] for r in rounds])
            spread = f" = {np.median(ratios):.4f}x ({ratios.min():.4f} to {ratios.max():.4f})"
            cells.append(f"{value:.4g}" + (spread if name != "plain" else ""))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["vllm", "sglang"])
    parser.add_argument("url", nargs="?", help="Instead of a kept server; its API key in LLMPERF_API_KEY")
    parser.add_argument("--model", default="tiny", help="As it is served")
    parser.add_argument("--concurrency", type=whole_number, action="append", help="Streams; repeat for more levels")
    parser.add_argument("--requests", type=whole_number, help="Of each stream in a turn")
    parser.add_argument("--prompt", type=whole_number, default=128, help="Tokens")
    parser.add_argument("--output", type=whole_number, default=128, help="Tokens")
    parser.add_argument("--rounds", type=whole_number, default=3)
    parser.add_argument("--json", type=Path, help="File for all values, written after every round")
    options = parser.parse_args()
    levels = list(dict.fromkeys(options.concurrency or [1]))
    try:
        url, engine, model = options.url, options.engine, options.model
        endpoint = attach.parse(url, "LLMPERF_API_KEY") if url else newest(engine, model)
        bench = Bench(engine, endpoint, model, Path(), "", options.prompt, options.output, options.requests)
        found = play(bench, levels, options.rounds, options.json)
    except (RuntimeError, LlmperfError) as error:
        raise SystemExit(str(error)) from error
    for streams in levels:
        print(table(streams, found[streams]))


if __name__ == "__main__":
    main()
