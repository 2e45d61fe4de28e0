"""This project's client beside an engine's own benchmark, in turns on one live server.

    pytest examples/test_tiny.py -m perf --engine vllm --keep-servers --update-baselines    # a server of the tiny model
    python benchmarks/engines_own.py vllm --rounds 5
    python benchmarks/engines_own.py sglang http://127.0.0.1:30000 --model NAME --tokenizer FOLDER --python PROGRAM \\
        --concurrency 1 --concurrency 8 --concurrency 64 --prompt 128 --output 128 --rounds 2 --json own.json

Runs `vllm bench serve` or `sglang.bench_serving`, out of the environment that ``tools/real_engines`` made or with the
Python that is named, with requests of the same lengths and as many streams: the engine's benchmark is given texts that
the server's tokenizer finds as long (what it adds itself, BOS say, comes on top), since its own random ones may differ.
A row is a quantity; its third column is what our own recorded requests give when they are put through the other side's
formula, so that what is left between it and the fourth is not definition. Every level of concurrency has a table of
its own, and its turn in every round.
"""

from __future__ import annotations

import os
import random
import runpy
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from engines_own_rows import ROWS, Summary
from engines_own_theirs import LEAST, MOST, Bench, counters, theirs
from live_server import arguments, checked, endpoint, write

from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.measure.client.connection import Connection
from pytest_llmperf.measure.load import load
from pytest_llmperf.measure.run import Run
from pytest_llmperf.measure.stream import stream
from pytest_llmperf.measure.workloads import Workload
from pytest_llmperf.models.tiny_model import cached
from pytest_llmperf.server_config import ServerConfig

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Round:
    """One turn of each side at one level of concurrency. ``rows``: name to (ours, ours by their formula, theirs by it,
    theirs as it prints it); ``ours`` and ``theirs`` are JSON-ready and hold all that those were made from."""

    number: int
    streams: int
    first: str
    rows: Mapping[str, tuple[float, float, float, float]]
    ours: Mapping[str, Any]
    theirs: Summary


def default_python(engine: str) -> Path:
    """Of the environment that ``tools/real_engines`` makes."""
    environments = runpy.run_path(str(REPOSITORY / "tools" / "real_engines" / "__main__.py"))
    return Path(environments["python_of"](engine))


def ours(bench: Bench, streams: int, seed: str) -> Run:
    """Raises ``RuntimeError`` when the measurement is invalid."""
    adapter, config = builtin()[bench.engine], ServerConfig(bench.engine, bench.model)
    to = Connection(bench.endpoint, bench.model, adapter, config, seed, partial(counters, bench))
    total = bench.total(streams)
    if streams == 1:
        work = Workload(bench.prompt, bench.output, repetitions=total, precision=0.0)
        run = stream(to, work, seed=seed, reuse=bench.ledger)
    else:
        work = Workload(bench.prompt, bench.output, concurrency=streams, requests=total)
        run = load(to, work, seed=seed, reuse=bench.ledger)
    if run.measurement.invalid:
        raise RuntimeError("\n".join(run.measurement.invalid))
    return run


def recorded(run: Run) -> dict[str, Any]:
    """JSON-ready: what one of our turns gave."""
    m = run.measurement
    return {
        "values": dict(m.values),
        "evidence": dict(m.evidence),
        "guards": [asdict(g) for g in m.guards],
        "warmup": asdict(m.warmup) if m.warmup else None,
        "requests": [asdict(r) for r in run.requests],
    }


def play(bench: Bench, levels: Sequence[int], rounds: int) -> Iterator[Round]:
    """Every level once in a round; who comes first at a level is drawn, and alternates from round to round. What fails
    is told, and the rest goes on."""
    drawn = random.Random(1)
    sides = {streams: drawn.sample(("ours", "theirs"), 2) for streams in levels}
    for number in range(rounds):
        for streams in levels:
            print(f"round {number + 1} of {rounds}, {streams} at once", file=sys.stderr, flush=True)
            try:
                yield both(bench, streams, number, sides[streams][number % 2])
            except (RuntimeError, LlmperfError) as error:
                print(f"  no values: {error}", file=sys.stderr, flush=True)


