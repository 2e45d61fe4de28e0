"""Whether a PID is still the process it was: PIDs are given out again, births are not."""

from __future__ import annotations

from pathlib import Path

import psutil

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def birth(pid: int) -> str | None:
    """When ``pid`` was born, as a text that no other process of this host can have; None when there is no such process.

    On Linux in clock ticks since this boot: unlike a time of day it does not move when somebody sets the clock.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        return f"{BOOT_ID.read_text().strip()}:{stat.rpartition(')')[2].split()[19]}"
    except OSError:
        pass
    try:
        return str(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def runs(process: psutil.Process) -> bool:
    """True unless it has ended, a zombie included."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
