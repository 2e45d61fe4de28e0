"""The process that outlives the supervisor, whatever ends that one."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from .channel import Lifeline, say
from .log_cleaning import clean_up
from .supervisor import Supervisor
from .tree import PR_SET_CHILD_SUBREAPER, descendants, kill_all, prctl, reap_all


def main() -> None:
    lifeline = Lifeline(0)
    spec = lifeline.spec()
    sys.path[:] = spec["sys_path"]
    import psutil  # noqa: F401 - now: a kept server may be stopped when the environment it came from is gone

    prctl(PR_SET_CHILD_SUBREAPER, 1)
    own = os.getpid()
    if supervisor := os.fork():
        guard(spec, supervisor)
    else:
        Supervisor(spec, lifeline, own).run()


def guard(spec: dict[str, Any], supervisor: int) -> None:
    """Outlive the supervisor, end what it has left, clean the log."""
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(supervisor, signal.SIGTERM))
    os.close(0)
    _, status = os.waitpid(supervisor, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.WIFSIGNALED(status):
        say("lost")
        say("stopped", left=kill_all(lambda: descendants(spec["launch"]), reap_all), holding=[], unseen=False)
    clean_up(spec)
