"""Servers as the reports tell of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from pytest_llmperf.records.results import LaunchRecord, ServerRecord
from pytest_llmperf.server.launch import Launch
from pytest_llmperf.server_config import ServerConfig


def server_record(config: ServerConfig, launches: Sequence[Launch], failure: str | None = None) -> ServerRecord:
    """``config`` and its ``launches`` so far; ``failure`` is a launch that did not come up, or a server that died."""
    newest = launches[-1] if launches else None
    return ServerRecord(
        key=config.key,
        engine=config.engine,
        config=config.canonical(),
        effective=asdict(newest.effective) if newest else {},
        launches=tuple(
            LaunchRecord(
                id=x.id,
                startup_s=round(x.startup_s, 3),
                cache_state=x.cache_state,
                log=str(x.log_path) if x.log_path else None,
                reused=x.reused,
                spent=x.spent,
            )
            for x in launches
        ),
        failures=(failure,) if failure else (),
    )


def merged(known: ServerRecord, more: ServerRecord) -> ServerRecord:
    """Both reports' launches, each once, in the order of their ids (which is that of time)."""
    launches = {x.id: x for x in (*known.launches, *more.launches)}
    return replace(
        more,
        effective=more.effective or known.effective,
        launches=tuple(launches[i] for i in sorted(launches)),
        failures=tuple(dict.fromkeys((*known.failures, *more.failures))),
    )
