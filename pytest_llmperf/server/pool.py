"""The servers of one session: each config launched once, reused while it is needed, and gone at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping

from pytest_llmperf.engines.base import Engine
from pytest_llmperf.errors import ConfigError, LaunchError
from pytest_llmperf.hardware import Inventory
from pytest_llmperf.server import attach, kept, leases, places, start
from pytest_llmperf.server.gpu_inventory import system_inventory
from pytest_llmperf.server.launch import Launch, PoolSettings
from pytest_llmperf.server.process import Remains
from pytest_llmperf.server.recipe import digest
from pytest_llmperf.server.running_server import LAST_WORDS_S, OwnLife, Server
from pytest_llmperf.server.state import Lock
from pytest_llmperf.server_config import ServerConfig

__all__ = ["Launch", "PoolSettings", "Server", "ServerPool"]


class ServerPool:
    """Servers by config key.

    ``say`` gets lines for people as things happen: ``SERVER: what it does``. What must still be read at the end of the
    session is in ``notices`` as well. ``inventory`` is the GPU driver's view, the system's own by default.
    """

    def __init__(
        self,
        settings: PoolSettings,
        engines: Mapping[str, Engine],
        say: Callable[[str], None],
        inventory: Inventory | None = None,
    ) -> None:
        self.settings = settings
        self.launches: list[Launch] = []
        """Every launch that became ready, in order."""
        self.failures: dict[str, list[str]] = {}
        """Config key to what went wrong with it."""
        self.notices: list[str] = []
        """Servers left up, and whatever could not be ended."""
        self._engines = engines
        self._say = say
        self._inventory = inventory
        self._servers: dict[str, Server] = {}
        self._broken: dict[str, str] = {}
        self._claims: dict[str, Lock] = {}
        self._context = start.Context(settings, self._tell)

    def get(self, config: ServerConfig) -> Server:
        """The running server of ``config``, launched now if it is the first to ask.

        Raises ``LaunchError``; a config that could not be started is not tried again: that is told in full once, later
        by its first line and where the log is.
        """
        server = self._servers.get(config.key)
        if server is not None and server.launch.attached and server.life.ended(LAST_WORDS_S):
            self._tell(f"{config.label}: {server.launch.endpoint.root_url} was restarted: it is another launch now")
            server = None
        if server is None:
            server = self._first(config)
        return self._checked(server, config)

    def fresh(self, config: ServerConfig, after: ServerConfig | None = None) -> Server:
        """Another launch of ``config``, on the same GPUs, after the one that runs has been stopped.

        The one that runs is of ``after``, where that is given: its GPUs go over to ``config`` if that needs as many.
        """
        if self.settings.url:
            raise LaunchError(
                f"{config.label}: a fresh launch was asked for, but --llmperf-url attaches to a server that this "
                "session may not restart: run without --llmperf-url to confirm on fresh launches"
            )
        former = after or config
        old = self._servers.pop(former.key, None)
        lease = leases.Lease()
        if old is not None:
            lease, old.lease = old.lease, lease
            self._report(old, old.end())
            self._unclaim(former.key)
        if config.key in self._broken or len(lease.gpus) != self._engine(config).gpu_count(config):
            lease.close()
            lease = leases.Lease()
        self._raise_if_broken(config)
        return self._checked(self._remember(config, lambda: self._launch(config, lease)), config)

    def release(self, config: ServerConfig) -> None:
        """``config`` is needed no more: stop its server, or leave it up with ``--keep-servers``."""
        server = self._servers.pop(config.key, None)
        if server is not None:
            self._let_go(server)

    def close(self) -> None:
        """Let go of every server, side by side. Idempotent."""
        if not self.settings.keep:
            for server in self._servers.values():
                server.life.ask_to_stop()
        with contextlib.ExitStack() as everyone:  # one that fails must not keep the others from their end
            while self._servers:
                everyone.callback(self._let_go, self._servers.popitem()[1])

    # -- getting

    def _first(self, config: ServerConfig) -> Server:
        self._raise_if_broken(config)
        engine = self._engine(config)
        if self.settings.url:
            endpoint = attach.parse(self.settings.url, self.settings.api_key_env)
            name = self.settings.api_key_env
            return self._remember(config, lambda: attach.attach(config, engine, endpoint, name))
        if self.settings.keep and (server := self._reuse(config, engine)):
            return self._remember(config, lambda: server)
        return self._remember(config, lambda: self._launch(config, leases.Lease()))

    def _launch(self, config: ServerConfig, lease: leases.Lease) -> Server:
        engine = self._engine(config)
        if not lease.gpus:
            lease = self._lease(config, engine)
        with contextlib.ExitStack() as unless_started:
            unless_started.callback(lease.close)
            server = start.start(config, engine, lease, self._context)
            unless_started.pop_all()
        server.lease = lease
        return server

    def _lease(self, config: ServerConfig, engine: Engine) -> leases.Lease:
        count = engine.gpu_count(config)
        if not count or self._context.of(engine).remote:
            return leases.Lease()
        self._inventory = self._inventory or system_inventory()
        mine = {uuid: s.launch.config.label for s in self._servers.values() for uuid in s.launch.gpus}
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
        ask = leases.Ask(count, config.label, self.settings.gpu_wait, mine, run)
        return leases.acquire(ask, self._inventory, self.settings.state_dir, os.environ, self._tell)

    def _reuse(self, config: ServerConfig, engine: Engine) -> Server | None:
        identity = digest(config, engine, self._context.of(engine))
        claimed = kept.claim(self.settings.state_dir, config.key, identity)
        if claimed is None:
            return None
        found, self._claims[config.key] = claimed
        try:
            server = start.resume(config, engine, found, self._context)
        except LaunchError as e:
            self._tell(f"{config.label}: the server that was left up cannot be used ({e}); stopping it")
            kept.end(found, self.settings.state_dir)
            self._unclaim(config.key)
            return None
        self._tell(f"{config.label}: using the server that was left up (launch {found.id})")
        return server

    def _remember(self, config: ServerConfig, make: Callable[[], Server]) -> Server:
        try:
            server = make()
        except LaunchError as e:
            self._broken[config.key] = _in_short(str(e))
            self.failures.setdefault(config.key, []).append(str(e))
            raise
        self._servers[config.key] = server
        self.launches.append(server.launch)
        return server

    def _checked(self, server: Server, config: ServerConfig) -> Server:
        try:
            server.require(config)
        except LaunchError as e:
            if str(e) not in self.failures.setdefault(config.key, []):
                self.failures[config.key].append(str(e))
            raise
        return server

    def _raise_if_broken(self, config: ServerConfig) -> None:
        if config.key in self._broken:
            raise LaunchError(self._broken[config.key])

    def _engine(self, config: ServerConfig) -> Engine:
        if config.engine not in self._engines:
            raise ConfigError(f"no engine {config.engine!r}: there are {', '.join(sorted(self._engines))}")
        return self._engines[config.engine]

    # -- letting go

    def _let_go(self, server: Server) -> None:
        config = server.launch.config
        if self.settings.keep and server.life.ended(0.0) is None and not server.launch.attached:
            self._leave_up(server)
        else:
            self._report(server, server.end())
        server.lease.close()
        server.lease = leases.Lease()
        self._unclaim(config.key)

    def _leave_up(self, server: Server) -> None:
        launch, life = server.launch, server.life
        if isinstance(life, OwnLife):
            engine = self._engine(launch.config)
            identity = digest(launch.config, engine, self._context.of(engine))
            try:
                kept.record(kept.of(launch, life.process, identity, self.settings.stop_grace), self.settings.state_dir)
            except OSError as e:
                self._note(f"{launch.config.label}: cannot be left up, for no later run would know it: {e}")
                self._report(server, server.end())
                return
            life.process.keep()
            for lock in server.lease.locks:
                lock.sign(label=launch.config.label, kept=launch.id)
        self._note(f"{launch.config.label}: left up at {launch.endpoint.root_url} (`llmperf servers stop` ends it)")

    def _report(self, server: Server, remains: Remains) -> None:
        label = server.launch.config.label
        if remains.left:
            self._note(f"{label}: could not be ended: pid {', '.join(map(str, remains.left))} (stuck in the kernel?)")
        if remains.holding:
            self._note(f"{label}: GPU memory still held by pid {', '.join(map(str, remains.holding))} after its end")
        if remains.unseen:
            self._note(f"{label}: whether its GPUs are free is not known: their driver (NVML) fails, see `nvidia-smi`")
        if remains.unclean:
            self._note(f"{label}: {server.launch.log_path} may hold secrets ({remains.unclean}): remove it")
        launch = server.launch
        remote = self._context.of(server.engine).remote and not launch.attached
        if remote and places.still_up(launch, server.engine):
            whose = "with the API key of this launch" if launch.endpoint.api_key else "(it was given no API key)"
            self._note(
                f"{label}: {launch.endpoint.root_url} still answers {whose} after its launcher was stopped: end it "
                "where it runs"
            )

    def _unclaim(self, key: str) -> None:
        if key in self._claims:
            self._claims.pop(key).close()

    def _tell(self, line: str) -> None:
        self._say(f"[{self.settings.worker}] {line}" if self.settings.worker else line)

    def _note(self, line: str) -> None:
        self.notices.append(line)
        self._tell(line)


def _in_short(said: str) -> str:
    """A failed start as a later test of the config tells it: its first line, the list that this announces, the log."""
    first, *others = said.splitlines()
    kept = [x for x in others if x.startswith("full log:") or (first.endswith(":") and x.startswith("  "))]
    return "\n".join([first, *kept])
