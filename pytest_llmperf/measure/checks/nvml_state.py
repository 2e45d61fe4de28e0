"""GPU state through NVML. Every field is None where the driver or the card does not tell it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pynvml

T = TypeVar("T")

#: Clock event reasons (nvml.h) that mean a card ran slower than it should; 0x4 (software power cap) is how a loaded
#: card runs and 0x2 (application clocks) how a careful user measures.
SLOWDOWNS = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
POWER_CAP = 0x4


@dataclass(frozen=True)
class GpuState:
    """One GPU at one moment. Clocks in MHz, power in W, temperatures in C; ``reasons`` is NVML's bit mask of clock
    event reasons; ``ecc`` counts uncorrected errors since the driver was loaded."""

    uuid: str
    sm_mhz: int | None = None
    max_sm_mhz: int | None = None
    reasons: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    default_limit_w: float | None = None
    temperature_c: int | None = None
    slowdown_c: int | None = None
    ecc: int | None = None
    pids: tuple[int, ...] | None = None


class GpuReader(Protocol):
    """Where GPU states come from; tests have their own."""

    calls: int

    def read(self, full: bool) -> tuple[GpuState, ...]:
        """The state of every GPU watched; without ``full`` only clock, reasons and temperature."""

    def close(self) -> None:
        """Let go of the driver."""


class NvmlState:
    """Reads the given GPUs. Raises ``pynvml.NVMLError`` when NVML or one of the GPUs is not there."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self.calls = 0
        pynvml.nvmlInit()
        try:
            self._handles = [(uuid, pynvml.nvmlDeviceGetHandleByUUID(uuid)) for uuid in uuids]
        except pynvml.NVMLError:
            pynvml.nvmlShutdown()
            raise

    def close(self) -> None:
        pynvml.nvmlShutdown()

    def read(self, full: bool) -> tuple[GpuState, ...]:
        return tuple(self._read(uuid, handle, full) for uuid, handle in self._handles)

    def _read(self, uuid: str, handle: Any, full: bool) -> GpuState:
        ask = self._ask
        light = {
            "sm_mhz": ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
            "reasons": ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
            "temperature_c": ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        }
        if not full:
            return GpuState(uuid, **light)
        ecc = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        processes = ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
        return GpuState(
            uuid,
            **light,
            max_sm_mhz=ask(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
            power_w=_watts(ask(pynvml.nvmlDeviceGetPowerUsage, handle)),
            power_limit_w=_watts(ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
            default_limit_w=_watts(ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)),
            slowdown_c=ask(
                pynvml.nvmlDeviceGetTemperatureThreshold, handle, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
            ),
            ecc=ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, *ecc),
            pids=None if processes is None else tuple(p.pid for p in processes),
        )

    def _ask(self, call: Callable[..., T], *args: Any) -> T | None:
        self.calls += 1
        try:
            return call(*args)
        except pynvml.NVMLError:
            return None


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def open_reader(uuids: Sequence[str]) -> GpuReader | None:
    """A reader of these GPUs, None when there are none or NVML cannot be used here."""
    if not uuids:
        return None
    try:
        return NvmlState(uuids)
    except pynvml.NVMLError:
        return None
