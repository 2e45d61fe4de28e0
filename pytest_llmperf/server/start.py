"""One launch: port, key, environment, supervisor, readiness, effective config."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from pytest_llmperf.engines.base import Command, Endpoint, Engine, EngineSettings
from pytest_llmperf.errors import LaunchError
from pytest_llmperf.server import http, ports
from pytest_llmperf.server.config import MASK, ServerConfig, is_secret, mask
from pytest_llmperf.server.kept import Kept, KeptLife
from pytest_llmperf.server.launch import Launch, PoolSettings, new_id
from pytest_llmperf.server.leases import Lease
from pytest_llmperf.server.logs import Log
from pytest_llmperf.server.masking import Environment, Masker, secrets_of
from pytest_llmperf.server.process import EngineProcess, Spec
from pytest_llmperf.server.readiness import PortLostError, Readiness, Start, check_model, completion, completion_problem
from pytest_llmperf.server.server import OwnLife, Server, mismatch_text
from pytest_llmperf.server.visible import variables

#: Starts that may lose their port before the launch is given up.
TRIES = 4
#: Inherited variables that change how fast an engine is: never a part of the declared config, so said in a note.
TUNING = (
    "NCCL_",
    "SGLANG_",
    "SGL_",
    "VLLM_",
    "FLASHINFER_",
    "TRITON_",
    "TORCHINDUCTOR_",
    "OMP_NUM_THREADS",
    "LLAMA_ARG_",
)


@dataclass(frozen=True)
class Context:
    """What every launch of one pool shares."""

    settings: PoolSettings
    say: Callable[[str], None]

    def of(self, engine: Engine) -> EngineSettings:
        return self.settings.engines.get(engine.name, EngineSettings())


def start(config: ServerConfig, engine: Engine, lease: Lease, context: Context) -> Server:
    """Launch ``config`` and wait until it has generated a token. Nothing is left running when this raises.

    Raises ``LaunchError`` with the cause; a port lost to somebody else is tried again on another one.
    """
    own = context.of(engine)
    notes: list[str] = []
    hold = True
    for last in (*[False] * (TRIES - 1), True):
        reservation = ports.Reservation(own.port) if own.port else ports.reserve(own.bind, hold and not own.remote)
        try:
            return _once(config, engine, lease, context, reservation, tuple(notes))
        except PortLostError:
            if last or own.port:
                raise
            notes.append(f"port {reservation.port} was lost to another program; started again")
            hold = False  # should the engine bind without SO_REUSEADDR, our own hold was in its way
        finally:
            reservation.close()
    raise AssertionError("unreachable")


def _once(
    config: ServerConfig,
    engine: Engine,
    lease: Lease,
    context: Context,
    reservation: ports.Reservation,
    notes: tuple[str, ...],
) -> Server:
    own, settings = context.of(engine), context.settings
    endpoint = Endpoint(own.host, reservation.port, api_key=secrets.token_urlsafe(24))
    command = engine.command(config, own, endpoint)
    keyed = any(endpoint.api_key in part for part in (*command.argv, *command.env.values()) if endpoint.api_key)
    if not keyed:
        endpoint = replace(endpoint, api_key=None)
    masker = masker_for(config, own, command, endpoint.api_key)
    launch_id = new_id()
    settings.log_dir.mkdir(parents=True, exist_ok=True)
    log = Log(settings.log_dir / f"{launch_id}-{config.engine}-{config.key}.log", masker)
    env = environment(os.environ, command, own, config, variables(lease.gpus))
    spec = Spec(
        launch_id=launch_id,
        argv=command.argv,
        env=env,
        log=_path(log),
        masker=masker,
        cwd=own.cwd or str(Path.cwd()),
        grace=settings.stop_grace,
        gpus=lease.uuids,
        hold=(*lease.fds, *([reservation.socket.fileno()] if reservation.socket else [])),
    )
    _write_provenance(spec, config, command, lease)
    began = time.monotonic()
    process = EngineProcess(spec)
    try:
        Readiness(
            Start(
                engine=engine,
                config=config,
                endpoint=endpoint,
                process=process,
                log=log,
                keyed=keyed,
                local=not own.remote,
                timeout=config.startup_timeout or settings.startup_timeout,
                say=context.say,
                plain=settings.plain_progress,
            )
        ).wait()
        startup_s = time.monotonic() - began
        effective = engine.effective(config, http.LiveProbe(endpoint, log.text))
    except BaseException:
        process.stop()
        raise
    mismatches = engine.mismatches(config, effective)
    launch = Launch(
        id=launch_id,
        config=config,
        endpoint=endpoint,
        effective=effective,
        startup_s=startup_s,
        started_at=process.started_at,
        model=engine.model_name(config),
        log_path=spec.log,
        cache_state=effective.cache_state,
        gpus=lease.uuids,
        pids=tuple(p.pid for p in process.tree()),
        notes=(*notes, *(mismatch_text(m) for m in mismatches), *_inherited_notes(env, command, masker)),
    )
    return Server(launch, engine, OwnLife(process, log, engine), log, mismatches)


def _path(log: Log) -> Path:
    if log.path is None:
        raise LaunchError("a launch needs a log file")
    return log.path.resolve()


def environment(
    inherited: Mapping[str, str], command: Command, own: EngineSettings, config: ServerConfig, gpus: Mapping[str, str]
) -> Environment:
    """The engine's environment: pytest's without pytest's own variables, then settings, config, adapter, GPUs."""
    env = Environment({k: v for k, v in inherited.items() if not k.startswith("PYTEST_")})
    env["PYTHONUNBUFFERED"] = "1"  # or the log would lag behind what happens
    for layer in (own.env, config.env, config.nccl, command.env, gpus):
        env.update(layer)
    return env


