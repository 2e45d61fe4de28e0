from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.server.state import VARIABLE, Lock, owner, private_dir, state_dir, try_lock, write_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folder_is_private_even_when_it_was_not(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    assert mode(private_dir(folder)) == 0o700
    assert mode(private_dir(tmp_path / "new" / "one")) == 0o700


def test_a_planted_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "target")
    with pytest.raises(ConfigError, match="symbolic link"):
        private_dir(tmp_path / "state")


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(ConfigError, match="in the way"):
        private_dir(tmp_path / "state")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to uid 12345"):
        private_dir(tmp_path / "state")


def test_the_default_is_the_same_whatever_tmpdir_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    first = state_dir()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert state_dir() == first
    monkeypatch.setenv(VARIABLE, str(tmp_path / "named"))
    assert state_dir() == tmp_path / "named"


def test_files_are_private_and_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "new")
    assert path.read_text() == "new"
    assert mode(path) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_a_lock_outlives_its_taker_in_whoever_was_handed_the_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "gpu.lock"
    lock = try_lock(path)
    assert lock is not None
    assert mode(path) == 0o600
    code = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], pass_fds=[lock.fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as heir:
        assert heir.stdout is not None
        heir.stdout.readline()
        lock.close()
        assert try_lock(path) is None
        heir.kill()
    again = try_lock(path)
    assert again is not None
    again.close()


def test_a_fork_does_not_keep_a_lock(tmp_path: Path) -> None:
    """As ``multiprocessing`` forks: no exec closes anything, and the child may outlive us."""
    lock = try_lock(tmp_path / "gpu.lock")
    assert lock is not None
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        here.close()
        there.send(b"up")
        there.recv(1)
        os._exit(0)
    there.close()
    here.recv(2)
    try:
        assert try_lock(tmp_path / "gpu.lock") is None, "the fork gave its parent's lock away"
        lock.close()
        again = try_lock(tmp_path / "gpu.lock")
        assert again is not None
        again.close()
    finally:
        here.close()
        os.waitpid(child, 0)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_locks_that_do_not_work_are_not_taken_for_busy_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(ConfigError, match=f"gpu.lock cannot be locked \\({os.strerror(number)}\\).*{VARIABLE}"):
        try_lock(tmp_path / "gpu.lock")


def test_a_full_disk_takes_the_name_from_a_lock_and_not_its_hold() -> None:
    lock = Lock(os.open("/dev/full", os.O_RDWR))
    lock.sign(label="vllm m")
    lock.close()
    assert owner(Path("/dev/null")) == {}
