"""The process that owns one engine: starts it, reports on it, and leaves nothing of it behind.

Run by path (``python -I supervisor.py``) in a session of its own, so it must stand alone: standard library at the top,
psutil and pynvml from the ``sys_path`` it is handed (pytest's own). It speaks JSON lines.

stdin, the lifeline: the spec first (``EngineProcess._payload``), then commands: ``stop`` and ``keep``. Its end,
whatever caused it, means stop, unless ``keep`` came first.
stdout: ``started`` (pid), ``failed`` (error), ``exited`` (code), ``stopped`` (left, holding).
stderr is the engine's log. File descriptors beyond 2 (GPU leases, the reserved port) are held until the end, and never
reach the engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
COOKIE = "LLMPERF_LAUNCH"
#: Seconds between looks at what no file descriptor tells (has the parent changed?).
TICK_S = 1.0
#: Seconds that SIGKILL may take to empty the tree before the rest is reported as left.
KILL_S = 5.0
#: Of these, what Python's resource trackers get to remove the shared memory that the killed have left, and end.
TRACKER_S = 4.0
#: Seconds that children may outlive an engine that has ended, before they are killed.
ORPHAN_S = 0.5


def _prctl(option: int, value: int) -> bool:
    """True when the kernel took the option; False off Linux."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)


def _die_with_supervisor() -> None:
    """In the engine, before exec: should the supervisor itself be killed, ask the engine to end."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Lifeline:
    """The spec and the commands from pytest, one a line."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._buffer = b""

    def spec(self) -> Any:
        while b"\n" not in self._buffer:
            chunk = os.read(self.fd, 1 << 16)
            if not chunk:
                sys.exit(0)
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def commands(self) -> Iterator[str]:
        """Commands that have arrived, ``eof`` once it has closed. Call when there is something to read."""
        chunk = os.read(self.fd, 1 << 12)
        self._buffer += chunk
        yield from self.buffered()
        if not chunk:
            yield "eof"

    def buffered(self) -> Iterator[str]:
        """Commands that came in one read with what was before them."""
        while b"\n" in self._buffer:
            line, self._buffer = self._buffer.split(b"\n", 1)
            yield line.decode()


