"""Secrets stay secret and hostile output stays harmless, in everything this room writes or raises."""

from __future__ import annotations

import json
import stat
import traceback
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.engines.base import EngineSettings
from pytest_llmperf.errors import LaunchError
from tests.server.fakes import Pools, config

SECRET = "hf_verysecret123"
INHERITED = "ghp_inherited_secret"


def everything_written(folder: Path) -> str:
    """Every file under the folder, as text."""
    return "\n".join(p.read_text("utf-8", "replace") for p in sorted(folder.rglob("*")) if p.is_file())


def asked(**more: Any) -> Any:
    return config(env={"HF_TOKEN": SECRET}, log_secrets=1, **more)


def test_nothing_says_a_secret(pools: Pools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", INHERITED)
    pool = pools(engines={"fake": EngineSettings(env={"DB_PASSWORD": "pa55word!"})})
    server = pool.get(asked())
    key = str(server.launch.endpoint.api_key)
    secrets = (SECRET, INHERITED, "pa55word!", key)
    assert "HF_TOKEN=***" in server.log()
    shown = [
        server.log(),
        repr(server.launch),
        repr(server),
        str(pools.said),
        json.dumps(server.launch.config.canonical()),
    ]
    assert not [s for s in secrets for text in shown if s in text]
    path = server.launch.log_path
    assert path is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    pool.close()
    assert not [s for s in secrets if s in everything_written(tmp_path)]


@pytest.mark.parametrize("crash", ["oom", "model"])
def test_a_crash_says_no_secret_even_with_locals(pools: Pools, tmp_path: Path, crash: str) -> None:
    with pytest.raises(LaunchError) as caught:
        pools().get(asked(crash=crash))
    frames = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    assert SECRET not in "".join(frames.format())
    assert SECRET not in everything_written(tmp_path)


def test_a_log_that_tries_to_take_over_a_terminal(pools: Pools) -> None:
    with pytest.raises(LaunchError) as caught:
        pools().get(config(hostile_log=1, crash="silent"))
    text = str(caught.value)
    assert not [c for c in text if ord(c) < 32 and c != "\n"]
    assert "\u202e" not in text
    assert max(map(len, text.splitlines())) < 400


def test_keys_are_random_and_long(pools: Pools) -> None:
    keys = {pools().get(config(seed=n)).launch.endpoint.api_key for n in range(2)}
    assert len(keys) == 2
    assert min(len(str(k)) for k in keys) >= 32


def test_the_server_listens_on_loopback(pools: Pools) -> None:
    import psutil

    server = pools().get(config())
    found = [
        c.laddr[0]
        for c in psutil.net_connections("tcp")
        if c.pid in server.launch.pids and c.status == psutil.CONN_LISTEN and c.laddr
    ]
    assert found == ["127.0.0.1"]
