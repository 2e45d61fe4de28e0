"""Values of a launch: what a pool is told, and what it tells about one life of one server."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from pytest_llmperf.engines.base import EffectiveConfig, Endpoint, EngineSettings
from pytest_llmperf.server_config import ServerConfig


@dataclass(frozen=True)
class PoolSettings:
    """How servers live in this session. Times in seconds.

    ``startup_timeout`` counts since the last sign of progress. ``gpu_wait`` is how long to wait for GPUs that others
    hold (0: refuse at once). ``url`` attaches to a running server instead of launching; ``api_key_env`` names the
    variable that holds its key. ``plain_progress`` tells of each stage once rather than of each second.
    ``worker`` is xdist's worker id, or empty.
    """

    log_dir: Path
    state_dir: Path
    engines: Mapping[str, EngineSettings] = field(default_factory=dict)
    startup_timeout: float = 600.0
    stop_grace: float = 5.0
    gpu_wait: float = 0.0
    keep: bool = False
    url: str | None = None
    api_key_env: str | None = None
    plain_progress: bool = False
    worker: str = ""


@dataclass(frozen=True)
class Launch:
    """One life of one server process, ready to be asked. ``startup_s`` runs from exec to the first generated token.
    ``circumstances`` are what it depends on beside ``config``, secrets masked."""

    id: str
    config: ServerConfig
    endpoint: Endpoint
    effective: EffectiveConfig
    startup_s: float
    started_at: float
    model: str
    log_path: Path | None = None
    cache_state: str | None = None
    """``cold`` or ``warm`` compile cache, ``none`` where the engine compiles nothing, None where nothing tells."""
    gpus: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    spent: str = ""
    """Why nothing was measured on it."""
    reused: bool = False
    attached: bool = False
    notes: tuple[str, ...] = ()
    circumstances: Mapping[str, str] = field(default_factory=dict)


def new_id(now: float | None = None) -> str:
    """Unique, and sortable by the time of launch (UTC): ``20261129T155801.123456Z-3f9a2c4b``."""
    moment = datetime.fromtimestamp(time.time() if now is None else now, timezone.utc)
    return f"{moment:%Y%m%dT%H%M%S.%f}Z-{secrets.token_hex(4)}"
