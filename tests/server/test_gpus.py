"""Hardware as the drivers tell it, on drivers made of files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.errors import GpuDriverError
from pytest_llmperf.hardware import Gpu, Holder, interconnect
from pytest_llmperf.server.amd import Kfd
from pytest_llmperf.server.gpu_inventory import hardware
from pytest_llmperf.server.nvidia import NvmlInventory
from pytest_llmperf.server.visible import visible

H200 = {"uuid": "GPU-aaaa", "name": "NVIDIA H200", "mib": 143771, "capability": [9, 0]}
SLICED = {
    "uuid": "GPU-bbbb",
    "name": "NVIDIA H200",
    "mib": 143771,
    "capability": [9, 0],
    "mig": [
        {"uuid": "MIG-1111", "name": "NVIDIA H200 MIG 1g.18gb", "mib": 16384},
        {"uuid": "MIG-2222", "name": "NVIDIA H200 MIG 1g.18gb", "mib": 16384},
    ],
}
Driver = Callable[..., None]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Driver:
    """Puts a driver with these GPUs in place of the real one."""
    monkeypatch.syspath_prepend(str(Path(__file__).with_name("fake_driver")))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)

    def put(gpus: list[Mapping[str, Any]], **fails: str) -> None:
        (tmp_path / "nvml.json").write_text(json.dumps({"driver": "580.1", "gpus": gpus, "fails": fails}))
        monkeypatch.setenv("LLMPERF_TEST_NVML", str(tmp_path / "nvml.json"))

    return put


def test_gpus_with_all_that_a_fingerprint_needs(driver: Driver) -> None:
    driver([H200])
    assert NvmlInventory().gpus() == (Gpu("GPU-aaaa", "NVIDIA H200", 143771, "9.0", None, "580.1"),)


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ({"a": "bc", "b": "ac", "c": "ab"}, "NVLink"),
        ({"a": "b", "b": "a", "c": ""}, "PCIe"),  # a bridge between two of three
        ({"a": "", "b": "", "c": ""}, "PCIe"),
        ({}, None),
    ],
)
def test_what_gpus_are_linked_by(driver: Driver, links: dict[str, str], said: str | None) -> None:
    driver([{**H200, "uuid": g, **({"nvlink": list(links[g])} if links else {})} for g in "abc"])
    gpus = NvmlInventory().gpus()
    assert interconnect(gpus) == said
    assert interconnect(gpus[:1]) is None


def test_a_sliced_gpu_is_its_slices(driver: Driver) -> None:
    driver([H200, SLICED])
    found = NvmlInventory().gpus()
    assert [g.uuid for g in found] == ["GPU-aaaa", "MIG-1111", "MIG-2222"]
    assert found[1] == Gpu("MIG-1111", "NVIDIA H200", 16384, "9.0", "1g.18gb", "580.1")


def test_a_gpu_without_memory_of_its_own(driver: Driver) -> None:
    driver([{k: v for k, v in H200.items() if k != "mib"}])
    assert NvmlInventory().gpus()[0].memory_mib == 0


def test_holders_are_named(driver: Driver) -> None:
    driver([{**H200, "pids": {str(os.getpid()): 500, "4194305": None}}])
    mine, other = NvmlInventory().holders("GPU-aaaa")
    assert (mine.pid, mine.mib) == (os.getpid(), 500)
    assert mine.name in str(mine)
    assert other == Holder(4194305, "not visible from here", None)
    assert "some MiB" in str(other)


def test_memory_that_nobody_is_named_for_counts(driver: Driver) -> None:
    driver([{**H200, "used_mib": 30_000}])
    assert [(h.pid, h.mib) for h in NvmlInventory().holders("GPU-aaaa")] == [(0, 30_000)]
    driver([{**H200, "used_mib": 600}])
    assert NvmlInventory().holders("GPU-aaaa") == ()


def test_no_driver_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).with_name("fake_driver")))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.delenv("LLMPERF_TEST_NVML", raising=False)
    assert NvmlInventory().gpus() == ()
    assert NvmlInventory().holders("GPU-aaaa") == ()


def test_no_binding_no_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert NvmlInventory(tmp_path).gpus() == ()
    (tmp_path / "nvidia0").touch()
    with pytest.raises(GpuDriverError, match=r"has NVIDIA GPUs, but .* fails: .*pynvml"):
        NvmlInventory(tmp_path).gpus()


@pytest.mark.parametrize(
    ("function", "error"), [("nvmlInit", "LibRmVersionMismatch"), ("nvmlDeviceGetCount", "Unknown")]
)
def test_a_driver_that_fails_where_there_are_gpus_is_an_error_and_a_note(
    driver: Driver, tmp_path: Path, function: str, error: str
) -> None:
    """Seen after an unattended update of the driver: every GPU is gone from NVML, none from the machine."""
    devices = tmp_path / "dev"
    devices.mkdir()
    for name in ("nvidia0", "nvidiactl"):
        (devices / name).touch()
    driver([H200], **{function: error})
    inventory = NvmlInventory(devices)
    with pytest.raises(GpuDriverError, match=rf"\(NVML\) fails: {error}\nwhat to do: see what `nvidia-smi` says"):
        inventory.gpus()
    here = hardware(inventory)
    assert here.gpus == ()
    assert error in here.problem


def test_control_devices_alone_are_no_gpus(driver: Driver, tmp_path: Path) -> None:
    driver([], nvmlInit="DriverNotLoaded")
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    assert NvmlInventory(tmp_path).gpus() == ()


def test_a_lost_gpu_keeps_its_place_and_one_that_is_not_for_us_has_none(driver: Driver) -> None:
    lost = {**H200, "uuid": "GPU-lost", "fails": {"nvmlDeviceGetHandleByIndex": "GpuIsLost"}}
    kept_away = {**H200, "uuid": "GPU-else", "fails": {"nvmlDeviceGetHandleByIndex": "NoPermission"}}
    last = {**H200, "uuid": "GPU-cccc"}
    driver([kept_away, H200, lost, last])
    found = NvmlInventory().gpus()
    assert [(g.uuid, g.refused) for g in found] == [("GPU-aaaa", ""), ("", "GpuIsLost"), ("GPU-cccc", "")]
    assert [v.token for v in visible(found, {})] == ["0", "2"]
    assert [v.token for v in visible(found, {"CUDA_VISIBLE_DEVICES": "1,2"})] == ["2"]
    assert [v.token for v in visible(found, {"CUDA_VISIBLE_DEVICES": "GPU-c"})] == ["GPU-cccc"]
    here = hardware(NvmlInventory())
    assert [g.uuid for g in here.gpus] == ["GPU-aaaa", "GPU-cccc"]
    assert here.problem == "GPU 2: GpuIsLost"
    driver([lost])
    with pytest.raises(GpuDriverError, match="GPU 0: GpuIsLost"):
        NvmlInventory().gpus()


def test_holders_that_cannot_be_read_are_not_none(driver: Driver) -> None:
    driver([{**H200, "fails": {"nvmlDeviceGetComputeRunningProcesses": "Unknown"}}])
    with pytest.raises(GpuDriverError, match="Unknown"):
        NvmlInventory().holders("GPU-aaaa")
    without_account = {k: v for k, v in H200.items() if k != "mib"}
    driver([{**without_account, "fails": {"nvmlDeviceGetComputeRunningProcesses": "NotSupported"}}])
    assert NvmlInventory().holders("GPU-aaaa") == ()


def test_this_host() -> None:
    here = hardware()
    assert here.cores >= 1
    assert here.memory_gb > 0
    assert here.cpu
    assert here.host


# -- AMD


def kfd(root: Path) -> Kfd:
    def put(path: str, text: str) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)

    put("topology/nodes/0/properties", "cpu_cores_count 64\nsimd_count 0\n")
    put("topology/nodes/0/gpu_id", "0\n")
    for node, unique in ((1, 0xABC), (2, 0xDEF), (10, 0x123)):
        facts = f"simd_count 1216\nunique_id {unique}\ngfx_target_version 90402\n"
        put(f"topology/nodes/{node}/properties", facts)
        put(f"topology/nodes/{node}/gpu_id", f"{50000 + node}\n")
        put(f"topology/nodes/{node}/name", "aqua_vanjaram\n")
        put(f"topology/nodes/{node}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {192 << 30}\n")
    put(f"proc/{os.getpid()}/vram_50002", f"{700 << 20}\n")
    put(f"proc/{os.getpid()}/vram_50001", "0\n")
    return Kfd(root)


def test_amd_gpus_in_the_drivers_order(tmp_path: Path) -> None:
    found = kfd(tmp_path).gpus()
    assert [g.uuid for g in found] == [f"GPU-{n:016x}" for n in (0xABC, 0xDEF, 0x123)]
    assert found[0].compute_capability == "gfx942"
    assert (found[0].vendor, found[0].memory_mib) == ("amd", 192 << 10)


def test_amd_holders(tmp_path: Path) -> None:
    driver = kfd(tmp_path)
    one, two, _ = driver.gpus()
    assert driver.holders(one.uuid) == ()
    assert [(h.pid, h.mib) for h in driver.holders(two.uuid)] == [(os.getpid(), 700)]


def test_no_amd_driver(tmp_path: Path) -> None:
    assert Kfd(tmp_path / "none").gpus() == ()
