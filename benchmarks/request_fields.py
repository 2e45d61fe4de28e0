"""What the fields of a request cost the server: the same load with and without each, in turns on one live server.

    python benchmarks/request_fields.py sglang http://127.0.0.1:30000 --model NAME --concurrency 1 --concurrency 64

A client that asks for more than a user does makes the server slower than the user sees it. ``plain`` asks for
``ignore_eos`` alone. ``min_tokens``, which this project adds, makes an engine mask the end tokens of each step; usage
in every chunk is asked for where chunks hold several tokens. A cell is the median over rounds, and that of its ratios
to ``plain`` of the same round with their range.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from engines_own import ours
from engines_own_theirs import Bench
from live_server import arguments, checked, endpoint, write

from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.errors import LlmperfError

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


def play(bench: Bench, levels: Sequence[int], rounds: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """(streams, variant to values; ``order`` is who came when, turned by one from round to round). A round with a
    measurement that fails is told, and left out."""
    known = variants(bench.output)
    for number in range(rounds):
        for streams in levels:
            order = [*known][number % len(known) :] + [*known][: number % len(known)]
            values: dict[str, Any] = {"order": order}
            try:
                for name in order:
                    print(f"round {number + 1} of {rounds}, {streams} at once: {name}", file=sys.stderr, flush=True)
                    seed = f"fields-{os.getpid()}-{number}-{streams}-{name}"
                    values[name] = measure(bench, streams, seed, known[name])
            except (RuntimeError, LlmperfError) as error:
                print(f"  no values: {error}", file=sys.stderr, flush=True)
            else:
                yield streams, values


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
    parser = arguments(__doc__)
    options = checked(parser)
    engine, model = options.engine, options.model
    server = endpoint(parser, options)
    bench = Bench(engine, server, model, Path(), "", options.prompt, options.output, options.requests)
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    try:
        for streams, values in play(bench, options.levels, options.rounds):
            found[streams].append(values)
            if options.json:
                write(options.json, {"engine": engine, "model": model, "levels": found})
    except KeyboardInterrupt:
        print("interrupted: what follows is from the rounds before", file=sys.stderr)
    for streams in options.levels:
        if found[streams]:
            print(table(streams, found[streams]))
    if not any(found.values()):
        raise SystemExit("no round gave values")


if __name__ == "__main__":
    main()
