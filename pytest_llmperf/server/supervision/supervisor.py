"""The process that starts an engine, watches it, and stops it with all that came from it."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from .channel import Lifeline, say
from .log_cleaning import clean_up
from .tree import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, descendants, kill_all, prctl

if TYPE_CHECKING:
    import psutil

#: Seconds between looks at what no file descriptor tells (has the parent changed?).
TICK_S = 1.0
#: Seconds that children may outlive an engine that has ended, before they are killed.
ORPHAN_S = 0.5


def _die_with_supervisor() -> None:
    """In the engine, before exec: should the supervisor itself be killed, ask the engine to end."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Supervisor:
    """One engine's life, from exec to the last of its descendants. ``guard`` is the parent's PID."""

    def __init__(self, spec: dict[str, Any], lifeline: Lifeline, guard: int) -> None:
        self.spec = spec
        self.lifeline = lifeline
        self.guard = guard
        self.kept = False
        self.code: int | None = None
        self.seen: dict[int, psutil.Process] = {}
        self.holders_before = self._gpu_pids() if spec["gpus"] else None
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._wake, wake_end = os.pipe()
        for fd in (self._wake, wake_end):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_end)
        self._asked = False
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        self.engine = self._spawn()

    def _on_term(self, *_: object) -> None:
        self._asked = True

    def _spawn(self) -> subprocess.Popen[bytes]:
        try:
            engine = subprocess.Popen(
                self.spec["argv"],
                env=self.spec["env"],
                cwd=self.spec["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
                preexec_fn=_die_with_supervisor,  # noqa: PLW1509 - no threads here; must be set between fork and exec
                restore_signals=True,
            )
        except (OSError, ValueError, TypeError, subprocess.SubprocessError) as e:
            say("failed", error=str(e))
            sys.exit(1)
        say("started", pid=engine.pid, supervisor=os.getpid())
        return engine

    def run(self) -> None:
        """Until the engine ends, pytest asks, or pytest is gone."""
        for command in self.lifeline.buffered():
            self._obey(command)
        with selectors.DefaultSelector() as selector:
            selector.register(self.lifeline.fd, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while self.code is None and not self._asked:
                for key, _ in selector.select(TICK_S):
                    if key.fd == self._wake:
                        os.read(self._wake, 4096)
                        continue
                    for command in self.lifeline.commands():
                        if command == "eof":
                            selector.unregister(self.lifeline.fd)
                        self._obey(command)
                self._reap()
                if not self.kept and self._deserted():
                    self._asked = True
        if os.getppid() != self.guard:
            say("lost")
        self.stop()

    def _deserted(self) -> bool:
        """The guard is gone, or pytest is though the lifeline is open (a fork of it holds that), or its xdist
        controller is though the worker goes on with its test: when one dies, its child gets another parent."""
        import psutil

        parent, controller = self.spec["parent"], self.spec["controller"]
        if os.getppid() != self.guard:
            return True
        try:
            return psutil.Process(self.guard).ppid() != parent or (
                controller is not None and psutil.Process(parent).ppid() != controller
            )
        except psutil.NoSuchProcess:
            return True

    def _obey(self, command: str) -> None:
        if command == "keep":
            self.kept = True
        elif command == "stop" or (command == "eof" and not self.kept):
            self._asked = True

    def _reap(self) -> bool:
        """Like ``reap_all``, but the engine's end is reported."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.engine.pid:
                self.code = self.engine.returncode = os.waitstatus_to_exitcode(status)
                say("exited", code=self.code)

    def tree(self) -> list[psutil.Process]:
        """Every living descendant, remembered for the sake of their GPU memory."""
        found = descendants(self.spec["launch"])
        self.seen.update((p.pid, p) for p in found)
        return found

    def stop(self) -> None:
        """Ask, wait, kill until nothing remains, wait for the GPUs."""
        self.tree()
        if self.code is None:
            with contextlib.suppress(OSError):
                os.kill(self.engine.pid, self.spec["signal"])
        end = time.monotonic() + self.spec["grace"]
        ended: float | None = None
        while self.tree() and (now := time.monotonic()) < end:
            if self.code is not None:
                ended = now if ended is None else ended
                if now - ended > ORPHAN_S:
                    break
            if select.select([self._wake], [], [], 0.02)[0]:  # most are not our children: one has to look
                os.read(self._wake, 4096)
            self._reap()
        left = kill_all(self.tree, self._reap)
        holding, unseen = self._await_gpus()
        say("stopped", left=left, holding=holding, unseen=unseen)
        if os.getppid() != self.guard:
            clean_up(self.spec)

    def _gpu_pids(self) -> set[int] | None:
        """PIDs that hold memory of the leased GPUs; None where NVML is missing or will not say."""
        try:
            import pynvml
        except ImportError:
            return None
        pids: set[int] = set()
        try:
            pynvml.nvmlInit()
            for uuid in self.spec["gpus"]:
                device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                pids.update(p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(device))
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            return None
        return pids

    def _await_gpus(self) -> tuple[list[int], bool]:
        """Wait until what came with this launch has left the GPUs; the PIDs that had not when the time was over, and
        True when a driver that told them at first had failed by then.

        In a container NVML may number processes as the host does: a PID that is new since the launch and exists
        nowhere in here is then ours as well. One that exists but is not of our tree is somebody else.
        """
        import psutil

        if self.holders_before is None:
            return [], False
        end = time.monotonic() + float(self.spec["gpu_timeout"])
        while True:
            now = self._gpu_pids()
            new = sorted((now or set()) - self.holders_before)
            holding = [pid for pid in new if pid in self.seen or not psutil.pid_exists(pid)]
            if (now is not None and not holding) or time.monotonic() > end:
                return holding, now is None
            time.sleep(0.1)  # the driver tells nobody when memory is free again
