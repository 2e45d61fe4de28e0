"""Servers left up between runs: reused when they are the same, never counted twice, ended on request."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_llmperf.engines.base import EngineSettings
from pytest_llmperf.errors import LaunchError, LlmperfError
from pytest_llmperf.server.kept import in_use, list_kept, stop_kept
from pytest_llmperf.server.recipe import digest
from pytest_llmperf.server.state import write_private
from tests.server.fakes import ENGINES, Driver, FileInventory, Pools, alive, config, pids_in, until


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def leave_up(pools: Pools) -> Callable[..., None]:
    """Start a server of these keywords and leave it up, as an earlier run would have."""

    def leave(**asked: Any) -> None:
        pool = pools(keep=True)
        pool.get(config(**asked))
        pool.close()

    return leave


def kept_by_another_run(folder: Path, **asked: Any) -> Driver:
    driver = Driver(folder=folder, configs=[asked], settings={"keep": True})
    said = driver.finish()
    assert driver.process.returncode == 0
    assert "left up at http://127.0.0.1:" in said[-1]
    return driver


def test_the_next_run_uses_it_under_the_same_launch_id(pools: Pools, tmp_path: Path, state: Path) -> None:
    asked = {
        "pids_file": str(tmp_path / "pids"),
        "children": 1,
        "env": {"HF_TOKEN": "hf_verysecret123"},
        "log_secrets": 1,
    }
    first = kept_by_another_run(tmp_path, **asked)
    (record,) = list_kept(state)
    assert record.id == first.servers[0]["id"]
    assert not in_use(record, state)
    (path,) = (state / "kept").glob("*.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert record.api_key is not None
    assert record.api_key in path.read_text()
    assert record.api_key not in repr(record)
    pool = pools(keep=True)
    server = pool.get(config(**asked))
    assert (server.launch.id, server.launch.reused) == (record.id, True)
    assert server.launch.endpoint.port == first.servers[0]["port"]
    assert in_use(record, state)
    assert stop_kept(state) == []  # not from under a run that uses it
    server.check()
    counters = server.counters()
    assert counters is not None
    assert counters.generation_tokens
    assert "HF_TOKEN=***" in server.log()
    assert "hf_verysecret123" not in server.log()
    pool.close()
    assert len(alive(pids_in(tmp_path / "pids")["main"])) == 1
    assert stop_kept(state, [record.id[:20]]) == [record.id]
    assert alive([*pids_in(tmp_path / "pids")["main"], *pids_in(tmp_path / "pids")["child"]]) == []
    assert list_kept(state) == []


def test_another_server_is_started_when_it_is_not_the_same_or_in_use_or_not_asked_for(
    pools: Pools, leave_up: Callable[..., None], tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_up()
    (record,) = list_kept(state)
    assert not pools().get(config()).launch.reused
    assert not pools(keep=True).get(config(itl_ms=3)).launch.reused
    with monkeypatch.context() as shell:
        shell.setenv("NCCL_PROTO", "LL")
        assert not pools(keep=True).get(config()).launch.reused
    assert pools(keep=True).get(config()).launch.id == record.id
    assert not pools(keep=True).get(config()).launch.reused


def test_identity_is_how_it_would_be_started_here_and_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, own = ENGINES["fake"], EngineSettings()
    asked = config(env={"A": "1"})
    same = digest(asked, engine, own)
    assert digest(asked, engine, own) == same
    others = {
        same,
        digest(asked, engine, EngineSettings(command=("other", "program"))),
        digest(asked, engine, EngineSettings(env={"B": "2"})),
        digest(asked, engine, EngineSettings(cwd="/")),
        digest(config(env={"A": "2"}), engine, own),
    }
    for name in ("NCCL_PROTO", "CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "LD_PRELOAD"):
        with monkeypatch.context() as shell:
            shell.setenv(name, "0")
            others.add(digest(asked, engine, own))
    monkeypatch.chdir(tmp_path)
    others.add(digest(asked, engine, own))
    assert len(others) == 10


def test_another_environment_or_model_of_the_same_words_is_another_server(tmp_path: Path) -> None:
    engine, seen = ENGINES["fake"], set()
    for folder in ("a", "b"):
        program = tmp_path / folder / "bin" / "serve"
        packages = tmp_path / folder / "lib" / "python3.11" / "site-packages"
        model = tmp_path / folder / "model"
        for made in (program.parent, packages, model):
            made.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        (model / "config.json").write_text("{}")
        own = EngineSettings(command=("serve",), cwd=str(tmp_path / folder), env={"PATH": str(program.parent)})
        for change in (
            lambda: None,
            lambda packages=packages: (packages / "engine-2.dist-info").mkdir(),
            lambda model=model: (model / "config.json").write_text('{"layers": 2}'),
            lambda program=program: program.write_text("#!/bin/sh -e\n"),
        ):
            change()
            seen.add(digest(config(model="./model"), engine, own))
        assert digest(config(model="./model"), engine, own) in seen
    assert len(seen) == 8


def test_records_of_another_version_are_listed_and_can_be_stopped(
    pools: Pools, leave_up: Callable[..., None], state: Path
) -> None:
    leave_up()
    (path,) = (state / "kept").glob("*.json")
    facts = json.loads(path.read_text())
    for gone in ("digest", "notes", "circumstances"):
        del facts[gone]
    write_private(path, json.dumps({**facts, "of_the_future": 1}))
    (record,) = list_kept(state)
    assert not pools(keep=True).get(config()).launch.reused
    assert stop_kept(state, [record.id]) == [record.id]
    assert record.process is None


def test_a_fresh_launch_ends_the_reused_one(
    pools: Pools, leave_up: Callable[..., None], tmp_path: Path, state: Path
) -> None:
    asked = {"pids_file": str(tmp_path / "pids")}
    leave_up(**asked)
    pool = pools(keep=True)
    old = pool.get(config(**asked)).launch
    new = pool.fresh(config(**asked)).launch
    assert (old.reused, new.reused) == (True, False)
    assert len(alive(pids_in(tmp_path / "pids")["main"])) == 1
    assert list_kept(state) == []
    pool.close()
    assert [k.id for k in list_kept(state)] == [new.id]


def test_a_pid_that_was_given_to_somebody_else_is_left_alone(
    tmp_path: Path, state: Path, pools: Pools, leave_up: Callable[..., None]
) -> None:
    leave_up()
    (record,) = list_kept(state)
    (path,) = (state / "kept").glob("*.json")
    facts = json.loads(path.read_text())
    write_private(path, json.dumps({**facts, "supervisor": os.getpid()}))
    assert stop_kept(state) == []
    assert not path.exists()
    psutil.Process(record.supervisor).terminate()
    psutil.wait_procs([psutil.Process(record.supervisor)] if psutil.pid_exists(record.supervisor) else [], 10)


def test_one_that_hangs_is_replaced(pools: Pools, leave_up: Callable[..., None], tmp_path: Path, state: Path) -> None:
    asked = {"pids_file": str(tmp_path / "pids"), "http_error": "500@2+"}
    leave_up(**asked)
    server = pools(keep=True).get(config(**asked))
    assert not server.launch.reused
    assert any("cannot be used" in line and "HTTP 500" in line for line in pools.said)
    assert len(alive(pids_in(tmp_path / "pids")["main"])) == 1


def test_one_that_died_is_forgotten(pools: Pools, leave_up: Callable[..., None], tmp_path: Path, state: Path) -> None:
    asked = {"pids_file": str(tmp_path / "pids")}
    leave_up(**asked)
    (record,) = list_kept(state)
    os.kill(pids_in(tmp_path / "pids")["main"][0], signal.SIGKILL)
    until(lambda: record.process is None)
    assert list_kept(state) == []


def test_a_killed_run_leaves_nothing_up_though_it_meant_to_keep(tmp_path: Path, state: Path) -> None:
    driver = Driver(folder=tmp_path, configs=[{"pids_file": str(tmp_path / "pids")}], settings={"keep": True})
    driver.kill()
    until(lambda: not alive(pids_in(tmp_path / "pids")["main"]), 10)
    assert list_kept(state) == []


def test_it_goes_on_holding_its_gpus(pools: Pools, tmp_path: Path, state: Path) -> None:
    gpus = tmp_path / "gpus.json"
    gpus.write_text(json.dumps({"gpus": ["GPU-aaaa"]}))
    driver = Driver(folder=tmp_path, configs=[{"engine": "fakegpu"}], settings={"keep": True}, inventory=gpus)
    driver.finish()
    (record,) = list_kept(state)
    said = f"GPU 0 is leased to fakegpu fake-model, which a run left up (`llmperf servers stop {record.id}` ends it)"
    with pytest.raises(LaunchError, match=re.escape(said)):
        pools(FileInventory(gpus)).get(config(engine="fakegpu", seed=1))
    stop_kept(state)
    assert pools(FileInventory(gpus)).get(config(engine="fakegpu", seed=1)).launch.gpus == ("GPU-aaaa",)


def test_stopping_by_a_wrong_id_says_what_there_is(state: Path) -> None:
    with pytest.raises(LlmperfError, match=r"'2026' fits no kept servers \(there are: none\)"):
        stop_kept(state, ["2026"])
