"""NVIDIA's GPUs through NVML, and who holds their memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import psutil

from pytest_llmperf.errors import GpuDriverError
from pytest_llmperf.hardware import Gpu, Holder

T = TypeVar("T")

#: Memory in use on a GPU without a process that is more than a driver and an idle daemon take.
UNSEEN_BYTES = 1 << 30


class NvmlInventory:
    """``Inventory`` through nvidia-ml-py. Where ``devices`` holds none of NVIDIA's, no driver means no GPUs."""

    def __init__(self, devices: Path = Path("/dev")) -> None:
        self._devices = devices

    def gpus(self) -> tuple[Gpu, ...]:
        with self._nvml() as n:
            if n is None:
                return ()
            driver = _text(n.nvmlSystemGetDriverVersion())
            found: list[Gpu] = []
            whole: dict[str, Any] = {}
            for index in range(n.nvmlDeviceGetCount()):
                try:
                    device = n.nvmlDeviceGetHandleByIndex(index)
                    slices = list(_mig_slices(n, device))
                    found += [_gpu(n, handle, device, driver, bool(slices)) for handle in slices or [device]]
                    whole |= {} if slices else {found[-1].uuid: device}
                except n.NVMLError_NoPermission:
                    pass  # kept from us by a cgroup: CUDA does not count it either
                except n.NVMLError as e:
                    # Left out, it would shift the numbers of those behind it.
                    found.append(Gpu("", f"GPU {index}", 0, driver=driver, refused=str(e)))
            if found and all(g.refused for g in found):
                raise _failed("; ".join(f"{g.name}: {g.refused}" for g in found))
            return tuple(replace(g, nvlinked=_nvlinked(n, g.uuid, whole)) for g in found)

    def holders(self, uuid: str) -> tuple[Holder, ...]:
        with self._nvml() as n:
            if n is None:
                return ()
            device = n.nvmlDeviceGetHandleByUUID(uuid)
            running = _supported(n, n.nvmlDeviceGetComputeRunningProcesses, device)
            if running:
                return tuple(Holder(p.pid, process_name(p.pid), _mib(p.usedGpuMemory)) for p in running)
            memory = _supported(n, n.nvmlDeviceGetMemoryInfo, device)
            if memory is not None and memory.used > max(UNSEEN_BYTES, memory.total // 32):
                return (Holder(0, "a process that is not visible from here", memory.used >> 20),)
            return ()

    @contextlib.contextmanager
    def _nvml(self) -> Iterator[Any]:
        """The initialised library, or None without a driver. Raises GpuDriverError for what it refuses."""
        try:
            import pynvml
        except ImportError as e:
            if self._has_devices():
                raise _failed(str(e)) from None
            yield None
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as e:
            if self._has_devices():
                raise _failed(str(e)) from None
            yield None
            return
        try:
            yield pynvml
        except pynvml.NVMLError as e:
            raise _failed(str(e)) from None
        finally:
            pynvml.nvmlShutdown()

    def _has_devices(self) -> bool:
        return any(p.name.removeprefix("nvidia").isdigit() for p in self._devices.glob("nvidia*"))


def _failed(what: str) -> GpuDriverError:
    return GpuDriverError(
        f"this machine has NVIDIA GPUs, but their driver (NVML) fails: {what}\nwhat to do: see what `nvidia-smi` says; "
        "after an update of the driver its kernel module must be loaded anew, in a container the driver's libraries "
        "must be mounted"
    )


def _supported(n: Any, query: Callable[[Any], T], device: Any) -> T | None:
    """The answer, None from a card that keeps no such account (GPUs that share the host's memory)."""
    try:
        return query(device)
    except n.NVMLError_NotSupported:
        return None


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
    memory = _supported(n, n.nvmlDeviceGetMemoryInfo, handle)
    return Gpu(
        uuid=_text(n.nvmlDeviceGetUUID(handle)),
        name=name.split(" MIG ")[0],
        memory_mib=int(memory.total) >> 20 if memory else 0,
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