class Supervisor:
    """One engine's life, from exec to the last of its descendants."""

    def __init__(self, spec: dict[str, Any], lifeline: Lifeline) -> None:
        self.spec = spec
        self.lifeline = lifeline
        self.kept = False
        self.code: int | None = None
        self.seen: dict[int, psutil.Process] = {}
        self.holders_before = self._gpu_pids()
        self.subreaper = _prctl(PR_SET_CHILD_SUBREAPER, 1)
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
            self.say("failed", error=str(e))
            sys.exit(1)
        self.say("started", pid=engine.pid)
        return engine

    def say(self, event: str, **facts: Any) -> None:
        # Nobody may be listening any more: pytest was killed, or has ended and left the server up.
        with contextlib.suppress(OSError):
            os.write(1, (json.dumps({"event": event, **facts}) + "\n").encode())

    def run(self) -> None:
        """Until the engine ends, pytest asks, or pytest is gone."""
        self.tree()  # loads psutil now: a kept server may be stopped when the environment it came from is gone
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
        self.stop()

    def _deserted(self) -> bool:
        """Pytest is gone though the lifeline is open (a fork of it holds that), or its xdist controller is gone though
        the worker goes on with its test: when either dies, its child gets another parent."""
        import psutil

        parent, controller = self.spec["parent"], self.spec["controller"]
        if os.getppid() != parent:
            return True
        try:
            return controller is not None and psutil.Process(parent).ppid() != controller
        except psutil.NoSuchProcess:
            return True

    def _obey(self, command: str) -> None:
        if command == "keep":
            self.kept = True
        elif command == "stop" or (command == "eof" and not self.kept):
            self._asked = True

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.engine.pid:
                self.code = self.engine.returncode = os.waitstatus_to_exitcode(status)
                self.say("exited", code=self.code)

    def tree(self) -> list[psutil.Process]:
        """Every living descendant. Without a subreaper, those that left the tree are known by our cookie."""
        import psutil

        found = {p.pid: p for p in psutil.Process().children(recursive=True)}
        if not self.subreaper:
            for p in psutil.process_iter():
                with contextlib.suppress(psutil.Error, OSError):
                    if p.pid != os.getpid() and p.environ().get(COOKIE) == self.spec["launch"]:
                        found[p.pid] = p
        self.seen.update(found)
        alive = []
        for p in found.values():
            with contextlib.suppress(psutil.Error):
                if p.status() != psutil.STATUS_ZOMBIE:
                    alive.append(p)
        return alive

    def stop(self) -> None:
        """Ask, wait, kill until nothing remains, wait for the GPUs, clean the log."""
        import psutil

        self.tree()
        if self.code is None:
            with contextlib.suppress(OSError):
                os.kill(self.engine.pid, self.spec["signal"])
        end = time.monotonic() + self.spec["grace"]
        ended: float | None = None
        while (left := self.tree()) and (now := time.monotonic()) < end:
            if self.code is not None:
                ended = now if ended is None else ended
                if now - ended > ORPHAN_S:
                    break
            time.sleep(0.02)  # most are not our children: their end can only be looked for
            self._reap()
        start = time.monotonic()
        while left and (taken := time.monotonic() - start) < KILL_S:
            for p in left:
                with contextlib.suppress(psutil.Error):
                    if taken > TRACKER_S or not _is_tracker(p):
                        p.kill()
            time.sleep(0.01)  # as above; shorter, since the killed are gone at once
            self._reap()
            left = self.tree()
        self._reap()
        holding = self._await_gpus()
        self._clean_log()
        self.say("stopped", left=[p.pid for p in left], holding=holding)

    def _gpu_pids(self) -> set[int]:
        """PIDs that hold memory of the leased GPUs; empty where NVML is missing or will not say."""
        if not self.spec["gpus"]:
            return set()
        try:
            import pynvml
        except ImportError:
            return set()
        pids: set[int] = set()
        try:
            pynvml.nvmlInit()
            for uuid in self.spec["gpus"]:
                device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                pids.update(p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(device))
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            return set()
        return pids

    def _await_gpus(self) -> list[int]:
        """Wait until what came with this launch has left the GPUs; the PIDs that had not when the time was over.

        In a container NVML may number processes as the host does: a PID that is new since the launch and exists
        nowhere in here is then ours as well. One that exists but is not of our tree is somebody else.
        """
        import psutil

        end = time.monotonic() + float(self.spec["gpu_timeout"])
        while True:
            holding = sorted(
                pid for pid in self._gpu_pids() - self.holders_before if pid in self.seen or not psutil.pid_exists(pid)
            )
            if not holding or time.monotonic() > end:
                return holding
            time.sleep(0.1)  # the driver tells nobody when memory is free again

    def _clean_log(self) -> None:
        """Replace secrets that the engine printed (the log may be uploaded by CI)."""
        secrets = [s.encode() for s in self.spec["secrets"]]
        path = Path(self.spec["log"])
        keep = max(map(len, secrets), default=1) - 1
        temporary = path.with_name(path.name + ".tmp")
        with contextlib.suppress(OSError), path.open("rb") as source, _private(temporary) as target:
            rest = b""
            found = False
            while chunk := source.read(1 << 20):
                rest += chunk
                for secret in secrets:
                    found = found or secret in rest
                    rest = rest.replace(secret, b"***")
                cut = len(rest) - keep
                if cut > 0:
                    target.write(rest[:cut])
                    rest = rest[cut:]
            target.write(rest)
            target.flush()
            if found:
                temporary.replace(path)
        temporary.unlink(missing_ok=True)


def _is_tracker(process: psutil.Process) -> bool:
    return any("multiprocessing.resource_tracker" in word for word in process.cmdline())


def _private(path: Path) -> Any:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def main() -> None:
    lifeline = Lifeline(0)
    spec = lifeline.spec()
    sys.path[:] = spec["sys_path"]
    Supervisor(spec, lifeline).run()


if __name__ == "__main__":
    main()
