"""What a measurement needs to know about a running server, whoever keeps it alive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_llmperf.engines.base import Counters, Endpoint, Engine
from pytest_llmperf.server.attached_life import AttachedLife
from pytest_llmperf.server.running_server import Server
from pytest_llmperf.server_config import ServerConfig


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Connection:
    """``counters`` reads the server's metrics once; ``check`` raises ``ServerDiedError`` with the cause when the
    server is gone; ``disagreement``, of a server that somebody else runs, says how its answers disagree about who gives
    them; ``eager``: the engine says that it captured no graph; ``gpus`` are UUIDs and ``pids`` the server's processes
    on this host (empty when remote)."""

    endpoint: Endpoint
    model: str
    engine: Engine
    config: ServerConfig
    launch_id: str
    counters: Callable[[], Counters | None] = _nothing
    check: Callable[[], None] = _nothing
    disagreement: Callable[[], str | None] | None = None
    log: Callable[[], str] = str
    eager: bool = False
    gpus: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()

    @classmethod
    def to(cls, server: Server) -> Connection:
        """A running server as a measurement needs it."""
        launch, life = server.launch, server.life
        return cls(
            endpoint=launch.endpoint,
            model=launch.model,
            engine=server.engine,
            config=launch.config,
            launch_id=launch.id,
            counters=server.counters,
            check=server.check,
            disagreement=life.disagreement if isinstance(life, AttachedLife) else None,
            log=server.log,
            eager=launch.effective.cuda_graph is False,
            gpus=launch.gpus,
            pids=launch.pids,
        )
