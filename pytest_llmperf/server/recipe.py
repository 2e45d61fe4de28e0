"""What is decided before a launch: the words of its command, its environment, its key, and what must never be shown."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from pytest_llmperf.engines.base import Endpoint, Engine, EngineSettings
from pytest_llmperf.models import tiny_model
from pytest_llmperf.server import places
from pytest_llmperf.server.circumstances import circumstances, traces, tuning
from pytest_llmperf.server.masking import Environment, Masker, secrets_of
from pytest_llmperf.server_config import ServerConfig, is_secret, mask

#: A secret inherited by pytest is masked from this length on; shorter ones are taken for words.
SHORTEST_INHERITED = 8


@dataclass(frozen=True)
class Recipe:
    """One launch about to happen. ``declared`` are the variables that settings, config and adapter set, a part of
    ``env``. ``keyed`` says that the engine was given the endpoint's API key. ``circumstances`` are what else it depends
    on, secrets masked."""

    argv: tuple[str, ...] = field(repr=False)
    env: Environment
    declared: Environment
    endpoint: Endpoint
    keyed: bool
    masker: Masker
    circumstances: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def provenance(self) -> dict[str, Any]:
        """JSON-ready command and declared variables, secrets masked."""
        return {
            "command": [self.masker(word) for word in self.argv],
            "env": {k: self.masker(v) for k, v in mask(self.declared).items()},
        }


def recipe(config: ServerConfig, engine: Engine, own: EngineSettings, port: int, gpus: Mapping[str, str]) -> Recipe:
    """How ``config`` is started on ``port`` seeing ``gpus`` (variables). Raises LaunchError where a prefix cannot carry
    what is declared."""
    # Hexadecimal: a key that begins with a dash would read as a flag.
    key = secrets.token_hex(24) if own.api_key else None
    endpoint = Endpoint(own.host, port, api_key=key)
    command = engine.command(config, own, endpoint, tiny_model.resolve(config.model, remote=own.remote))
    keyed = key is not None and any(key in part for part in (*command.argv, *command.env.values()))
    if not keyed:
        endpoint = replace(endpoint, api_key=None)
    declared = Environment({name: str(value) for name, value in command.env.items()})
    masker = masker_for(config, command.argv, declared, endpoint.api_key)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    untold = tuning({k: v for k, v in inherited.items() if k not in {**declared, **gpus}})
    argv = places.expand(command.argv, {**declared, **gpus}, endpoint, config.label, own.command or ())
    return Recipe(
        argv=argv,
        # Unbuffered, or the log would lag behind what happens.
        env=Environment({**inherited, "PYTHONUNBUFFERED": "1", **declared, **gpus}),
        declared=declared,
        endpoint=endpoint,
        keyed=keyed,
        masker=masker,
        circumstances={k: masker(v) for k, v in mask(circumstances(config, own, argv, untold)).items()},
        # no part of the declared config, so said at once
        notes=tuple(f"inherited from the environment: {k}={masker(v)}" for k, v in mask(untold).items()),
    )


def digest(config: ServerConfig, engine: Engine, own: EngineSettings) -> str:
    """Identity of how ``config`` would be started here and now: a changed command must not find an old server."""
    plan = recipe(config, engine, own, 1, {})
    known = sorted(plan.declared.items()), sorted(plan.circumstances.items()), traces(config, own, plan.argv)
    text = json.dumps([plan.argv, *known])
    return hashlib.sha256(text.replace(plan.endpoint.api_key or "", "").encode()).hexdigest()[:16]


def masker_for(config: ServerConfig, argv: Sequence[str], declared: Mapping[str, str], api_key: str | None) -> Masker:
    """Every secret that this launch could make an engine print."""
    found = secrets_of(declared, config.flags, config.speculative or {})
    found |= {value for value in secrets_of(os.environ) if len(value) >= SHORTEST_INHERITED}
    found |= {value for name, value in _flags(argv) if is_secret(name)}
    return Masker({*found, *([api_key] if api_key else [])})


def _flags(argv: Sequence[str]) -> list[tuple[str, str]]:
    """``--name value`` and ``--name=value``, each as a pair."""
    joined = [word.partition("=") for word in argv if word.startswith("-")]
    spaced = [(a, b) for a, b in pairwise(argv) if a.startswith("-") and "=" not in a and not b.startswith("-")]
    return spaced + [(a, b) for a, _, b in joined if b]
