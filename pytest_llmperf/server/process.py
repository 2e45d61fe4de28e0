"""pytest's end of a supervisor: start an engine under it, hear what happens, stop it or let it live on."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from pytest_llmperf.server.identity import runs
from pytest_llmperf.server.masking import Environment, Masker
from pytest_llmperf.server.supervision import entry, tree
from pytest_llmperf.server.supervision.log_cleaning import clean_log

#: Bytes of a log that are cleaned of secrets in a second, at least.
CLEANED_PER_S = 20 << 20
#: Seconds beyond the grace in which a supervisor must have finished killing, apart from the wait for GPUs.
MARGIN_S = tree.KILL_S + 5.0


@dataclass(frozen=True)
class ProcessSpec:
    """What to start. ``grace`` and ``gpu_timeout`` in seconds; ``hold`` are descriptors the supervisor keeps open."""

    launch_id: str
    argv: tuple[str, ...] = field(repr=False)
    env: Environment
    log: Path
    masker: Masker
    cwd: str | None = None
    grace: float = 5.0
    stop_signal: int = signal.SIGTERM
    gpus: tuple[str, ...] = ()
    gpu_timeout: float = 10.0
    hold: tuple[int, ...] = ()
    controller: int | None = None
    """The parent of this process, when the engine must not outlive that one either (xdist's controller)."""


@dataclass(frozen=True)
class Remains:
    """What a stop could not do: PIDs still there (in uninterruptible sleep), PIDs still holding GPU memory, whether the
    GPUs' driver failed to tell that, why secrets may still be in the log."""

    left: tuple[int, ...] = ()
    holding: tuple[int, ...] = ()
    unseen: bool = False
    unclean: str = ""


class EngineProcess:
    """One engine under its supervisor. ``poll`` takes in what that reported; nothing happens between polls."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.started_at = time.time()
        self.pid: int | None = None
        self.code: int | None = None
        self.failed: str | None = None
        self.remains: Remains | None = None
        self.lost = False
        self._ended = False
        self._unclean = ""
        self._inner: int | None = None
        self._seen: dict[int, psutil.Process] = {}
        self._buffer = b""
        log = os.open(spec.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", entry.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                pass_fds=spec.hold,
                cwd="/",
            )
        finally:
            os.close(log)
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        self._stdin, self._stdout = self._supervisor.stdin, self._supervisor.stdout
        self._owner = os.getpid()
        self._send(json.dumps(self._payload()))

    def _payload(self) -> dict[str, Any]:
        s = self.spec
        return {
            "argv": s.argv,
            "env": {**s.env, tree.COOKIE: s.launch_id},
            "cwd": s.cwd,
            "log": str(s.log),
            "parent": os.getpid(),
            "controller": s.controller,
            "launch": s.launch_id,
            "grace": s.grace,
            "signal": int(s.stop_signal),
            "gpus": s.gpus,
            "gpu_timeout": s.gpu_timeout,
            "sys_path": [str(Path(p or ".").resolve()) for p in sys.path],
            "secrets": s.masker.secrets,
        }

    def _send(self, line: str) -> None:
        __tracebackhide__ = True  # ``line`` may hold secrets
        with contextlib.suppress(OSError, ValueError):  # a supervisor that is gone is noticed by poll
            self._stdin.write(line.encode() + b"\n")
            self._stdin.flush()

    @property
    def supervisor_pid(self) -> int:
        """The guard's: whatever came from this launch descends from it."""
        return self._supervisor.pid

    def poll(self, timeout: float = 0.0) -> bool:
        """Take in reports for up to ``timeout`` seconds; True while the engine has neither ended nor failed."""
        end = time.monotonic() + timeout
        while self.alive and self._hear(max(0.0, end - time.monotonic())):
            pass
        return self.alive

    @property
    def alive(self) -> bool:
        return self.code is None and self.failed is None and not self.lost

    def _hear(self, timeout: float) -> bool:
        """Wait for reports and take in those that are there; False when the time was over first."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                return False
        chunk = os.read(self._stdout.fileno(), 1 << 16)
        self._ended = not chunk
        self.lost = self.lost or (self._ended and self.remains is None)
        self._buffer += chunk
        while b"\n" in self._buffer:
            line, self._buffer = self._buffer.split(b"\n", 1)
            event = json.loads(line)
            match event["event"]:
                case "started":
                    self.pid, self._inner = event["pid"], event["supervisor"]
                case "failed":
                    self.failed = event["error"]
                case "exited":
                    self.code = None if self.lost else event["code"]
                case "stopped":
                    self.remains = Remains(tuple(event["left"]), tuple(event["holding"]), event["unseen"])
                case "lost":
                    self.lost = True
                case "unclean":
                    self._unclean = event["error"]
        return True

    def tree(self) -> list[psutil.Process]:
        """The engine's processes now, orphans adopted by the supervisor included."""
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(self.supervisor_pid).children(recursive=True)
            self._seen.update((p.pid, p) for p in found)
            return [p for p in found if p.pid != self._inner]
        return []

    def ask_to_stop(self) -> None:
        """Begin a stop without waiting for its end, so that several servers stop side by side."""
        if os.getpid() == self._owner:
            self._send("stop")

    def stop(self) -> Remains:
        """Stop the whole tree and wait until it is gone (bounded). May be called again; in a fork it does nothing."""
        if os.getpid() != self._owner:
            return Remains()
        self.ask_to_stop()
        self._hear_until(lambda: self.remains is not None, self.spec.grace + MARGIN_S + self.spec.gpu_timeout)
        if self.remains is not None:
            self._hear_until(lambda: False, MARGIN_S + self._log_size() / CLEANED_PER_S)
        try:
            self._supervisor.wait(2.0 if self._ended else 0.0)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()
            self._unclean = self._unclean or "its guard was killed"
        if self.remains is None:
            self.remains = self._kill_without_supervisor()
        self.remains = replace(self.remains, unclean=self._unclean)
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        return self.remains

    def _hear_until(self, enough: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._ended and not enough() and (left := end - time.monotonic()) > 0:
            self._hear(left)

    def _log_size(self) -> int:
        with contextlib.suppress(OSError):
            return self.spec.log.stat().st_size
        return 0

    def _kill_without_supervisor(self) -> Remains:
        """Somebody killed guard and supervisor: end what is known of the tree, and whatever carries its cookie."""
        if self.failed is not None:
            return Remains()
        end = time.monotonic() + tree.KILL_S
        while left := self._orphans():
            for p in left:
                with contextlib.suppress(psutil.Error):
                    p.kill()
            if time.monotonic() > end:
                break
            psutil.wait_procs(left, timeout=0.02)
        try:
            clean_log(self.spec.log, self.spec.masker.secrets)
        except OSError as e:
            self._unclean = str(e)
        return Remains(left=tuple(p.pid for p in left))

    def _orphans(self) -> list[psutil.Process]:
        found = dict(self._seen)
        for p in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if p.environ().get(tree.COOKIE) == self.spec.launch_id:
                    found[p.pid] = p
        return [p for p in found.values() if runs(p)]

    def keep(self) -> None:
        """Let the engine outlive this session: the supervisor goes on, nobody holds its lifeline."""
        self._send("keep")
        for pipe in (self._stdin, self._stdout):
            pipe.close()
        self._supervisor.returncode = 0  # not ours to wait for any more
