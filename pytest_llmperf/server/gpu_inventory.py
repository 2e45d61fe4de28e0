"""This host's hardware, whoever made its GPUs."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

import psutil

from pytest_llmperf.errors import GpuDriverError
from pytest_llmperf.hardware import Gpu, Hardware, Inventory
from pytest_llmperf.server.amd import Kfd
from pytest_llmperf.server.nvidia import NvmlInventory


def hardware(inventory: Inventory | None = None) -> Hardware:
    """This host. GPUs are all that the driver shows, leased or not."""
    gpus: tuple[Gpu, ...] = ()
    problem = ""
    try:
        gpus = (inventory or system_inventory()).gpus()
    except GpuDriverError as e:
        problem = str(e)
    return Hardware(
        gpus=tuple(g for g in gpus if not g.refused),
        cpu=_cpu_name(),
        cores=_usable_cores(),
        memory_gb=round(psutil.virtual_memory().total / 2**30, 1),
        host=platform.node(),
        problem=problem or "; ".join(f"{g.name}: {g.refused}" for g in gpus if g.refused),
    )


def _usable_cores() -> int:
    """Those that this process may run on, or as many as its container's share of time comes to."""
    cores = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("utf-8").split()
        return min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # no container, or no limit ("max")
        return cores


def system_inventory() -> Inventory:
    """NVIDIA's when it has GPUs or fails to tell, else AMD's."""
    nvidia = NvmlInventory()
    amd = Kfd()
    try:
        return amd if not nvidia.gpus() and amd.gpus() else nvidia
    except GpuDriverError:
        return nvidia  # whoever needs a GPU asks it again, and is told


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
