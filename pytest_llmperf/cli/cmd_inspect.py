"""``llmperf inspect``: what an engine offers and would choose, from its source, without importing it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from rich.console import Console

from pytest_llmperf.cli.project_plugins import ask
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.inspection import render
from pytest_llmperf.inspection.facts import ModelFacts
from pytest_llmperf.inspection.findings import Running
from pytest_llmperf.inspection.reading import ENGINES, inspect
from pytest_llmperf.inspection.source import open_source
from pytest_llmperf.server import attach, http
from pytest_llmperf.server_config import ServerConfig
from pytest_llmperf.session.extensions import engines

_PIPED_WIDTH = 160


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the sub-command."""
    parser.add_argument("--engine", required=True, choices=ENGINES, help="Which engine to read")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--python", metavar="INTERPRETER", help="Interpreter of the environment that has the engine (default: python)"
    )
    where.add_argument("--source", metavar="PATH", type=Path, help="Wheel, sdist or folder of the engine instead")
    parser.add_argument("--model", metavar="MODEL", help="Model folder, config.json, or an id in the local hub cache")
    parser.add_argument("--gpu", metavar="GPU", help="sm_90, sm_100, sm_120, gfx942, cpu, or a card (H200)")
    parser.add_argument(
        "--set",
        metavar="FLAG=VALUE",
        action="append",
        default=[],
        help="A flag that the launch would set, such as speculative_algorithm=EAGLE3 (repeatable)",
    )
    parser.add_argument("--running", metavar="URL", help="Also ask this live server what it resolved to")
    parser.add_argument("--api-key-env", metavar="NAME", help="Variable with the key of the server at --running")
    parser.add_argument("--json", action="store_true", help="Print JSON")
    parser.add_argument("-v", "--verbose", action="store_true", help="Every condition on the way, and whole help texts")


def run(args: argparse.Namespace) -> int:
    """Print the inspection; returns 0. Raises ``ConfigError`` for what cannot be read."""
    model = ModelFacts.read(args.model) if args.model else None
    source = open_source(args.engine, source=args.source, python=args.python)
    found = inspect(source, model, args.gpu, _settings(args.set))
    if args.running:
        found = replace(found, running=resolved(args.engine, args.running, args.api_key_env))
    if args.json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
        console = Console(width=_PIPED_WIDTH if piped else None, highlight=False, markup=False, emoji=False)
        render.show(found, console, verbose=args.verbose)
    return 0


def resolved(engine: str, url: str, api_key_env: str | None) -> Running:
    """What a live server resolved to, through the engine's adapter. Raises ``ConfigError`` when it does not answer."""
    endpoint = attach.parse(url, api_key_env, "--running")
    adapter = ask(engines)[engine]
    answer = http.get(endpoint, adapter.health_path)
    if answer.status == 0:
        raise ConfigError(f"--running {url}: no answer ({answer.text}). Is the server up, and is that its port?")
    effective = adapter.effective(ServerConfig(engine=engine, model=""), http.LiveProbe(endpoint, lambda: ""))
    settings: dict[str, str] = {}
    for f in fields(effective):
        value = getattr(effective, f.name)
        if f.name == "sources" or value is None:
            continue
        if isinstance(value, Mapping):
            settings.update({str(k): str(v) for k, v in value.items() if f.name != "versions"})
            settings.update({f"{k} version": str(v) for k, v in value.items() if f.name == "versions"})
        else:
            settings[f.name] = str(value)
    if not settings:
        raise ConfigError(
            f"--running {url}: it answers, but tells nothing about its configuration; is it a {engine} server? "
            "vLLM tells only when started with VLLM_SERVER_DEV_MODE=1"
        )
    return Running(url, settings, dict(effective.sources))


def _settings(pairs: list[str]) -> dict[str, str]:
    wrong = next((p for p in pairs if "=" not in p), None)
    if wrong is not None:
        raise ConfigError(f"--set {wrong}: write FLAG=VALUE, such as --set speculative_algorithm=EAGLE3")
    return dict(p.split("=", 1) for p in pairs)
