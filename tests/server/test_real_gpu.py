"""The same promises on a real GPU and its real driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmperf.engines.base import EngineSettings
from pytest_llmperf.errors import LaunchError
from pytest_llmperf.server.nvidia import NvmlInventory
from tests.server.fakes import FAKE, Driver, Pools, config, until

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not NvmlInventory().gpus(), reason="no NVIDIA GPU"),
]
HOG = str(Path(__file__).with_name("hog.py"))
HOGGING = (sys.executable, HOG, "20000", str(FAKE))


def holders() -> list[int]:
    return [h.pid for h in NvmlInventory().holders(NvmlInventory().gpus()[0].uuid)]


def test_an_orphans_memory_is_free_when_stop_returns(pools: Pools) -> None:
    pool = pools(NvmlInventory(), engines={"fakegpu": EngineSettings(command=HOGGING)})
    server = pool.get(config(engine="fakegpu"))
    assert len(server.launch.gpus) == 1
    assert set(holders()) & set(server.launch.pids)
    pool.close()
    assert holders() == []
    assert pool.notices == []


def test_a_killed_pytest_frees_the_memory(tmp_path: Path) -> None:
    driver = Driver(folder=tmp_path, configs=[{"engine": "fakegpu"}], nvml=True, command=HOGGING)
    assert holders()
    driver.kill()
    until(lambda: holders() == [], 10)


def test_a_strangers_memory_is_named(pools: Pools) -> None:
    with subprocess.Popen([sys.executable, HOG, "5000"], stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        with pytest.raises(LaunchError, match=rf"GPU 0 is held by pid {stranger.pid} \(python\S*\) with \d{{4}} MiB"):
            pools(NvmlInventory()).get(config(engine="fakegpu"))
        stranger.kill()
    until(lambda: holders() == [], 10)
