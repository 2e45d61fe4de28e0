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
from pytest_llmperf.face import LlmServer
from pytest_llmperf.finish import server_record
from pytest_llmperf.gating import Baseline, Judge, to_record
from pytest_llmperf.measure.load import load
from pytest_llmperf.measure.metrics import METRICS, Workload
from pytest_llmperf.measure.prompts import PromptLedger
from pytest_llmperf.measure.run import Connection, Run
from pytest_llmperf.measure.stream import stream
from pytest_llmperf.options import Options, nearest
from pytest_llmperf.report import junit
from pytest_llmperf.report.encode import plain
from pytest_llmperf.report.records import Result
from pytest_llmperf.server.config import ServerConfig
from pytest_llmperf.server.gpus import Hardware, hardware
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
        self.groups: dict[str, str] = {}
        """nodeid to group, once collected."""
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

    def regroup(self) -> None:
        """Group the registered tests by the servers they need."""
        self.groups = schedule.groups({t.nodeid: [c.key for c in t.configs] for t in self.tests.values()})
        for test in self.tests.values():
            test.group = self.groups[test.nodeid]

    @property
    def gated(self) -> int:
        """Gated metrics of the whole session, the same in every process."""
        return schedule.alpha_count(t.metric_count for t in self.tests.values())

    def test(self, item: pytest.Item) -> PerfTest:
        """The registered test of ``item``."""
        found = self.tests.get(item.nodeid)
        if found is None:
            pytest.fail(f"{item.nodeid}: the baseline fixture needs a test with a server (llm_server)", pytrace=False)
        return found

    # -- servers

    @cached_property
    def hardware(self) -> Hardware:
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
                api_key_env="LLMPERF_API_KEY",
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

    def open(self, test: PerfTest, config: ServerConfig) -> LlmServer:
        """The server of ``config`` as ``test`` uses it. Raises ``LaunchError``."""
        return LlmServer(self, test, config)

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
        return Judge(
            self.options,
            self.hardware,
            self.gated,
            self.state_dir,
            self._config.rootpath,
            uses_gpu=lambda c: self.engines[c.engine].uses_gpu,
            extra=self._extra_fingerprint,
        )

    def baseline(self, test: PerfTest) -> Baseline:
        return Baseline(self.judge, test, can_confirm=self.options.confirm > 0 and not self.options.url)

    def _extra_fingerprint(self, config: ServerConfig) -> dict[str, str]:
        fields: dict[str, str] = {}
        for found in self._config.hook.pytest_llmperf_fingerprint(config=self._config, server=config):
            fields.update(found)
        return fields

    # -- what a test report carries

    def conclude(self, test: PerfTest, report: pytest.TestReport, error: BaseException | None) -> None:
        """Give ``report`` its verdicts: vacuous tests fail, inconclusive ones are skipped, results travel with it."""
        if report.when == "call" and report.passed and test.round.last:
            missing = test.unjudged()
            if missing and not test.suspect:
                report.outcome = "failed"
                report.longrepr = (
                    f"{test.nodeid}: declares {', '.join(missing)} but judged none of it: write "
                    f"`assert run.{missing[0]} in baseline` or `baseline.check(run)`"
                )
        results = [*test.results, *self._invalid(test, error)]
        verdicts = {r.verdict for r in results}
        if report.when == "call" and report.passed and not test.suspect and "inconclusive" in verdicts:
            reason = "; ".join(f"{r.metric}: {r.reasons[0]}" for r in results if r.verdict == "inconclusive")
            path, _, line = test.location.rpartition(":")
            report.outcome = "skipped"
            report.longrepr = (path, int(line), f"Skipped: inconclusive: {reason}")
        failure = str(error) if isinstance(error, LaunchError) else None
        servers = [
            server_record(c, [x for x in test.launches.values() if x.config == c], failure) for c in test.configs
        ]
        payload = {
            "results": [r.to_json() for r in results],
            "servers": [plain(s) for s in servers],
            "fresh": [f.to_json() for f in to_record(test)] if report.when == "call" and not test.suspect else [],
        }
        report.llmperf = payload  # type: ignore[attr-defined]
        report.user_properties.extend(p for r in results for p in junit.properties(r))

    def _invalid(self, test: PerfTest, error: BaseException | None) -> list[Result]:
        """An invalid measurement is a result too, of every declared metric that has none."""
        if not isinstance(error, MeasurementError):
            return []
        return [
            Result(
                nodeid=test.nodeid,
                test=test.test,
                engine=test.engine,
                server=test.configs[0].key,
                metric=name,
                unit=METRICS[name].unit,
                higher_is_better=METRICS[name].higher_is_better,
                verdict="invalid",
                reasons=(str(error),),
                location=test.location,
            )
            for name in test.unjudged()
        ]
