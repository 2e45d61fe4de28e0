"""Measurements of the stand-in engine, and its truth in the product's own words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pytest_llmperf.engines.base import Counters, Endpoint
from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.measure.connection import Connection
from pytest_llmperf.measure.metrics import Workload
from pytest_llmperf.measure.prompts import PromptLedger
from pytest_llmperf.measure.run import Run
from pytest_llmperf.measure.stream import stream
from pytest_llmperf.server.config import ServerConfig
from tests.conftest import FakeServer


Measure = Callable[..., Run]


def connection_to(server: FakeServer, **changes: Any) -> Connection:
    engine = builtin()[server.dialect]

    def counters() -> Counters | None:
        status, text = server.get("/metrics")
        return engine.counters(text) if status == 200 else None

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
        limits: Any = None,
        **workload: Any,
    ) -> Run:
        asked = {"prompt_tokens": 16, "output_tokens": 40, "repetitions": 5, "precision": 0.0, **workload}
        extra = {"limits": limits} if limits is not None else {}
        return stream(
            connection_to(server, **(connection or {})),
            Workload(**asked),
            seed=seed,
            say=lambda text: None,
            reuse=reuse,
            **extra,
        )

    return run


@dataclass(frozen=True)
class Truth:
    """What the stand-in really did for one request, by METHOD's definitions and its own send times."""

    ttft_ms: float
    decode_tok_s: float
    itl_p50_ms: float
    itl_p99_ms: float
    e2e_ms: float


def truth_of(record: dict[str, Any]) -> Truth:
    at = np.array([row[2] for row in record["chunks"]])
    tokens = np.array([row[3] for row in record["chunks"]])
    per_token = np.repeat(np.diff(at) / tokens[1:], tokens[1:])
    return Truth(
        ttft_ms=float(at[0] - record["t0"]) * 1e3,
        decode_tok_s=float(tokens[1:].sum() / (at[-1] - at[0])) if len(at) > 1 else math.nan,
        itl_p50_ms=float(np.percentile(per_token, 50)) * 1e3,
        itl_p99_ms=float(np.percentile(per_token, 99)) * 1e3,
        e2e_ms=float(at[-1] - record["t0"]) * 1e3,
    )


def truths(server: FakeServer, run: Run) -> list[Truth]:
    """Truth of the measured requests of ``run``, in its order."""
    return [truth_of(record) for record in server.truth[-len(run.requests) :]]
