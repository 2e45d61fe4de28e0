"""Disks that are full, logs of gigabytes, no home: named errors, nothing said that should not be, later tests run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_llmperf.errors import ConfigError, LaunchError
from pytest_llmperf.models import tiny_model
from pytest_llmperf.server.logs import CHUNK, HEAD, TAIL, Log
from pytest_llmperf.server.masking import Environment, Masker
from pytest_llmperf.server.process import EngineProcess, ProcessSpec, Remains
from pytest_llmperf.server.supervision.log_cleaning import clean_log
from tests.server.fakes import Pools, alive, config, pids_in, until

SECRET = "hf_verysecret123"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Not a byte is left on it."""
    ballast = disk / "ballast"
    ballast.touch()
    with contextlib.suppress(OSError):
        while ballast.stat().st_size < 2 << 20:
            with ballast.open("ab", buffering=0) as f:
                f.write(b"x" * 4096)
    assert ballast.stat().st_size < 2 << 20
    return ballast


def test_no_room_for_a_log_is_said_and_later_servers_start(pools: Pools, disk: Path) -> None:
    pool = pools(log_dir=disk / "logs")
    ballast = fill(disk)
    with pytest.raises(LaunchError, match=r"nothing can be started here: .*No space left on device"):
        pool.get(config())
    ballast.unlink()
    pool.get(config(seed=1)).check()


def test_secrets_leave_a_log_on_a_full_disk(pools: Pools, disk: Path) -> None:
    pool = pools(log_dir=disk / "logs")
    path = pool.get(config(env={"HF_TOKEN": SECRET}, log_secrets=1)).launch.log_path
    assert path is not None
    fill(disk)
    assert SECRET in path.read_text()
    pool.close()
    assert "HF_TOKEN=***" in path.read_text()
    assert SECRET not in path.read_text()
    assert pool.notices == []


def test_a_log_that_cannot_be_cleaned_is_named(pools: Pools, tmp_path: Path) -> None:
    pool = pools()
    path = pool.get(config()).launch.log_path
    assert path is not None
    path.unlink()
    path.mkdir()
    pool.close()
    (notice,) = pool.notices
    assert f"{path} may hold secrets (" in notice
    assert "Is a directory" in notice


def test_a_server_that_no_record_fits_for_is_not_left_up(pools: Pools, disk: Path, tmp_path: Path) -> None:
    pool = pools(state_dir=disk / "state", keep=True)
    pool.get(config(pids_file=tmp_path / "pids"))
    fill(disk)
    pool.close()
    assert "cannot be left up, for no later run would know it: " in pool.notices[0]
    assert alive(pids_in(tmp_path / "pids")["main"]) == []


def test_a_log_of_two_gigabytes_is_cleaned_and_read_within_bounds(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    code = (
        f"import os; os.truncate({str(log)!r}, 2 << 30); print(); print('key=' + 'hf_' + 'verysecret123', flush=True)"
    )
    environment = Environment({"PATH": os.environ["PATH"]})
    masker = Masker([SECRET])
    process = EngineProcess(ProcessSpec("launch-1", (sys.executable, "-c", code), environment, log, masker))
    until(lambda: not process.poll(0.1))
    assert process.stop() == Remains()
    with log.open("rb") as f:
        f.seek(2 << 30)
        assert f.read() == b"\nkey=***\n"
    assert len(Log(log, masker).text()) < HEAD + TAIL + 100


@pytest.mark.parametrize("at", [HEAD - 4, HEAD + (4 << 20) - 4])
def test_no_secret_is_cut_in_two_by_the_bounds(tmp_path: Path, at: int) -> None:
    log = tmp_path / "engine.log"
    line = b"x" * 99 + b"\n"
    with log.open("wb") as f:
        f.write(line * ((HEAD + TAIL + (4 << 20)) // len(line)))
        f.truncate(HEAD + TAIL + (4 << 20))
        f.seek(at)
        f.write(SECRET.encode())
    text = Log(log, Masker([SECRET])).text()
    assert "hf_" not in text
    assert "secret" not in text
    assert "bytes left out" in text


def test_news_cut_no_secret_in_two(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(b"x" * (CHUNK - 20) + b"\ntoken " + SECRET.encode() + b"\n" + b"y" * 100)
    read = Log(log, Masker([SECRET]))
    assert [read.news()[-2:], read.news()[:10]] == ["x\n", "token ***\n"]


def test_cleaning_moves_what_follows_and_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    text = ("a" * 70_000 + SECRET + "\nb" * 300_000 + SECRET) * 5
    log.write_text(text)
    clean_log(log, [SECRET])
    assert log.read_text() == text.replace(SECRET, "***")


def test_no_home_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(
        ConfigError, match="model='tiny' is kept in the home folder, and there is none: set XDG_CACHE_HOME"
    ):
        tiny_model.cached()
