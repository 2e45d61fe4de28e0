"""The per-user folder for locks, leases and kept servers: private, on this host, the same for every run of one user."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import stat
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_llmperf.errors import ConfigError

VARIABLE = "LLMPERF_STATE_DIR"


def state_dir() -> Path:
    """``$LLMPERF_STATE_DIR``, else a folder under /tmp named after the user; made private. Raises ConfigError.

    Not ``$TMPDIR`` or ``$XDG_RUNTIME_DIR``: those differ between a login, a CI job and a cron job of one user, and
    leases only mean something when all of them look in the same place.
    """
    named = os.environ.get(VARIABLE)
    return private_dir(Path(named).absolute() if named else Path("/tmp") / f"llmperf-{os.getuid()}")


def private_dir(path: Path) -> Path:
    """``path``, made if missing, mode 0700. Raises ConfigError when it is a link, not a folder, or another user's."""
    advice = f"remove it, or name another folder in {VARIABLE}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except FileExistsError:
        raise ConfigError(f"{path} is in the way of the state folder: {advice}") from None
    except OSError as e:
        raise ConfigError(f"the state folder {path} cannot be used ({e.strerror}): {advice}") from None
    if stat.S_ISLNK(found.st_mode):
        raise ConfigError(
            f"the state folder {path} is a symbolic link, which another user could have planted: {advice}"
        )
    if found.st_uid != os.getuid():
        raise ConfigError(f"the state folder {path} belongs to uid {found.st_uid}, not to you: {advice}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o700)
    return path


def write_private(path: Path, text: str) -> None:
    """Replace ``path`` in one step with a file only its owner can read."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with contextlib.ExitStack() as undo:
        undo.callback(temporary.unlink, missing_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as f:
            f.write(text)
        temporary.replace(path)


class Lock:
    """A file that is held locked. The lock belongs to the open file, not to a process: it lasts until everybody who was
    handed its descriptor has closed it or died. A fork without exec (``multiprocessing``) would be one of them, so that
    a child that outlives pytest would keep it: forks let go of it at once."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        own = weakref.ref(self)  # hooks of forks cannot be taken back: they must not keep every lock alive

        def let_go() -> None:
            if (lock := own()) is not None:
                lock.close()

        os.register_at_fork(after_in_child=let_go)

    @property
    def fd(self) -> int:
        """The descriptor, to hand on. Raises ValueError once closed."""
        if self._fd is None:
            raise ValueError("the lock has been given back")
        return self._fd

    def sign(self, **facts: Any) -> None:
        """Say in the file who holds it; ``owner`` reads that."""
        with contextlib.suppress(OSError):  # on a full disk the lock still holds, without a name
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, json.dumps({**facts, "pid": os.getpid(), "since": time.time()}).encode(), 0)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def try_lock(path: Path) -> Lock | None:
    """``path``, locked, or None when somebody else holds it. Raises ConfigError where locks do not work."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as e:
        raise ConfigError(f"{path} cannot be opened as a lock ({e.strerror}): remove it") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError as e:
        os.close(fd)
        raise ConfigError(
            f"{path} cannot be locked ({e.strerror}): name a folder on a disk of this machine in {VARIABLE}"
        ) from None
    return Lock(fd)


def owner(path: Path) -> Mapping[str, Any]:
    """What the holder of a lock has signed it with; empty when illegible: he may be writing just now."""
    try:
        facts = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def named(facts: Mapping[str, Any]) -> str:
    """Whoever signed a lock, for a message: ``vllm llama of pid 123``."""
    if not {"label", "pid"} <= facts.keys():
        return "another run"
    if "kept" in facts:
        return f"{facts['label']}, which a run left up (`llmperf servers stop {facts['kept']}` ends it)"
    return f"{facts['label']} of pid {facts['pid']}"
