"""``llmperf ab``: two builds or configs of an engine against each other, on interleaved launches."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_llmperf.cli.project_plugins import ask
from pytest_llmperf.engines.base import Engine, EngineSettings
from pytest_llmperf.engines.declaration import merged, server_config
from pytest_llmperf.errors import ConfigError, nearest
from pytest_llmperf.measure.client.connection import Connection
from pytest_llmperf.measure.load import load
from pytest_llmperf.measure.metrics import METRICS, Metric
from pytest_llmperf.measure.run import Run
from pytest_llmperf.measure.stream import stream
from pytest_llmperf.measure.workloads import Workload
from pytest_llmperf.records import jsonfile
from pytest_llmperf.records.results import SessionRecord
from pytest_llmperf.records.text import clean, percent, plural, ratios
from pytest_llmperf.server.launch import PoolSettings
from pytest_llmperf.server.pool import Server, ServerPool
from pytest_llmperf.server.state import state_dir
from pytest_llmperf.server.turns import measuring
from pytest_llmperf.session import cold_launches
from pytest_llmperf.session.extensions import engines
from pytest_llmperf.stats import Prior
from pytest_llmperf.tuning.ab_trial import Duel, Side, fight, stopped
from pytest_llmperf.tuning.presets import expand, load_presets
from pytest_llmperf.tuning.ratios import versus

#: Option: default, help.
_NUMBERS = {
    "budget": (6, "Most launches of each side"),
    "output-tokens": (256, "Tokens of each answer"),
    "prompt-tokens": (128, "Tokens of each prompt"),
    "repetitions": (5, "Least requests measured on each launch"),
    "concurrency": (1, "Streams at once"),
}
_WORDS = {
    "faster": "B is better",
    "slower": "B is worse",
    "no difference": "no difference that matters",
    "undecided": "undecided: no credible difference within the budget",
}


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the sub-command."""
    parser.add_argument("--engine", required=True, metavar="NAME", help="Which engine both sides are")
    parser.add_argument("--model", required=True, help="Model of both sides")
    for side in ("a", "b"):
        whose = f"for {side.upper()} only"
        parser.add_argument(f"--{side}", metavar="COMMAND", help=f"Command that starts the engine, {whose}")
        _repeatable(parser, f"--{side}-set", f"Keyword of llm_server, {whose}")
    _repeatable(parser, "--set", "Keyword of llm_server for both: tp=8, nccl=ll-ring, sglang__stream_interval=4")
    parser.add_argument("--metric", default="decode_tok_s", choices=list(METRICS), help="What decides")
    parser.add_argument(
        "--min-effect", type=float, default=0.01, metavar="F", help="Smallest difference that matters (default: 0.01)"
    )
    for name, (default, about) in _NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{about} (default: {default})")
    parser.add_argument("--json", type=Path, metavar="PATH", help="Write the gap as a report that llmperf sweep prints")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="Folder for server logs (default: a temporary one)")


