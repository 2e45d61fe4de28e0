"""A pool against the stand-in: launched once, remembered, renewed, gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_llmperf.errors import ConfigError, LaunchError
from tests.server.fakes import Pools, alive, config, pids_in


def launches(folder: Path) -> int:
    path = folder / "launches"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_config_is_launched_once_and_stopped_when_released(pools: Pools, tmp_path: Path) -> None:
    asked = config(pids_file=tmp_path / "pids", launch_log=tmp_path / "launches")
    pool = pools()
    first, second = pool.get(asked), pool.get(asked)
    assert first is second
    assert launches(tmp_path) == 1
    assert [x.id for x in pool.launches] == [first.launch.id]
    first.check()
    pool.release(asked)
    assert alive(pids_in(tmp_path / "pids")["main"]) == []


def test_different_configs_are_different_servers(pools: Pools) -> None:
    pool = pools()
    one, two = pool.get(config(itl_ms=1)), pool.get(config(itl_ms=2))
    assert one.launch.endpoint.port != two.launch.endpoint.port
    assert one.launch.endpoint.api_key != two.launch.endpoint.api_key


def test_fresh_is_another_launch_of_the_same_config(pools: Pools, tmp_path: Path) -> None:
    asked = config(pids_file=tmp_path / "pids")
    pool = pools()
    old = pool.get(asked)
    new = pool.fresh(asked)
    assert pool.get(asked) is new
    assert old.launch.id < new.launch.id
    assert len(alive(pids_in(tmp_path / "pids")["main"])) == 1


def test_a_config_that_cannot_start_is_tried_once(pools: Pools, tmp_path: Path) -> None:
    asked = config(crash="oom", launch_log=tmp_path / "launches")
    pool = pools()
    with pytest.raises(LaunchError) as first:
        pool.get(asked)
    with pytest.raises(LaunchError) as second:
        pool.get(asked)
    cause, *_, log = str(first.value).splitlines()
    assert "last lines of its log:" in str(first.value)
    assert str(second.value) == f"{cause}\n{log}"
    assert launches(tmp_path) == 1
    assert pool.failures == {asked.key: [str(first.value)]}


def test_close_ends_everything_and_may_be_repeated(pools: Pools, tmp_path: Path) -> None:
    pool = pools()
    for n in range(3):
        pool.get(config(pids_file=tmp_path / "pids", children=1, orphans=1, seed=n))
    pool.close()
    pool.close()
    found = pids_in(tmp_path / "pids")
    assert {kind: len(pids) for kind, pids in found.items()} == {"main": 3, "child": 3, "orphan": 3}
    assert alive(pid for pids in found.values() for pid in pids) == []


def test_one_that_cannot_be_let_go_does_not_keep_the_others(pools: Pools, tmp_path: Path) -> None:
    pool = pools(keep=True)
    for n in range(2):
        pool.get(config(seed=n))
    folder = tmp_path / "state" / "kept"
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.write_text("a file where the records should go")
    with pytest.raises(ConfigError, match="in the way"):
        pool.close()
    assert pool.notices == []
    folder.unlink()
    pool.close()


def test_provenance_lies_beside_the_log(pools: Pools) -> None:
    server = pools().get(config(env={"HF_TOKEN": "hf_verysecret123"}))
    assert server.launch.log_path is not None
    facts = json.loads(server.launch.log_path.with_suffix(".json").read_text())
    assert facts["launch"] == server.launch.id
    assert facts["env"]["HF_TOKEN"] == "***"
    assert str(server.launch.endpoint.api_key) not in json.dumps(facts)
