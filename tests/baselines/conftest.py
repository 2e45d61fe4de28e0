from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.baselines import store
from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.series import Series, StoredLaunch, utc
from pytest_llmperf.hardware import Gpu, Hardware

DAY = 86_400
START = 1_770_000_000  # 2026-02-02


def gpu(uuid: str, **other: Any) -> Gpu:
    usual: dict[str, Any] = {"name": "NVIDIA H200", "memory_mib": 143_771, "compute_capability": "9.0"}
    return Gpu(uuid, **{**usual, "driver": "570.86.15", **other})


def machine(gpus: tuple[Gpu, ...] = (), host: str = "runner-1") -> Hardware:
    return Hardware(gpus, "Intel(R) Xeon(R) CPU @ 2.20GHz", 2, 8.0, host)


PRINT = Fingerprint({"gpu": "NVIDIA H200", "gpu count": "1", "server.model": "m", "workload.output_tokens": "256"})


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def launch() -> Callable[..., StoredLaunch]:
    return make_launch


def make_launch(
    n: int,
    value: float = 82.5,
    *,
    host: str = "h1",
    cache: str | None = None,
    provenance: dict[str, str] | None = None,
    **metrics: float,
) -> StoredLaunch:
    """Launch ``n`` of a series, a day after launch ``n - 1``, five repetitions around each metric's value."""
    means = {"decode_tok_s": value, **metrics}
    spread = (-0.001, -0.0005, 0.0, 0.0005, 0.001)
    values = {name: tuple(mean * (1 + d) for d in spread) for name, mean in means.items()}
    return StoredLaunch(f"launch-{n:04d}", utc(START + n * DAY), host, cache, values, provenance or {"driver": "570"})


def path_of(folder: Path, series: Series) -> Path:
    return store.path_of(folder, series.test, series.engine, series.fingerprint)