def _repeatable(parser: argparse.ArgumentParser, option: str, about: str) -> None:
    parser.add_argument(option, metavar="KEY=VALUE", action="append", default=[], help=f"{about} (repeatable)")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when B is credibly worse or a side failed, else 0. Raises ``ConfigError`` for wrong arguments."""
    if args.budget < 1:
        raise ConfigError(f"--budget {args.budget}: must be at least 1")
    if not 0 < args.min_effect < 1:
        raise ConfigError(f"--min-effect {args.min_effect}: must lie between 0 and 1; 0.01 is 1 %")
    known = ask(engines)
    if args.engine not in known:
        raise ConfigError(f"--engine {args.engine}: no such engine{nearest(args.engine, known)}")
    a, b = _side(args, "a", known), _side(args, "b", known)
    if a.config == b.config and args.a == args.b:
        _say("A and B are the same: this measures how far two identical sides can seem apart")
    metric = METRICS[args.metric]
    workload = Workload(
        prompt_tokens=args.prompt_tokens,
        output_tokens=args.output_tokens,
        repetitions=args.repetitions,
        max_repetitions=max(20, args.repetitions),
        concurrency=args.concurrency,
    )
    warmed: set[str] = set()
    duel = fight(
        a,
        b,
        lambda side, server: _measure(side, _warm(side, server, warmed), workload),
        metric,
        budget=args.budget,
        min_effect=args.min_effect,
        prior=lambda: Prior(s0=max(a.engine.launch_spread, metric.launch_spread)),
        say=_say,
    )
    print(clean("\n".join(_lines(duel, metric)), lines=True))
    if args.json and duel.trial and duel.trial.ratio:
        gap = versus("llmperf ab", metric, args.engine, duel.a, duel.b, duel.trial.ratio, stopped(duel.trial))
        jsonfile.dump(SessionRecord({"command": "llmperf ab"}, gaps=(gap,)), args.json)
    worse = duel.trial is not None and duel.trial.verdict == "slower"
    return 1 if duel.error or worse else 0


def _warm(side: Side, server: Server, warmed: set[str]) -> Server:
    """``server``, or one in its place when it compiled: once a side, whose label is then in ``warmed``."""
    why = cold_launches.spent(server.launch.cache_state, "compared")
    if why is None or side.label in warmed:
        return server
    warmed.add(side.label)
    _say(f"{side.label}: launch {server.launch.id} {why}: another in its place")
    return side.pool.fresh(side.config)


def _measure(side: Side, server: Server, workload: Workload) -> Run:
    run = load if workload.concurrency > 1 else stream
    with measuring(side.pool.settings.state_dir, f"llmperf ab, side {side.label}", _say):
        return run(Connection.to(server), workload, seed=f"ab:{server.launch.id}")


def _lines(duel: Duel, metric: Metric) -> list[str]:
    lines = []
    if duel.error:
        lines.append(f"broken off: {duel.error}")
    seen = duel.trial.ratio if duel.trial else None
    if duel.trial and seen:
        verdict = _WORDS.get(duel.trial.verdict, "not decided yet")
        change = f"{percent(seen.ratio - 1, signed=True)}, {metric.name}"
        launches = f"{plural(duel.trial.pairs, 'launch')} of each"
        lines.append(f"{verdict}: B / A = {seen.ratio:.3f} {ratios((seen.low, seen.high))} ({change}, {launches})")
    elif not duel.error:
        lines.append("one launch of each says nothing about the difference; allow a larger --budget")
    return lines


def _side(args: argparse.Namespace, side: str, known: Mapping[str, Engine]) -> Side:
    engine = known[args.engine]
    declared = merged({"model": args.model}, _keywords(args.set, "--set"))
    declared = merged(declared, _keywords(getattr(args, f"{side}_set"), f"--{side}-set"))
    command = _command(getattr(args, side), f"--{side}")
    own = EngineSettings(command=command)
    config = server_config(expand(declared, load_presets(), f"side {side.upper()}"), engine, frozenset(known), own)
    logs = args.logs or Path(tempfile.mkdtemp(prefix="llmperf-ab-"))
    settings = PoolSettings(
        log_dir=logs / side,
        state_dir=state_dir(),
        engines={engine.name: own},
        plain_progress=True,
    )
    return Side(side.upper(), config, engine, ServerPool(settings, known, _say))


def _command(text: str | None, option: str) -> tuple[str, ...] | None:
    if text is None:
        return None
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text!r}: {error}") from error
    if not words:
        raise ConfigError(f"{option}: name the command that starts the server")
    return tuple(words)


def _keywords(pairs: Sequence[str], option: str) -> Mapping[str, Any]:
    """``nccl__proto=LL`` -> ``{"nccl": {"proto": "LL"}}``; values are JSON where they parse as such, else text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        root, _, inner = key.partition("__")
        if not equals or not root:
            raise ConfigError(f"{option} {pair}: write KEY=VALUE, such as tp=8 or nccl__proto=LL")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        found = merged(found, {root: {inner: value} if inner else value})
    return found


def _say(line: str) -> None:
    print(clean(line), file=sys.stderr, flush=True)
