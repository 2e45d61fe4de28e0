"""NVIDIA's GPUs through NVML, and who holds their memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psutil

from pytest_llmperf.hardware import Gpu, Holder

#: Memory in use on a GPU without a process that is more than a driver and an idle daemon take.
UNSEEN_BYTES = 1 << 30


class NvmlInventory:
    """``Inventory`` through nvidia-ml-py. Without a driver there are no GPUs."""

    def gpus(self) -> tuple[Gpu, ...]:
        with _nvml() as n:
            if n is None:
                return ()
            driver = _text(n.nvmlSystemGetDriverVersion())
            found: list[Gpu] = []
            whole: dict[str, Any] = {}
            for index in range(n.nvmlDeviceGetCount()):
                with contextlib.suppress(n.NVMLError):  # a GPU that is lost, or not for us
                    device = n.nvmlDeviceGetHandleByIndex(index)
                    slices = list(_mig_slices(n, device))
                    found += [_gpu(n, handle, device, driver, bool(slices)) for handle in slices or [device]]
                    whole |= {} if slices else {found[-1].uuid: device}
            return tuple(replace(g, nvlinked=_nvlinked(n, g.uuid, whole)) for g in found)
        return ()

    def holders(self, uuid: str) -> tuple[Holder, ...]:
        with _nvml() as n:
            if n is None:
                return ()
            device = n.nvmlDeviceGetHandleByUUID(uuid)
            running = n.nvmlDeviceGetComputeRunningProcesses(device)
            if running:
                return tuple(Holder(p.pid, process_name(p.pid), _mib(p.usedGpuMemory)) for p in running)
            memory = n.nvmlDeviceGetMemoryInfo(device)
            if memory.used > max(UNSEEN_BYTES, memory.total // 32):
                return (Holder(0, "a process that is not visible from here", memory.used >> 20),)
        return ()


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """The initialised library, or None without one or without a driver. Queries it refuses end the block."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        with contextlib.suppress(pynvml.NVMLError):
            yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _mig_slices(n: Any, device: Any) -> Iterator[Any]:
    with contextlib.suppress(n.NVMLError):
        if n.nvmlDeviceGetMigMode(device)[0] != n.NVML_DEVICE_MIG_ENABLE:
            return
        for index in range(n.nvmlDeviceGetMaxMigDeviceCount(device)):
            with contextlib.suppress(n.NVMLError):
                yield n.nvmlDeviceGetMigDeviceHandleByIndex(device, index)


def _gpu(n: Any, handle: Any, device: Any, driver: str, is_slice: bool) -> Gpu:
    name = _text(n.nvmlDeviceGetName(handle))
    major, minor = n.nvmlDeviceGetCudaComputeCapability(device)
    memory = 0
    with contextlib.suppress(n.NVMLError):  # GPUs that share the host's memory have none of their own
        memory = int(n.nvmlDeviceGetMemoryInfo(handle).total) >> 20
    return Gpu(
        uuid=_text(n.nvmlDeviceGetUUID(handle)),
        name=name.split(" MIG ")[0],
        memory_mib=memory,
        compute_capability=f"{major}.{minor}",
        mig=(name.partition(" MIG ")[2] or "yes") if is_slice else None,
        driver=driver,
    )


def _nvlinked(n: Any, uuid: str, whole: dict[str, Any]) -> tuple[str, ...] | None:
    """Which of the ``whole`` GPUs (handles by UUID) it reaches over NVLink; None where the driver does not tell."""
    if uuid not in whole or len(whole) < 2:
        return None
    try:
        return tuple(
            other
            for other, handle in whole.items()
            if other != uuid
            and n.nvmlDeviceGetP2PStatus(whole[uuid], handle, n.NVML_P2P_CAPS_INDEX_NVLINK) == n.NVML_P2P_STATUS_OK
        )
    except n.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _mib(used: int | None) -> int | None:
    return None if used is None else used >> 20


def process_name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "not visible from here"
