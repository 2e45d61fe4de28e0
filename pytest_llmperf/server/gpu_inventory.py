"""This host's hardware: GPUs through NVML (else AMD's kernel driver), and who holds their memory."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

#: Memory in use on a GPU without a process that is more than a driver and an idle daemon take.
UNSEEN_BYTES = 1 << 30


@dataclass(frozen=True)
class Gpu:
    """One GPU or MIG slice, in the driver's order. ``mig`` is the slice's profile (``1g.18gb``), None for a whole GPU.

    ``compute_capability`` is ``9.0`` for NVIDIA, the ``gfx`` name for AMD, empty when unknown.
    """

    uuid: str
    name: str
    memory_mib: int
    compute_capability: str = ""
    mig: str | None = None
    driver: str = ""
    vendor: str = "nvidia"


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a GPU. ``mib`` is None when the driver does not tell; ``pid`` is 0 for memory in
    use by nobody the driver names, as in a container that does not see the host's processes."""

    pid: int
    name: str
    mib: int | None

    def __str__(self) -> str:
        who = f"pid {self.pid} ({self.name})" if self.pid else self.name
        return f"{who} with {'some' if self.mib is None else self.mib} MiB"


@dataclass(frozen=True)
class Hardware:
    """What a result depends on. ``memory_gb`` is the host's; ``host`` its name."""

    gpus: tuple[Gpu, ...]
    cpu: str
    cores: int
    memory_gb: float
    host: str


class Inventory(Protocol):
    """What the driver knows. Tests pass one of their own."""

    def gpus(self) -> tuple[Gpu, ...]:
        """In the driver's (PCI bus) order; empty without a driver."""

    def holders(self, uuid: str) -> tuple[Holder, ...]:
        """Processes with memory on that GPU."""


class NvmlInventory:
    """``Inventory`` through nvidia-ml-py. Without a driver there are no GPUs."""

    def gpus(self) -> tuple[Gpu, ...]:
        with _nvml() as n:
            if n is None:
                return ()
            driver = _text(n.nvmlSystemGetDriverVersion())
            found: list[Gpu] = []
            for index in range(n.nvmlDeviceGetCount()):
                with contextlib.suppress(n.NVMLError):  # a GPU that is lost, or not for us
                    device = n.nvmlDeviceGetHandleByIndex(index)
                    slices = list(_mig_slices(n, device))
                    found += [_gpu(n, handle, device, driver, bool(slices)) for handle in slices or [device]]
            return tuple(found)
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


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _mib(used: int | None) -> int | None:
    return None if used is None else used >> 20


def process_name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "not visible from here"


def hardware(inventory: Inventory | None = None) -> Hardware:
    """This host. GPUs are all that the driver shows, leased or not."""
    return Hardware(
        gpus=(inventory or system_inventory()).gpus(),
        cpu=_cpu_name(),
        cores=os.cpu_count() or 1,
        memory_gb=round(psutil.virtual_memory().total / 2**30, 1),
        host=platform.node(),
    )


def system_inventory() -> Inventory:
    """NVIDIA's when it has GPUs, else AMD's."""
    from pytest_llmperf.server.amd import Kfd

    nvidia = NvmlInventory()
    amd = Kfd()
    return amd if not nvidia.gpus() and amd.gpus() else nvidia


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
