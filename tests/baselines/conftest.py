from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_llmperf.baselines import store
from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.series import Series, StoredLaunch, utc

DAY = 86_400
START = 1_770_000_000  # 2026-02-02


@dataclass(frozen=True)
class Gpu:
    uuid: str
    name: str = "NVIDIA H200"
    memory_mib: int = 143_771
    compute_capability: str | None = "9.0"
    mig: str | None = None
    driver: str | None = "570.86.15"


@dataclass(frozen=True)
class Hardware:
    gpus: tuple[Gpu, ...] = ()
    cpu: str = "Intel(R) Xeon(R) CPU @ 2.20GHz"
    cores: int = 2
    memory_gb: float = 8.0
    host: str = "runner-1"
    interconnect: str | None = field(default=None)


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
