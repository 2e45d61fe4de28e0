"""The plugin's state in one process: the tests it collected, the servers they use, the judge that gates them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf import markers, schedule
from pytest_llmperf.engines.base import Engine
from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.errors import ConfigError, LaunchError, MeasurementError
from pytest_llmperf.gating import Baseline, Judge
from pytest_llmperf.measure.load import load
from pytest_llmperf.measure.metrics import METRICS, Workload
from pytest_llmperf.measure.prompts import PromptLedger
from pytest_llmperf.measure.run import Connection, Run
from pytest_llmperf.measure.stream import stream
from pytest_llmperf.options import Options, nearest
from pytest_llmperf.report.collect import server_record
from pytest_llmperf.report.records import Result
from pytest_llmperf.server.config import ServerConfig
from pytest_llmperf.server.gpus import hardware
from pytest_llmperf.server.pool import PoolSettings, Server, ServerPool
from pytest_llmperf.server.state import state_dir
from pytest_llmperf.server.turns import measuring
from pytest_llmperf.subject import PerfTest


class Session:
    """One per process (the controller's collects nothing under xdist; each worker has its own)."""

    def __init__(self, config: pytest.Config, options: Options, say: Callable[[str], None]) -> None:
        self._config = config
        self.options = options
        self.say = say
        self.engines: dict[str, Engine] = dict(builtin())
        for found in config.hook.pytest_llmperf_engines(config=config):
            self.engines.update({e.name: e for e in found})
        self.tests: dict[str, PerfTest] = {}
        self._stale: set[str] = set()
        self._warmed: set[str] = set()
        self._ledgers: dict[str, PromptLedger] = {}
        for name in (*options.engine, *options.engines):
            if name not in self.engines:
                raise ConfigError(f"no engine {name!r}{nearest(name, self.engines)}")

    # -- collection

    def engines_for(self, declaration: Mapping[str, Any] | None) -> tuple[str, ...]:
        """Engines a test runs on: the chosen ones that its marker allows, else its marker's own."""
        own = markers.engines_of(declaration)
        chosen = tuple(e for e in self.options.engine if not own or e in own)
        return chosen or own or self.options.engine

    def add(self, item: pytest.Item, engine: str, location: str) -> PerfTest:
        """Register a collected test. Raises ``ConfigError`` for a wrong marker."""
        perf = markers.Perf.from_item(item)
        declaration = markers.declared(item, self.options.profiles)
        if declaration is None:
            raise ConfigError(f"{item.nodeid}: uses llm_server but no @pytest.mark.llm_server(model=...) declares one")
        if engine not in self.engines:
            raise ConfigError(f"{item.nodeid}: no engine {engine!r}{nearest(engine, self.engines)}")

        def config_of(extra: Mapping[str, Any]) -> ServerConfig:
            merged = markers.merged(declaration, extra)
            return markers.server_config(merged, self.engines[engine], frozenset(self.engines), item.nodeid)

        named = {
            name: config_of(extra) for mark in item.iter_markers("llm_servers") for name, extra in mark.kwargs.items()
        }
        wants_one = "llm_server" in getattr(item, "fixturenames", ())
        test = PerfTest(item.nodeid, perf, engine, config_of({}) if wants_one or not named else None, named, location)
        self.tests[item.nodeid] = test
        return test

    def regroup(self) -> dict[str, str]:
        """Group the registered tests by the servers they need; nodeid to group."""
        groups = schedule.groups({t.nodeid: [c.key for c in t.configs] for t in self.tests.values()})
        for test in self.tests.values():
            test.group = groups[test.nodeid]
        return groups

    @property
    def gated(self) -> int:
        """Gated metrics of the whole session, the same in every process."""
        return schedule.alpha_count(len(t.perf.metrics) for t in self.tests.values() if t.perf)

    def test(self, item: pytest.Item) -> PerfTest:
        """The registered test of ``item``."""
        found = self.tests.get(item.nodeid)
        if found is None:
            pytest.fail(f"{item.nodeid}: the baseline fixture needs a test with a server (llm_server)", pytrace=False)
        return found

    # -- servers

    @cached_property
    def hardware(self) -> Any:
        """What this host is, as far as a baseline cares."""
        return hardware()

    @cached_property
    def pool(self) -> ServerPool:
        o = self.options
        return ServerPool(
            PoolSettings(
                engines=o.engines,
                log_dir=o.log_dir,
                state_dir=self.state_dir,
                startup_timeout=o.startup_timeout,
                stop_grace=o.stop_grace,
                gpu_wait=o.gpu_wait,
                keep=o.keep_servers,
                url=o.url,
            ),
            self.engines,
            self.say,
        )

    @cached_property
    def state_dir(self) -> Path:
        return state_dir()

    def server(self, test: PerfTest, config: ServerConfig) -> Server:
        """The running server of ``config``, launched now if need be. Raises ``LaunchError``."""
        if config.key in self._stale:
            self._stale.discard(config.key)
            server = self.pool.fresh(config)
        else:
            server = self.pool.get(config)
            if self.options.warm_caches and config.key not in self._warmed and not server.launch.attached:
                self.say(f"{config.label}: one launch discarded to warm the compile caches")
                server = self.pool.fresh(config)
            self._warmed.add(config.key)
        test.launches[server.launch.id] = server.launch
        return server

    def renew(self, group: str) -> None:
        for test in self.tests.values():
            if test.group == group:
                self._stale.update(c.key for c in test.configs)

    def release(self, group: str) -> None:
        for config in {c for t in self.tests.values() if t.group == group for c in t.configs}:
            self._stale.discard(config.key)
            self.pool.release(config)

    def close(self) -> None:
        """Stop every server. Idempotent."""
        if "pool" in self.__dict__:
            self.pool.close()

    # -- measuring and judging

    def measure(self, test: PerfTest, server: Server, workload: Workload) -> Run:
        """Measure ``workload`` when it is this process's turn. Raises ``ServerDiedError`` when the server is gone."""
        launch = server.launch
        connection = Connection(
            endpoint=launch.endpoint,
            model=launch.model,
            engine=self.engines[launch.config.engine],
            config=launch.config,
            launch_id=launch.id,
            counters=server.counters,
            check=server.check,
            log=server.log,
            gpus=launch.gpus,
            pids=launch.pids,
        )
        ledger = self._ledgers.setdefault(launch.id, PromptLedger())
        run = load if workload.concurrency > 1 or workload.rate is not None else stream
        with measuring(self.state_dir, not self.options.parallel_measure):
            server.check()
            started = time.monotonic()
            result = run(connection, workload, seed=f"{test.test}:{launch.id}", say=self.say, reuse=ledger)
            test.measuring_s += time.monotonic() - started
        return result

    @cached_property
    def judge(self) -> Judge:
        return Judge(self.options, self.hardware, self.gated, self._extra_fingerprint)

    def baseline(self, test: PerfTest) -> Baseline:
        return Baseline(self.judge, test, can_confirm=self.options.confirm > 0 and not self.options.url)

    def _extra_fingerprint(self, config: ServerConfig) -> dict[str, str]:
        fields: dict[str, str] = {}
        for found in self._config.hook.pytest_llmperf_fingerprint(config=self._config, server=config):
            fields.update(found)
        return fields

    # -- what a test report carries

    def payload(self, test: PerfTest, error: BaseException | None) -> dict[str, Any]:
        """JSON-ready results and servers of ``test`` so far. An invalid measurement becomes an invalid result."""
        results = list(test.results)
        if isinstance(error, MeasurementError) and test.perf:
            judged = {r.metric for r in results}
            for name in test.perf.metrics:
                if name not in judged:
                    m = METRICS[name]
                    results.append(
                        Result(
                            nodeid=test.nodeid,
                            test=test.test,
                            engine=test.engine,
                            server=test.configs[0].key,
                            metric=name,
                            unit=m.unit,
                            higher_is_better=m.higher_is_better,
                            verdict="invalid",
                            reasons=(str(error),),
                            location=test.location,
                        )
                    )
        failure = str(error) if isinstance(error, LaunchError) else None
        servers = [
            server_record(c, [x for x in test.launches.values() if x.config == c], failure) for c in test.configs
        ]
        return {"results": [r.to_json() for r in results], "servers": servers}


SESSION: pytest.StashKey[Session] = pytest.StashKey()
