"""GPU leases across processes, through real lock files."""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_llmperf.errors import LaunchError
from pytest_llmperf.server import leases
from pytest_llmperf.server.leases import Ask, Lease
from pytest_llmperf.server.nvidia import NvmlInventory
from tests.server.fakes import Driver, FileInventory, Pools, config, until

#: Seconds in which a killed run must have freed its GPUs.
PROMISE_S = 15.0
UUIDS = ("GPU-aaaa", "GPU-bbbb")


@pytest.fixture
def inventory(tmp_path: Path) -> FileInventory:
    (tmp_path / "gpus.json").write_text(json.dumps({"gpus": UUIDS}))
    return FileInventory(tmp_path / "gpus.json")


def ask(count: int = 1, **more: Any) -> Ask:
    return Ask(count, "vllm llama", **more)


def acquire(asked: Ask, inventory: FileInventory, folder: Path, **environ: str) -> Lease:
    return leases.acquire(asked, inventory, folder / "state", environ, lambda line: None)


def test_two_never_share_a_gpu(inventory: FileInventory, tmp_path: Path) -> None:
    one, two = acquire(ask(), inventory, tmp_path), acquire(ask(), inventory, tmp_path)
    assert one.uuids != two.uuids
    with pytest.raises(LaunchError) as caught:
        acquire(ask(), inventory, tmp_path)
    text = str(caught.value)
    assert f"GPU 0 is leased to vllm llama of pid {os.getpid()}" in text
    assert "--llmperf-gpu-wait" in text
    one.close()
    three = acquire(ask(), inventory, tmp_path)
    assert three.uuids == one.uuids
    for lease in (two, three):
        lease.close()


def test_all_or_nothing(inventory: FileInventory, tmp_path: Path) -> None:
    one = acquire(ask(), inventory, tmp_path)
    with pytest.raises(LaunchError, match="needs 2 GPUs, 1 free"):
        acquire(ask(2), inventory, tmp_path)
    other = acquire(ask(), inventory, tmp_path)  # the failed try holds nothing
    for lease in (one, other):
        lease.close()


def test_leases_stay_inside_the_inherited_variable(inventory: FileInventory, tmp_path: Path) -> None:
    with closing(acquire(ask(), inventory, tmp_path, CUDA_VISIBLE_DEVICES="1")) as lease:
        assert lease.uuids == ("GPU-bbbb",)
    with pytest.raises(LaunchError, match=r"needs 2 GPUs, 1 visible through CUDA_VISIBLE_DEVICES=1"):
        acquire(ask(2), inventory, tmp_path, CUDA_VISIBLE_DEVICES="1")
    with pytest.raises(LaunchError, match=r"needs 1 GPU, 0 visible through CUDA_VISIBLE_DEVICES="):
        acquire(ask(), inventory, tmp_path, CUDA_VISIBLE_DEVICES="")


def test_a_stranger_on_a_gpu_is_named_and_avoided(inventory: FileInventory, tmp_path: Path) -> None:
    strangers = {"GPU-aaaa": [[4242, "train.py", 30_000]], "GPU-bbbb": [[99, "Xorg", 40]]}
    inventory.path.write_text(json.dumps({"gpus": UUIDS, "holders": strangers}))
    with closing(acquire(ask(), inventory, tmp_path)) as lease:
        assert lease.uuids == ("GPU-bbbb",)
    with pytest.raises(LaunchError, match=r"GPU 0 is held by pid 4242 \(train.py\) with 30000 MiB"):
        acquire(ask(2), inventory, tmp_path)


def test_waiting_ends_when_the_gpu_is_free(inventory: FileInventory, tmp_path: Path) -> None:
    held = acquire(ask(2), inventory, tmp_path)
    said: list[str] = []
    got: list[Lease] = []

    def wait() -> None:
        got.append(leases.acquire(ask(wait=60.0), inventory, tmp_path / "state", {}, said.append))

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: said)
    assert "waiting up to 60 s for 1 GPU" in said[0]
    assert not got
    held.close()
    waiting.join(20)
    assert got[0].uuids == ("GPU-aaaa",)
    got[0].close()


def test_a_worker_of_the_same_run_is_waited_for_in_any_case(inventory: FileInventory, tmp_path: Path) -> None:
    held = acquire(ask(2, run="run-1"), inventory, tmp_path)
    with pytest.raises(LaunchError):
        acquire(ask(run="run-2"), inventory, tmp_path)
    said: list[str] = []

    def tell(line: str) -> None:
        said.append(line)
        held.close()

    lease = leases.acquire(ask(run="run-1"), inventory, tmp_path / "state", {}, tell)
    assert said
    lease.close()


def test_waiting_for_oneself_is_refused_at_once(inventory: FileInventory, tmp_path: Path) -> None:
    mine = {"GPU-aaaa": "sglang llama"}
    with pytest.raises(LaunchError, match="other servers of this session hold too many"):
        acquire(ask(2, wait=3600.0, mine=mine), inventory, tmp_path)


def test_a_host_without_gpus_leases_none(inventory: FileInventory, tmp_path: Path) -> None:
    inventory.path.write_text(json.dumps({"gpus": []}))
    assert acquire(ask(8), inventory, tmp_path) == Lease()


def test_a_gpu_whose_holders_cannot_be_told_is_not_free(inventory: FileInventory, tmp_path: Path) -> None:
    inventory.path.write_text(json.dumps({"gpus": UUIDS, "fails": "GPU is lost"}))
    with pytest.raises(LaunchError, match="GPU 0 cannot be seen to be free: GPU is lost"):
        acquire(ask(), inventory, tmp_path)


