"""The processes of one launch, found and ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
#: The variable by which a launch's processes are known where nothing adopts them.
COOKIE = "LLMPERF_LAUNCH"
#: Seconds that SIGKILL may take to empty the tree before the rest is reported as left.
KILL_S = 5.0
#: Of these, what Python's resource trackers get to remove the shared memory that the killed have left, and end.
TRACKER_S = 4.0


def prctl(option: int, value: int) -> bool:
    """True when the kernel took the option; False off Linux."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)


def descendants(launch: str) -> list[psutil.Process]:
    """Every living descendant. Without a subreaper, those that left the tree are known by our cookie."""
    import psutil

    found = {p.pid: p for p in psutil.Process().children(recursive=True)}
    if not sys.platform.startswith("linux"):
        for p in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if p.pid != os.getpid() and p.environ().get(COOKIE) == launch:
                    found[p.pid] = p
    alive = []
    for p in found.values():
        with contextlib.suppress(psutil.Error):
            if p.status() != psutil.STATUS_ZOMBIE:
                alive.append(p)
    return alive


def reap_all() -> bool:
    """Take leave of the children that have ended; True when there are no others."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def kill_all(tree: Callable[[], list[psutil.Process]], reap: Callable[[], bool]) -> list[int]:
    """Kill until ``tree`` is empty and ``reap`` knows of no child: a look at processes that fork fast may miss one, the
    kernel's word to a subreaper does not. The PIDs that were left when the time was over."""
    import psutil

    start = time.monotonic()
    while ((left := tree()) or not reap()) and (taken := time.monotonic() - start) < KILL_S:
        for p in left:
            with contextlib.suppress(psutil.Error):
                if taken > TRACKER_S or not _is_tracker(p):
                    p.kill()
        time.sleep(0.01)  # most are not our children: their end can only be looked for
        reap()
    reap()
    return [p.pid for p in left]


def _is_tracker(process: psutil.Process) -> bool:
    return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
