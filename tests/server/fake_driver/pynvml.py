"""NVML as a JSON file tells it (``LLMPERF_TEST_NVML``): what the product sees when it imports the real binding.

``{"driver": "...", "gpus": [{"uuid", "name", "mib", "capability": [9, 0], "used_mib", "pids": {pid: mib},
"mig": [{"uuid", "name", "mib"}], "nvlink": [uuid], "fails": {function: error}}], "fails": {function: error}}``: an
error is the end of its class's name (``GpuIsLost``). Without the variable there is no driver, as on a machine without
GPUs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_DEVICE_MIG_ENABLE = 1
NVML_P2P_CAPS_INDEX_NVLINK = 2
NVML_P2P_STATUS_OK = 0


class NVMLError(Exception):
    pass


class NVMLError_DriverNotLoaded(NVMLError):
    pass


class NVMLError_GpuIsLost(NVMLError):
    pass


class NVMLError_LibRmVersionMismatch(NVMLError):
    pass


class NVMLError_NoPermission(NVMLError):
    pass


class NVMLError_NotFound(NVMLError):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class NVMLError_Unknown(NVMLError):
    pass


def _facts() -> Any:
    return json.loads(Path(os.environ["LLMPERF_TEST_NVML"]).read_text())


def _may_fail(facts: Any, function: str) -> Any:
    """``facts``, unless they say that ``function`` fails."""
    if error := facts.get("fails", {}).get(function):
        raise globals()[f"NVMLError_{error}"](error)
    return facts


def nvmlInit() -> None:
    if "LLMPERF_TEST_NVML" not in os.environ:
        raise NVMLError_DriverNotLoaded("Driver Not Loaded")
    _may_fail(_facts(), "nvmlInit")


def nvmlShutdown() -> None:
    pass


def nvmlSystemGetDriverVersion() -> str:
    return str(_facts()["driver"])


def nvmlDeviceGetCount() -> int:
    return len(_may_fail(_facts(), "nvmlDeviceGetCount")["gpus"])


def nvmlDeviceGetHandleByIndex(index: int) -> Any:
    return _may_fail(_facts()["gpus"][index], "nvmlDeviceGetHandleByIndex")


def nvmlDeviceGetHandleByUUID(uuid: str) -> Any:
    for gpu in _facts()["gpus"]:
        for device in (gpu, *gpu.get("mig", [])):
            if device["uuid"] == uuid:
                return device
    raise NVMLError_NotFound("Not Found")


def nvmlDeviceGetMigMode(device: Any) -> list[int]:
    return [1 if device.get("mig") else 0, 0]


def nvmlDeviceGetMaxMigDeviceCount(device: Any) -> int:
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(device: Any, index: int) -> Any:
    if index >= len(device["mig"]):
        raise NVMLError_NotFound("Not Found")
    return device["mig"][index]


def nvmlDeviceGetName(device: Any) -> str:
    return str(device["name"])


def nvmlDeviceGetUUID(device: Any) -> str:
    return str(device["uuid"])


def nvmlDeviceGetCudaComputeCapability(device: Any) -> tuple[int, int]:
    major, minor = device["capability"]
    return major, minor


def nvmlDeviceGetMemoryInfo(device: Any) -> Any:
    if "mib" not in device:
        raise NVMLError_NotSupported("Not Supported")
    return SimpleNamespace(total=device["mib"] << 20, used=device.get("used_mib", 0) << 20)


def nvmlDeviceGetComputeRunningProcesses(device: Any) -> list[Any]:
    return [
        SimpleNamespace(pid=int(pid), usedGpuMemory=None if mib is None else mib << 20)
        for pid, mib in _may_fail(device, "nvmlDeviceGetComputeRunningProcesses").get("pids", {}).items()
    ]


def nvmlDeviceGetP2PStatus(device: Any, other: Any, index: int) -> int:
    assert index == NVML_P2P_CAPS_INDEX_NVLINK
    if "nvlink" not in device:
        raise NVMLError_NotSupported("Not Supported")
    return NVML_P2P_STATUS_OK if other["uuid"] in device["nvlink"] else 1