def masker_for(config: ServerConfig, own: EngineSettings, command: Command, api_key: str | None) -> Masker:
    """Every secret that this launch could make an engine print."""
    found = secrets_of(own.env, config.env, config.flags, config.speculative or {}, command.env)
    found |= {v for v in secrets_of(os.environ) if len(v) >= 8}
    found |= {value for name, value in _flags(command.argv) if is_secret(name.lstrip("-"))}
    return Masker({*found, *([api_key] if api_key else [])})


def _flags(argv: tuple[str, ...]) -> list[tuple[str, str]]:
    spaced = [(a, b) for a, b in pairwise(argv) if a.startswith("-") and "=" not in a]
    joined = [(a.partition("=")[0], a.partition("=")[2]) for a in argv if a.startswith("-") and "=" in a]
    return spaced + joined


def _inherited_notes(env: Mapping[str, str], command: Command, masker: Masker) -> list[str]:
    """Tuning that came from the caller's shell rather than from the declared config."""
    found = [n for n in sorted(env) if n.startswith(TUNING) and os.environ.get(n) == env[n] and n not in command.env]
    return [f"inherited from the environment: {n}={MASK if is_secret(n) else masker(env[n])}" for n in found]


def _write_provenance(spec: Spec, config: ServerConfig, command: Command, lease: Lease) -> None:
    """Beside the log: what was run, for whoever reads the log later. Secrets are masked."""
    facts = {
        "launch": spec.launch_id,
        "key": config.key,
        "config": config.canonical(),
        "command": [spec.masker(a) for a in command.argv],
        "env": {k: spec.masker(str(v)) for k, v in mask(command.env).items()},
        "cwd": spec.cwd,
        "gpus": lease.uuids,
    }
    spec.log.with_suffix(".json").write_text(json.dumps(facts, indent=1, default=str) + "\n", "utf-8")


def resume(config: ServerConfig, engine: Engine, kept: Kept, state_dir: Path) -> Server:
    """Take up a server that an earlier run left: same process, same port, still generating. Raises LaunchError."""

    def error(what: str, advice: str = "") -> LaunchError:
        return LaunchError(what)

    found = ports.listeners(kept.port, {p.pid for p in kept.tree()})
    if not found.ours or found.foreign:
        raise error("it does not listen on its port any more")
    check_model(kept.endpoint, engine.model_name(config), error)
    answer = http.Exchange(kept.endpoint, "POST", "/v1/completions", completion(engine, config), timeout=60.0).answer()
    if problem := completion_problem(answer):
        raise error(problem)
    log = Log(Path(kept.log), Masker([kept.api_key] if kept.api_key else []))
    effective = engine.effective(config, http.LiveProbe(kept.endpoint, log.text))
    mismatches = engine.mismatches(config, effective)
    launch = Launch(
        id=kept.id,
        config=config,
        endpoint=kept.endpoint,
        effective=effective,
        startup_s=kept.startup_s,
        started_at=kept.started_at,
        model=engine.model_name(config),
        log_path=log.path,
        cache_state=effective.cache_state,
        gpus=kept.gpus,
        pids=tuple(p.pid for p in kept.tree()),
        reused=True,
        notes=kept.notes,
    )
    return Server(launch, engine, KeptLife(kept, state_dir), log, mismatches)
