"""Everything that is looked at beside a measurement, before and after it: host, GPUs, the engine's counters."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pytest_llmperf.engines.base import Counters
from pytest_llmperf.measure.checks.gpu_guards import GpuWatch, gpu_guards
from pytest_llmperf.measure.checks.host_guards import host_guards, process_tree, sample_host
from pytest_llmperf.measure.checks.nvml_state import GpuReader, open_reader
from pytest_llmperf.measure.checks.traffic import (
    as_evidence,
    cache_problems,
    difference,
    graph_guard,
    one_server,
    settled,
    traffic_guards,
)
from pytest_llmperf.measure.client.connection import Connection
from pytest_llmperf.measure.client.request_outcome import RequestOutcome
from pytest_llmperf.measure.limits import Limits
from pytest_llmperf.measure.metrics import Guard


class Watch:
    """Life cycle: a context manager around the measured requests, then ``conclude`` once.

    The window itself costs nothing but one light NVML sample a second where there are GPUs.
    """

    def __init__(self, connection: Connection, limits: Limits, gpus: GpuReader | None = None) -> None:
        self._connection, self._limits = connection, limits
        self._reader = gpus if gpus is not None else open_reader(connection.gpus)
        self._gpus = GpuWatch(self._reader, limits) if self._reader else None
        self.counters: Counters | None = None
        self.delta = Counters()

    def __enter__(self) -> Watch:
        self.counters = self._connection.counters()
        if self._gpus is not None:
            self._gpus.start()
        self._before = sample_host(self._connection.pids)
        return self

    def __exit__(self, *exception: object) -> None:
        self._after = sample_host(self._connection.pids)
        if self._gpus is not None and self._reader is not None:
            self._gpus.stop()
            self._reader.close()

    @property
    def seconds(self) -> float:
        """Length of the watched window."""
        return self._after.at_s - self._before.at_s

    @property
    def client_s(self) -> float:
        """CPU seconds of this process inside it."""
        return self._after.client_s - self._before.client_s

    def conclude(self, outcomes: Sequence[RequestOutcome]) -> tuple[list[Guard], list[str], dict[str, Any]]:
        """(guards, reasons for being invalid, evidence) of everything seen."""
        connection, limits = self._connection, self._limits
        tokens = sum(o.answer.completion_tokens or 0 for o in outcomes)
        self.delta = delta = difference(self.counters, settled(connection.counters, self.counters, tokens))
        guards = [one_server(connection.disagreement(), delta, tokens)] if connection.disagreement else []
        guards += host_guards(self._before, self._after, limits, on_cpu=not connection.gpus)
        evidence: dict[str, Any] = {"counters": as_evidence(delta), "seconds": self.seconds}
        if self._gpus is not None:
            ours = [p.pid for p in process_tree(connection.pids)]
            guards += gpu_guards(self._gpus, ours, limits)
            evidence |= self._gpus.evidence
        guards += traffic_guards(self.counters, delta, outcomes)
        if connection.config.cuda_graph is not False:
            guards += graph_guard(self.counters, delta, eager=connection.eager, on_gpu=bool(connection.gpus))
        return guards, cache_problems(outcomes, delta, limits), evidence


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection inside: a full one in a large process stops the reader for tens of milliseconds.

    Parsing belongs inside too: it makes much that stays and no cycles, and the collector would look through all of it
    in vain, at the price of the parsing itself.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