def both(bench: Bench, streams: int, number: int, first: str) -> Round:
    seed = os.getpid() + 1000 * number + streams
    early = theirs(bench, streams, seed) if first == "theirs" else None
    run = ours(bench, streams, f"{bench.engine}-{seed}")
    summary = early or theirs(bench, streams, seed)
    measurement, requests = run.measurement, run.requests
    counted = measurement.evidence["counters"].get("generation_tokens")
    share = counted and counted / sum(r.output_tokens or 0 for r in requests)
    print(f"  the engine counted {share} tokens for each that came to us", file=sys.stderr)
    length = summary.get("counted_prompt_tokens")
    print(f"  and {length} prompt tokens in a request of theirs that should have {bench.prompt}", file=sys.stderr)
    for guard in measurement.guards:
        if guard.tripped:
            print(f"  {guard.name}: {guard.evidence}", file=sys.stderr)
    rows = {
        row.name: (
            float(getattr(run, row.ours[streams > 1])),
            row.same(requests),
            row.theirs(summary),
            float(summary[row.printed]),
        )
        for row in ROWS
    }
    return Round(number, streams, first, rows, recorded(run), summary)


def table(rounds: Sequence[Round]) -> str:
    """Markdown, of one level: medians over rounds."""
    streams = rounds[0].streams
    lines = [f"{streams} at once, median of {len(rounds)}:", ""]
    lines += ["| quantity | ours | ours by their formula | theirs |", "|---|---|---|---|"]
    for row in ROWS:
        mine, same, other, printed = np.median(np.array([r.rows[row.name] for r in rounds]), axis=0)
        cell = f"{other:.2f} ({other / same - 1:+.1%})"
        if not np.isclose(printed, other):
            cell += f", prints {printed:.2f}"
        lines.append(f"| {row.name} | {mine:.2f} | {same:.2f} | {cell} |")
    return "\n".join(lines) + "\n"


def reasons(levels: Sequence[int]) -> str:
    """Why the columns differ, a line a quantity; what only several streams bring where there are such levels."""
    also = max(levels) > 1
    return "\n".join(f"- {r.name}: {r.why}" + (f"; at several: {r.several}" if also else "") for r in ROWS)


def save(path: Path, bench: Bench, rounds: Sequence[Round]) -> None:
    """All rounds so far."""
    given = {name: getattr(bench, name) for name in ("engine", "model", "prompt", "output")}
    write(path, {**given, "rounds": [asdict(r) for r in rounds]})


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--tokenizer", type=Path, help="Folder of the model's, for the engine's benchmark; default tiny's"
    )
    parser.add_argument("--python", help="Whose environment runs the engine's benchmark; default tools/real_engines'")
    options = checked(parser)
    python = options.python or str(default_python(options.engine))
    if (program := shutil.which(python)) is None:
        parser.error(
            f"no program {python} to run {options.engine}'s benchmark: make it with `python tools/real_engines "
            f"{options.engine}`, or name one with --python"
        )
    if options.tokenizer and not options.tokenizer.is_dir():
        parser.error(f"--tokenizer {options.tokenizer} is no folder")
    if not (LEAST <= options.prompt <= MOST // 2 and LEAST <= options.output <= MOST - options.prompt):
        parser.error(f"the engines' benchmarks take {LEAST} to {MOST // 2} tokens as --prompt, {MOST} with --output")
    server = endpoint(parser, options)
    try:
        tokenizer = (options.tokenizer or cached()).absolute()
    except LlmperfError as error:
        parser.error(str(error))
    bench = Bench(
        options.engine,
        server,
        options.model,
        tokenizer,
        str(Path(program).absolute()),  # the benchmark runs in another folder
        options.prompt,
        options.output,
        options.requests,
    )
    rounds: list[Round] = []
    try:
        for done in play(bench, options.levels, options.rounds):
            rounds.append(done)
            if options.json:
                save(options.json, bench, rounds)
            print(table([r for r in rounds if r.streams == done.streams]), file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted: what follows is from the rounds before", file=sys.stderr)
    for streams in options.levels:
        if those := [r for r in rounds if r.streams == streams]:
            print(table(those))
    if not rounds:
        raise SystemExit("no round gave values")
    print(reasons(options.levels))


if __name__ == "__main__":
    main()