def test_a_driver_that_fails_leases_nothing_and_says_to_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (tmp_path / "nvidia0").touch()
    with pytest.raises(LaunchError, match="vllm llama: needs 2 GPUs, and this machine has NVIDIA GPUs, but"):
        leases.acquire(ask(2), NvmlInventory(tmp_path), tmp_path / "state", {}, print)


def test_a_fork_that_outlives_pytest_keeps_no_lease(pools: Pools, inventory: FileInventory, tmp_path: Path) -> None:
    driver = Driver(folder=tmp_path, configs=[{"engine": "fakegpu", "tp": 2}], inventory=inventory.path, fork=True)
    (fork,) = (p for p in psutil.Process(driver.process.pid).children() if p.cmdline()[-1] == driver.process.args[-1])
    driver.kill()
    assert fork.is_running()
    pools(inventory, gpu_wait=PROMISE_S).get(config(engine="fakegpu", tp=2))
    assert fork.is_running()
    fork.kill()


def test_a_hostile_lock_file_is_no_traceback(inventory: FileInventory, tmp_path: Path) -> None:
    lease = acquire(ask(2), inventory, tmp_path)
    for path in (tmp_path / "state" / "gpus").iterdir():
        path.write_bytes(b"\xff[]{")
    with pytest.raises(LaunchError, match="leased to another run"):
        acquire(ask(), inventory, tmp_path)
    lease.close()


# -- through servers


def visible_to(folder: Path) -> list[str]:
    lines = (folder / "launches").read_text().splitlines()
    return [json.loads(line)["env"].get("CUDA_VISIBLE_DEVICES", "none") for line in lines]


def test_servers_of_two_runs_see_different_gpus_and_a_killed_run_frees_its_own(
    pools: Pools, inventory: FileInventory, tmp_path: Path
) -> None:
    asked = {"engine": "fakegpu", "launch_log": str(tmp_path / "launches")}
    driver = Driver(folder=tmp_path, configs=[asked], inventory=inventory.path)
    pool = pools(inventory, gpu_wait=30.0)
    server = pool.get(config(**asked))
    assert visible_to(tmp_path) == ["0", "1"]
    assert [driver.servers[0]["gpus"], list(server.launch.gpus)] == [["GPU-aaaa"], ["GPU-bbbb"]]
    driver.kill()
    again = pool.get(config(seed=1, **asked))
    assert again.launch.gpus == ("GPU-aaaa",)


def test_a_fresh_launch_stays_on_its_gpus_and_a_cpu_engine_takes_none(
    pools: Pools, inventory: FileInventory, tmp_path: Path
) -> None:
    pool = pools(inventory)
    asked = config(engine="fakegpu", launch_log=tmp_path / "launches")
    first = pool.get(asked)
    assert pool.fresh(asked).launch.gpus == first.launch.gpus == ("GPU-aaaa",)
    assert visible_to(tmp_path) == ["0", "0"]
    assert pool.get(config()).launch.gpus == ()
    with pytest.raises(LaunchError, match="needs 2 GPUs, and other servers of this session hold"):
        pool.get(config(engine="fakegpu", tp=2))
    pool.release(asked)
    assert pool.get(config(engine="fakegpu", tp=2, seed=2)).launch.gpus == UUIDS


def test_a_launch_after_another_config_takes_its_gpus_over_or_gives_them_back(
    pools: Pools, inventory: FileInventory, tmp_path: Path
) -> None:
    pool = pools(inventory)
    one, two, wide = (config(engine="fakegpu", tp=tp, seed=n) for n, tp in enumerate((1, 1, 2)))
    broken = config(engine="fakegpu", crash="oom")
    with pytest.raises(LaunchError):
        pool.get(broken)
    first = pool.get(one)
    assert pool.fresh(two, after=one).launch.gpus == first.launch.gpus
    with pytest.raises(LaunchError, match="was stopped by this session"):
        first.check()
    last = pool.fresh(wide, after=two)
    assert last.launch.gpus == UUIDS
    with pytest.raises(LaunchError, match="out of GPU memory"):
        pool.fresh(broken, after=wide)
    with pytest.raises(LaunchError, match="was stopped by this session"):
        last.check()
    lease = acquire(ask(2), inventory, tmp_path)
    assert lease.uuids == UUIDS
    lease.close()


def test_a_stop_waits_until_the_engines_memory_is_free(
    pools: Pools, inventory: FileInventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor asks the driver itself; here one that shows a process of the tree until told otherwise."""
    driver = Path(__file__).with_name("fake_driver")
    monkeypatch.setattr(sys, "path", [str(driver), *sys.path])
    nvml = tmp_path / "nvml.json"

    def holding(pids: dict[int, int]) -> None:
        gpu = {"uuid": "GPU-aaaa", "name": "H200", "mib": 141_000, "capability": [9, 0], "pids": pids}
        nvml.write_text(json.dumps({"driver": "1", "gpus": [gpu]}))

    stranger = os.getpid()
    holding({stranger: 500})
    monkeypatch.setenv("LLMPERF_TEST_NVML", str(nvml))
    inventory.path.write_text(json.dumps({"gpus": ["GPU-aaaa"]}))
    pool = pools(inventory)
    server = pool.get(config(engine="fakegpu", pids_file=tmp_path / "pids"))
    main = server.launch.pids[0]
    holding({stranger: 500, main: 30_000})
    ended = threading.Event()

    def stop() -> None:
        server.stop()
        ended.set()

    stopping = threading.Thread(target=stop)
    stopping.start()
    until(lambda: "Shutting down" in server.log())
    assert not ended.wait(1.0)
    holding({stranger: 500})
    assert ended.wait(8.0)
    stopping.join()
    with closing(acquire(ask(), inventory, tmp_path)) as lease:
        assert lease.uuids == ("GPU-aaaa",)
