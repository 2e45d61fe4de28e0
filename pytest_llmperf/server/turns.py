"""Measurements on one host take turns, whatever started them: xdist workers, or several pytest runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from pytest_llmperf.server.state import private_dir


@contextlib.contextmanager
def measuring(state_dir: Path, enabled: bool = True) -> Iterator[float]:
    """Hold the host's measuring lock; yields the seconds that were waited for it. The lock ends with its process."""
    if not enabled:
        yield 0.0
        return
    lock = FileLock(private_dir(state_dir) / "measure.lock", mode=0o600)
    began = time.monotonic()
    with lock.acquire(poll_interval=0.02):
        yield time.monotonic() - began
