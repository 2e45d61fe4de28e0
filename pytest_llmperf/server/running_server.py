"""One running server as tests use it, whatever started it: this session, an earlier one, or somebody else."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from pytest_llmperf.engines.base import Counters, Endpoint, Engine, Mismatch
from pytest_llmperf.errors import LaunchError, ServerDiedError
from pytest_llmperf.server import compile_cache, diagnose, http
from pytest_llmperf.server.launch import Launch
from pytest_llmperf.server.leases import Lease
from pytest_llmperf.server.logs import Log
from pytest_llmperf.server.process import EngineProcess, Remains
from pytest_llmperf.server_config import ServerConfig

#: Seconds to wait for word of an engine's end once its port refuses connections.
LAST_WORDS_S = 2.0


class Life(Protocol):
    """What holds a server up."""

    def ended(self, wait: float) -> str | None:
        """How it ended, waiting up to ``wait`` seconds for that news; None while it lives."""

    def ask_to_stop(self) -> None:
        """Begin to stop, without waiting."""

    def stop(self) -> Remains:
        """Stop and wait until it is gone."""


@dataclass(frozen=True)
class OwnLife:
    """A server under a supervisor of this session."""

    process: EngineProcess
    log: Log
    engine: Engine

    def ended(self, wait: float) -> str | None:
        p = self.process
        if p.poll(wait):
            return None
        if p.code is None:
            return "its supervisor was killed"
        cause = diagnose.find_cause(self.log.text(), p.code, self.engine.crash_patterns, self.engine.fatal_patterns)
        return str(cause) + (f"\nwhat to do: {cause.advice}" if cause.advice else "")

    def ask_to_stop(self) -> None:
        self.process.ask_to_stop()

    def stop(self) -> Remains:
        return self.process.stop()


class Server:
    """A ready server. ``launch`` says what it is; ``stop`` ends it (a server that was attached to is left alone)."""

    def __init__(
        self, launch: Launch, engine: Engine, life: Life, log: Log, mismatches: Sequence[Mismatch] = ()
    ) -> None:
        self.launch = launch
        self.lease = Lease()
        self.life = life
        self.engine = engine
        self._log = log
        self._mismatches = tuple(mismatches)
        self._stopped = False

    def __repr__(self) -> str:
        return f"<Server {self.launch.config.label} {self.launch.endpoint.root_url} launch {self.launch.id}>"

    def check(self, wait: float = 0.0) -> None:
        """Raise ``ServerDiedError`` with the cause when the server has ended or takes no connections.

        ``wait`` is how many seconds news of its end may take to come: a broken connection is often the first of it.
        """
        how = "it was stopped by this session" if self._stopped else self.life.ended(wait)
        if how is None and not accepts(self.launch.endpoint):
            how = self.life.ended(LAST_WORDS_S) or f"{self.launch.endpoint.root_url} takes no connections any more"
        if how is not None:
            raise ServerDiedError(
                f"{self.launch.config.label}, launch {self.launch.id}, died: {how}\n"
                f"last lines of its log:\n{diagnose.tail(self.log())}\nfull log: {self.launch.log_path or 'not here'}"
            )

    def counters(self) -> Counters | None:
        """The engine's counters now; None where it offers none."""
        path = self.engine.metrics_path
        if path is None:
            return None
        answer = http.get(self.launch.endpoint, path)
        return self.engine.counters(answer.text) if answer.ok else None

    def log(self) -> str:
        """The log so far, secrets masked; empty where the log is not on this host."""
        return self._log.text()

    def require(self, config: ServerConfig) -> None:
        """Raise ``LaunchError`` when the server did not take what ``config`` declares, save what that allows."""
        wrong = [m for m in self._mismatches if m.field not in config.allow_mismatch]
        if wrong:
            lines = "\n".join(f"  {mismatch_text(m)}" for m in wrong)
            names = ", ".join(repr(m.field) for m in wrong)
            raise LaunchError(
                f"{config.label} is up, but not as declared:\n{lines}\n"
                f"what to do: declare what the engine takes, or allow_mismatch=[{names}] in the llm_server marker to "
                f"go on with a note\nfull log: {self.launch.log_path or 'not here'}"
            )

    def stop(self) -> None:
        """Stop the whole process tree, wait until it is gone, give its GPUs back. Idempotent."""
        self.end()
        self.lease.close()
        self.lease = Lease()

    def end(self) -> Remains:
        """``stop``, but keep the GPUs leased (for a fresh launch on the same ones)."""
        self._stopped = True
        return self.life.stop()


def serving(
    engine: Engine,
    config: ServerConfig,
    endpoint: Endpoint,
    life: Life,
    log: Log,
    *,
    id_: str,
    started_at: float,
    startup_s: float,
    gpus: tuple[str, ...] = (),
    pids: tuple[int, ...] = (),
    reused: bool = False,
    attached: bool = False,
    notes: Sequence[str] = (),
    circumstances: Mapping[str, str] = MappingProxyType({}),
) -> Server:
    """A server that has generated a token, asked what it resolved ``config`` to; the arguments are ``Launch``'s."""
    effective = engine.effective(config, http.LiveProbe(endpoint, log.text))
    mismatches = engine.mismatches(config, effective)
    launch = Launch(
        id=id_,
        config=config,
        endpoint=endpoint,
        effective=effective,
        startup_s=startup_s,
        started_at=started_at,
        model=engine.model_name(config),
        log_path=log.path,
        cache_state=(effective.cache_state or compile_cache.state(pids, started_at)) if engine.compiles else "none",
        gpus=gpus,
        pids=pids,
        reused=reused,
        attached=attached,
        notes=tuple(dict.fromkeys((*notes, *map(mismatch_text, mismatches)))),
        circumstances=circumstances,
    )
    return Server(launch, engine, life, log, mismatches)


def mismatch_text(m: Mismatch) -> str:
    """``attention_backend: declared flashinfer, effective triton (why)``"""
    return f"{m.field}: declared {m.declared}, effective {m.effective}" + (f" ({m.why})" if m.why else "")


def accepts(endpoint: Endpoint, timeout: float = 5.0) -> bool:
    """True when a TCP connection can be opened."""
    with contextlib.suppress(OSError), socket.create_connection((endpoint.host, endpoint.port), timeout):
        return True
    return False
