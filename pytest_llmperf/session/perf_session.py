"""An opted-in session in one process: the tests it collected, the servers they use, the verdicts on them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_llmperf.engines.base import Engine
from pytest_llmperf.engines.declaration import MAPPINGS, engines_of
from pytest_llmperf.errors import ConfigError, LaunchError, nearest
from pytest_llmperf.hardware import Hardware
from pytest_llmperf.measure.measuring_progress import MeasuringProgress
from pytest_llmperf.measure.metrics import Metric
from pytest_llmperf.measure.prompts import PromptLedger, session_nonce
from pytest_llmperf.measure.workloads import Workload
from pytest_llmperf.options import Options
from pytest_llmperf.server import attach
from pytest_llmperf.server.gpu_inventory import hardware
from pytest_llmperf.server.launch import Launch
from pytest_llmperf.server.pool import PoolSettings, Server, ServerPool
from pytest_llmperf.server.running_server import LAST_WORDS_S
from pytest_llmperf.server.state import state_dir
from pytest_llmperf.server.turns import measuring
from pytest_llmperf.server_config import ServerConfig
from pytest_llmperf.session import cold_launches, extensions, schedule
from pytest_llmperf.session.from_markers import Declarations, planned
from pytest_llmperf.session.llm_server import LlmServer
from pytest_llmperf.session.perf_test import PerfTest
from pytest_llmperf.session.sweep_test import SweepTest

if TYPE_CHECKING:
    from pytest_llmperf.baselines.fitted_priors import Priors
    from pytest_llmperf.measure.run import Run
    from pytest_llmperf.session.verdicts import Baseline, Verdicts
    from pytest_llmperf.stats import Prior

#: Holds the key of the server that ``--llmperf-url`` attaches to.
API_KEY_ENV = "LLMPERF_API_KEY"


class PerfSession:
    """One per process (the controller's collects nothing under xdist; each worker has its own)."""

    def __init__(
        self,
        config: pytest.Config,
        options: Options,
        say: Callable[[str], None],
        measuring: Callable[[str, MeasuringProgress], None],
    ) -> None:
        """``say`` is told what starts, ``measuring`` how far the measurement of a test is."""
        self._config = config
        self.options = options
        self.say = say
        self._measuring = measuring
        self.engines: dict[str, Engine] = extensions.engines(config)
        self.metrics: dict[str, Metric] = extensions.metrics(config)
        self._declarations = Declarations(options, self.engines, self.metrics)
        self.tests: dict[str, PerfTest] = {}
        self.groups: dict[str, str] = {}
        """nodeid to group, once collected."""
        self._stale: set[str] = set()
        self._spent: set[str] = set()
        self._ledgers: dict[str, PromptLedger] = {}
        if options.url:
            attach.parse(options.url, API_KEY_ENV)
        for name in (*options.engine, *options.engines):
            if name not in self.engines:
                raise ConfigError(f"no engine {name!r}{nearest(name, self.engines)}")
        for key in dict.fromkeys(key for key, _ in options.presets):
            if key not in (known := MAPPINGS | self.engines.keys()):
                raise ConfigError(
                    f"presets are for keys of llm_server that hold a table, not {key!r}{nearest(key, known)}"
                )

    # -- collection

    def engines_for(self, item: pytest.Item) -> tuple[str, ...]:
        """Engines a test runs on: the chosen ones that its marker allows, else its marker's own. Raises
        ``ConfigError``."""
        own = engines_of(self._declarations.of(item))
        chosen = tuple(e for e in self.options.engine if not own or e in own)
        return chosen or own or self.options.engine

    def add(self, item: pytest.Item, nodeid: str, engine: str | None) -> None:
        """Register a collected test. Raises ``ConfigError`` with a line for each thing that its markers have wrong."""
        self.tests[item.nodeid] = planned(item, nodeid, engine, self._declarations)

    def regroup(self) -> None:
        """Group the registered tests by the servers they need."""
        self.groups = schedule.groups({key: t.keys for key, t in self.tests.items()})
        for key, test in self.tests.items():
            test.group = self.groups[key]

    @property
    def gated(self) -> int:
        """Gated metrics of the whole session, the same in every process."""
        return sum(t.metric_count for t in self.tests.values())

    # -- servers

    @cached_property
    def hardware(self) -> Hardware:
        """What this host is, as far as a baseline cares."""
        found = hardware()
        if found.problem:
            self.say(f"GPUs: {found.problem}")
        return found

    @cached_property
    def pool_settings(self) -> PoolSettings:
        o = self.options
        return PoolSettings(
            engines=o.engines,
            log_dir=o.log_dir,
            state_dir=self.state_dir,
            startup_timeout=o.startup_timeout,
            stop_grace=o.stop_grace,
            gpu_wait=o.gpu_wait,
            keep=o.keep_servers,
            url=o.url,
            api_key_env=API_KEY_ENV,
            plain_progress=o.ci,
            worker=os.environ.get("PYTEST_XDIST_WORKER", ""),
        )

    @cached_property
    def pool(self) -> ServerPool:
        return ServerPool(self.pool_settings, self.engines, self.say)

    @cached_property
    def state_dir(self) -> Path:
        return state_dir()

    def server(self, test: PerfTest, config: ServerConfig) -> Server:
        """The running server of ``config``, launched now if need be. Raises ``LaunchError``."""
        with _blaming(test, config):
            if isinstance(test, SweepTest):
                self.say(f"{config.label}: sweep of {test.plan.name}, {test.progress}")
                former, test.up = test.up, config
                server = self.pool.fresh(config, after=former)
            elif config.key in self._stale:
                self._stale.discard(config.key)
                server = self.pool.fresh(config)
            else:
                server = self.pool.get(config)
            server = self.counting(test, server, self.pool, config.key)
        test.launches[server.launch.id] = server.launch
        return server

    def counting(self, test: PerfTest, server: Server, pool: ServerPool, key: str) -> Server:
        """``server``, or a launch in its place where it compiled and warm launches alone count; once a ``key``."""
        launch, options = server.launch, self.options
        if options.cold or launch.attached or key in self._spent:
            return server
        purpose = self._purpose(test, launch) if launch.cache_state == "cold" else ""
        why = cold_launches.spent(launch.cache_state, purpose, unknown_too=options.warm_caches)
        if why is None:
            return server
        self._spent.add(key)
        label, said = launch.config.label, f"launch {launch.id} {why}: another in its place (--llmperf-cold keeps it)"
        self.say(f"{label}: {said}")
        test.launches[launch.id] = replace(launch, spent=why, notes=(*launch.notes, said))
        server = pool.fresh(launch.config)
        if server.launch.cache_state == "cold":
            test.notes.append(f"{label}: compiles at each launch, so such launches count: its cache does not last")
        return server

    def _purpose(self, test: PerfTest, launch: Launch) -> str:
        """What befalls warm launches alone (recorded, judged, compared); empty where those that compiled count too."""
        if test.ab or isinstance(test, SweepTest):
            return "compared"
        gating = [t for t in self.tests.values() if t.group == test.group and launch.config in t.configs and t.perf]
        if gating and self.options.update and self.options.launches > 1:
            return "recorded"
        return "judged" if any(self.verdicts.warm(t.test, launch) for t in gating) else ""

    def open(self, test: PerfTest, config: ServerConfig) -> LlmServer:
        """The server of ``config`` as ``test`` uses it. Raises ``LaunchError``, and ``BaselineError`` before that."""
        if test.perf and test.gates:
            self.verdicts.known(test.test, config.engine)  # a broken file is told before minutes are spent on a launch
        return self.seen(test, self.server(test, config))

    def seen(self, test: PerfTest, server: Server) -> LlmServer:
        """``server`` as a test sees it."""
        return LlmServer(test, server, partial(self.measure, test, server))

    def renew(self, group: str) -> None:
        for test in self.tests.values():
            if test.group == group:
                self._stale.update(c.key for c in test.configs)

    def release(self, group: str) -> None:
        for config in {c for t in self.tests.values() if t.group == group for c in t.configs}:
            self._stale.discard(config.key)
            self.pool.release(config)

    def close(self) -> list[str]:
        """Stop every server and say what was left up or could not be ended. Idempotent."""
        if "pool" not in self.__dict__:
            return []
        self.pool.close()
        return self.pool.notices

    # -- measuring and judging

    def measure(self, test: PerfTest, server: Server, workload: Workload) -> Run:
        """Measure ``workload`` when it is this process's turn. Raises ``ServerDiedError`` when the server is gone."""
        # here: a process that measures nothing (xdist's controller, a wrong marker) need not wait for openai's import
        from pytest_llmperf.measure.client.connection import Connection
        from pytest_llmperf.measure.load import load
        from pytest_llmperf.measure.run import extended
        from pytest_llmperf.measure.stream import stream

        launch = server.launch
        # what an earlier session sent to a server that it left up is not known here
        nonce = session_nonce() if launch.reused or launch.attached else ""
        ledger = self._ledgers.setdefault(launch.id, PromptLedger(nonce))
        run = load if workload.requests is not None or workload.seconds is not None else stream
        say = partial(self._measuring, test.in_round)
        turn = measuring(self.state_dir, test.nodeid, self.say, not self.options.parallel_measure)
        with _blaming(test, launch.config), turn:
            server.check(LAST_WORDS_S if launch.attached else 0.0)
            started = time.monotonic()
            result = run(Connection.to(server), workload, seed=f"{test.test}:{launch.id}", say=say, reuse=ledger)
            test.measuring_s += time.monotonic() - started
            if result.measurement.invalid or launch.attached:
                # its death explains a broken request, and is no property of the measurement; nor is a restart, which
                # breaks none when it falls between two of them
                server.check(LAST_WORDS_S)
        result = extended(result, self.metrics)
        test.measured(result.measurement)
        test.add_load(launch, result.measurement)
        return result

    @cached_property
    def verdicts(self) -> Verdicts:
        from pytest_llmperf.session.verdicts import Verdicts  # here: scipy is for sessions that judge

        return Verdicts(
            self.options,
            self.hardware,
            self.gated,
            self.state_dir,
            self._config.rootpath,
            self.engines,
            self.metrics,
            extra=self._extra_fingerprint,
        )

    def baseline(self, test: PerfTest) -> Baseline:
        from pytest_llmperf.session.verdicts import Baseline

        return Baseline(self.verdicts, test, can_confirm=self.options.confirm > 0 and not self.options.url)

    def priors(self, launch: Launch, workload: Workload) -> Priors:
        """How much launches like this one differ."""
        return self.verdicts.priors(launch.config.engine, self.verdicts.fingerprint(launch, workload.identity()))

    def prior(self, launch: Launch, workload: Workload, metric: Metric) -> Prior:
        """The same for one metric, where nothing is stored as the engine and the metric usually do."""
        return self.priors(launch, workload).of(metric, self.engines[launch.config.engine].launch_spread)

    def _extra_fingerprint(self, config: ServerConfig) -> dict[str, str]:
        fields: dict[str, str] = {}
        for found in self._config.hook.pytest_llmperf_fingerprint(config=self._config, server=config):
            fields.update(found)
        return fields


@contextmanager
def _blaming(test: PerfTest, config: ServerConfig) -> Iterator[None]:
    """A server that fails is the one at hand, whatever others the test needs."""
    try:
        yield
    except LaunchError:
        test.failed = config
        raise
