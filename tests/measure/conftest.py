"""Measurements of the stand-in engine, and its truth in the product's own words."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pytest_llmperf.engines.base import Counters, Endpoint
from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.measure.checks.nvml_state import GpuReader
from pytest_llmperf.measure.client.connection import Connection
from pytest_llmperf.measure.limits import Limits
from pytest_llmperf.measure.prompts import PromptLedger
from pytest_llmperf.measure.run import Run
from pytest_llmperf.measure.stream import stream
from pytest_llmperf.measure.workloads import Workload
from pytest_llmperf.server_config import ServerConfig
from tests.conftest import FakeServer

Measure = Callable[..., Run]
#: Writes closer than this were not meant to be: every schedule here is slower.
BURST_S = 0.005
ONE_WARMUP = Limits(warmup_requests=1)


def connection_to(server: FakeServer, **changes: Any) -> Connection:
    engine = builtin()[server.dialect]

    def counters() -> Counters | None:
        with contextlib.suppress(OSError):
            status, text = server.get("/metrics")
            return engine.counters(text) if status == 200 else None
        return None

    given: dict[str, Any] = {
        "endpoint": Endpoint("127.0.0.1", server.port, server.api_key),
        "model": server.model,
        "engine": engine,
        "config": ServerConfig(engine=server.dialect, model=server.model),
        "launch_id": "launch-1",
        "counters": counters,
        "pids": (server.process.pid,),
    }
    return Connection(**{**given, **changes})


@pytest.fixture
def measure() -> Measure:
    """``measure(server, connection={}, limits=..., seed=..., reuse=..., **workload)``: one stream, quietly."""

    def run(
        server: FakeServer,
        *,
        connection: dict[str, Any] | None = None,
        seed: str = "test_x",
        reuse: PromptLedger | None = None,
        limits: Limits = ONE_WARMUP,
        gpus: GpuReader | None = None,
        **workload: Any,
    ) -> Run:
        asked = {"prompt_tokens": 16, "output_tokens": 24, "repetitions": 3, "precision": 0.0, **workload}
        return stream(
            connection_to(server, **(connection or {})),
            Workload(**asked),
            seed=seed,
            reuse=reuse,
            limits=limits,
            gpus=gpus,
        )

    return run


Bounds = dict[str, tuple[float, float]]


def truth_of(record: dict[str, Any], sent_s: float, delay_s: float) -> Bounds:
    """Between what each metric of one request must lie, by METHOD's definitions; ``sent_s`` is the origin of times.

    A write is made after it is due and before it is stamped; one that the client had not read when the next came may
    carry the stamp of that: the next within ``delay_s``, or within a burst of a stand-in that had been put to sleep.
    On a quiet machine that is 0.3 ms in all; on a busy one the bounds widen with what the machine did, and never lie.
    """
    rows = np.array(record["chunks"])
    starts = np.flatnonzero(np.diff(rows[:, 2], prepend=-1) > 0)  # events of one write are one arrival
    rows = np.column_stack([rows[starts, :3], np.add.reduceat(rows[:, 3], starts)])
    early, late, tokens = np.maximum.accumulate(rows[:, 1]), rows[:, 2] + delay_s, rows[:, 3].astype(int)
    for i in reversed(range(len(rows) - 1)):
        if rows[i + 1, 2] - rows[i, 2] < BURST_S:
            late[i] = late[i + 1]
    decoded = tokens[1:].sum()
    low_gaps = np.repeat(np.maximum(early[1:] - late[:-1], 0) / tokens[1:], tokens[1:]) * 1e3
    high_gaps = np.repeat((late[1:] - early[:-1]) / tokens[1:], tokens[1:]) * 1e3
    return {
        "decode_tok_s": (decoded / (late[-1] - early[0]), decoded / max(early[-1] - late[0], 1e-9)),
        "ttft_ms": ((early[0] - sent_s) * 1e3, (late[0] - sent_s) * 1e3),
        "e2e_ms": ((early[-1] - sent_s) * 1e3, (late[-1] - sent_s) * 1e3),
        "itl_p50_ms": (np.percentile(low_gaps, 50), np.percentile(high_gaps, 50)),
        "itl_p99_ms": (np.percentile(low_gaps, 99), np.percentile(high_gaps, 99)),
    }


def assert_true(server: FakeServer, run: Run) -> None:
    """Every request of ``run`` is right: rate and gaps to 0.5 %, TTFT and e2e to 1 ms, of what the stand-in did.

    On a machine so busy that the client read a chunk after the next had come, the kernel has joined the two; of such a
    request only the rate is looked at, to 15 %. (What other clients make of these streams is off by 25 % and more.)
    """
    assert not run.measurement.invalid
    records = {record["request"]: record for record in server.truth}
    delay_s = run.measurement.evidence["delay_max_ms"] / 1e3
    for request in run.requests:
        record = records[request.server_id or ""]
        bounds = truth_of(record, request.sent_s, delay_s)
        writes = np.unique([row[2] for row in record["chunks"]])
        if request.arrivals < len(writes) or delay_s >= np.diff(writes).min(initial=np.inf):
            low, high = bounds["decode_tok_s"]
            assert 0.85 * low <= request.decode_tok_s <= 1.15 * high
            continue
        for name, (low, high) in bounds.items():
            slack = 1.0 if name in ("ttft_ms", "e2e_ms") else 0.005 * high
            assert low - slack <= getattr(request, name) <= high + slack, name
