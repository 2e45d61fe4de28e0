"""The per-user folder for locks, leases and kept servers: private, on this host, the same for every run of one user."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from pathlib import Path

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


def try_lock(path: Path) -> int | None:
    """An open descriptor that holds ``path`` locked, or None when somebody else does. Raises ConfigError.

    The lock belongs to the open file: it lasts until the last process that was handed the descriptor closes it or dies.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as e:
        raise ConfigError(f"{path} cannot be opened as a lock ({e.strerror}): remove it") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd
