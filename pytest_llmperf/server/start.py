"""One launch from a free port to a server that has generated a token; or a kept server taken up again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.engines.base import Engine, EngineSettings
from pytest_llmperf.errors import LaunchError
from pytest_llmperf.server import http, ports
from pytest_llmperf.server.kept import Kept, KeptLife
from pytest_llmperf.server.launch import PoolSettings, new_id
from pytest_llmperf.server.leases import Lease
from pytest_llmperf.server.logs import Log
from pytest_llmperf.server.process import EngineProcess, ProcessSpec
from pytest_llmperf.server.readiness import (
    COMPLETIONS,
    PortLostError,
    Readiness,
    Start,
    check_model,
    completion,
    completion_problem,
)
from pytest_llmperf.server.recipe import Recipe, masker_for, recipe
from pytest_llmperf.server.running_server import OwnLife, Server, serving
from pytest_llmperf.server.visible import variables
from pytest_llmperf.server_config import ServerConfig

#: Starts that may lose their port before the launch is given up.
TRIES = 4


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
    lost: list[str] = []
    while True:
        # Should an engine bind without SO_REUSEADDR, our own hold on its port was in the way: let go the next time.
        reservation = _reserve(own, hold=not lost)
        try:
            plan = recipe(config, engine, own, reservation.port, variables(lease.gpus))
            hold = (*lease.fds, *([reservation.socket.fileno()] if reservation.socket else []))
            return _run(config, engine, lease, context, plan, hold, tuple(lost))
        except PortLostError:
            if own.port or len(lost) + 1 == TRIES:
                raise
            lost.append(f"port {reservation.port} was lost to another program; started again")
        finally:
            reservation.close()


def _reserve(own: EngineSettings, hold: bool) -> ports.Reservation:
    """On another host this kernel's choice is a guess, as good as any."""
    if own.port:
        return ports.Reservation(own.port)
    return ports.reserve("127.0.0.1", hold=False) if own.remote else ports.reserve(own.bind, hold)


def _run(
    config: ServerConfig,
    engine: Engine,
    lease: Lease,
    context: Context,
    plan: Recipe,
    hold: tuple[int, ...],
    notes: tuple[str, ...],
) -> Server:
    own, settings = context.of(engine), context.settings
    launch_id = new_id()
    path = settings.log_dir.resolve() / f"{launch_id}-{config.engine}-{config.key}.log"
    log = Log(path, plan.masker)
    spec = ProcessSpec(
        launch_id=launch_id,
        argv=plan.argv,
        env=plan.env,
        log=path,
        masker=plan.masker,
        cwd=own.cwd or str(Path.cwd()),
        grace=settings.stop_grace,
        stop_signal=engine.stop_signal,
        gpus=lease.uuids,
        hold=hold,
        controller=os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else None,
    )
    try:
        _make_folder(path.parent)
        _write_provenance(path, launch_id, config, plan, lease)
        process = EngineProcess(spec)
    except OSError as e:
        raise LaunchError(f"{config.label}: nothing can be started here: {e}\nits log was to be {path}") from None
    begun = Start(
        engine=engine,
        config=config,
        endpoint=plan.endpoint,
        process=process,
        log=log,
        keyed=plan.keyed,
        local=not own.remote,
        timeout=config.startup_timeout or settings.startup_timeout,
        say=context.say,
        plain=settings.plain_progress,
    )
    with ExitStack() as unless_ready:
        unless_ready.callback(process.stop)
        readiness = Readiness(begun)
        startup_s = readiness.wait()
        server = serving(
            engine,
            config,
            plan.endpoint,
            OwnLife(process, log, engine),
            log,
            id_=launch_id,
            started_at=process.started_at,
            startup_s=startup_s,
            gpus=lease.uuids,
            pids=tuple(p.pid for p in process.tree()),
            notes=(*notes, *readiness.notes, *plan.notes),
            circumstances=plan.circumstances,
        )
        unless_ready.pop_all()
    return server


def _make_folder(path: Path) -> None:
    """The logs' folder; a new one keeps itself out of git, as pytest's cache does."""
    if not path.exists():
        path.mkdir(parents=True, exist_ok=True)
        (path / ".gitignore").write_text("*\n", encoding="utf-8")


def _write_provenance(log: Path, launch_id: str, config: ServerConfig, plan: Recipe, lease: Lease) -> None:
    """Beside the log: what was run, for whoever reads the log later."""
    facts = {"launch": launch_id, "key": config.key, "config": config.canonical(), "gpus": lease.uuids}
    text = plan.masker(json.dumps({**facts, **plan.provenance()}, indent=1, default=str))
    log.with_suffix(".json").write_text(f"{text}\n", "utf-8")


def resume(config: ServerConfig, engine: Engine, kept: Kept, context: Context) -> Server:
    """Take up a server that an earlier run left: same process, same port, still generating. Raises LaunchError."""

    own = context.of(engine)
    command = engine.command(config, own, kept.endpoint)
    log = Log(Path(kept.log), masker_for(config, command.argv, command.env, kept.api_key))

    def error(what: str, advice: str = "") -> LaunchError:
        return LaunchError(log.masker(what))

    found = ports.listeners(kept.port, {p.pid for p in kept.tree()})
    if not own.remote and (not found.ours or found.foreign):
        raise error("it does not listen on its port any more")
    check_model(kept.endpoint, engine.model_name(config), error)
    answer = http.Exchange(kept.endpoint, "POST", COMPLETIONS, completion(engine, config), timeout=60.0).answer()
    if problem := completion_problem(answer):
        raise error(problem)
    return serving(
        engine,
        config,
        kept.endpoint,
        KeptLife(kept, context.settings.state_dir),
        log,
        id_=kept.id,
        started_at=kept.started_at,
        startup_s=kept.startup_s,
        gpus=kept.gpus,
        pids=tuple(p.pid for p in kept.tree()),
        reused=True,
        notes=kept.notes,
        circumstances=kept.circumstances,
    )
