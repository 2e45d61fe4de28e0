"""Measurements on one host take turns, whatever started them: xdist workers, or several pytest runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pytest_llmperf.errors import MeasurementError
from pytest_llmperf.server.state import Lock, named, owner, private_dir, try_lock

POLL_S = 0.02
#: Seconds of waiting after which it is said for whom, and after which it is said again.
SAY_S = 3.0
SAY_AGAIN_S = 60.0
#: Seconds that one and the same measurement may be waited for: that long none lasts, its process hangs or is stopped.
LIMIT_S = 3600.0


@contextlib.contextmanager
def measuring(
    state_dir: Path, who: str, say: Callable[[str], None], enabled: bool = True, limit: float = LIMIT_S
) -> Iterator[float]:
    """Hold the host's measuring lock for ``who``; yields the seconds that were waited for it.

    The lock ends with its process. Raises MeasurementError after ``limit`` seconds of waiting for one holder.
    """
    if not enabled:
        yield 0.0
        return
    began = time.monotonic()
    lock = _wait(private_dir(state_dir) / "measure.lock", who, say, limit)
    try:
        lock.sign(label=who)
        yield time.monotonic() - began
    finally:
        lock.close()


def _wait(path: Path, who: str, say: Callable[[str], None], limit: float) -> Lock:
    holder: object = None
    since = time.monotonic()
    say_at = since + SAY_S
    while (lock := try_lock(path)) is None:
        facts = owner(path)
        now = time.monotonic()
        if facts != holder:
            holder, since = facts, now
        if now - since >= limit:
            raise MeasurementError(
                f"{who}: waited {now - since:.0f} s for the turn to measure, which {named(facts)} holds\nwhat to do: "
                "see whether that process hangs or is stopped, or measure side by side with --llmperf-parallel-measure"
            )
        if now >= say_at:
            say_at = now + SAY_AGAIN_S
            say(f"{who}: waiting for the turn to measure, which {named(facts)} holds")
        time.sleep(POLL_S)  # a lock that is waited for with a limit can only be tried again
    return lock
