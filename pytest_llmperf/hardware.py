"""What a machine is, as values: its GPUs and who holds their memory, its CPU, how its GPUs are linked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol


@dataclass(frozen=True)
class Gpu:
    """One GPU or MIG slice, in the driver's order. ``mig`` is the slice's profile (``1g.18gb``), None for a whole GPU.

    ``compute_capability`` is ``9.0`` for NVIDIA, the ``gfx`` name for AMD, empty when unknown. ``nvlinked`` holds the
    UUIDs of the GPUs that it reaches over NVLink, None where the driver does not tell. ``refused`` is the driver's word
    on a GPU that it counts and does not let anybody use (it fell off the bus): nothing else is known of that one.
    """

    uuid: str
    name: str
    memory_mib: int
    compute_capability: str = ""
    mig: str | None = None
    driver: str = ""
    vendor: str = "nvidia"
    nvlinked: tuple[str, ...] | None = None
    refused: str = ""


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
    """What a result depends on. ``cores`` may be used; ``memory_gb`` is the host's; ``host`` its name. ``problem`` says
    why GPUs that are there could not be read."""

    gpus: tuple[Gpu, ...]
    cpu: str
    cores: int
    memory_gb: float
    host: str
    problem: str = ""


class Inventory(Protocol):
    """What a GPU driver knows. Tests pass one of their own. Both raise ``GpuDriverError`` when it does not answer."""

    def gpus(self) -> tuple[Gpu, ...]:
        """In the driver's (PCI bus) order, refused ones in their places; empty on a machine without GPUs."""

    def holders(self, uuid: str) -> tuple[Holder, ...]:
        """Processes with memory on that GPU."""


def interconnect(gpus: Sequence[Gpu]) -> str | None:
    """What several GPUs of one server talk over: ``NVLink`` when every two of them are linked, else ``PCIe``.

    None for one GPU, and where the driver does not tell.
    """
    if len(gpus) < 2 or any(g.nvlinked is None for g in gpus):
        return None
    return "NVLink" if all(b.uuid in (a.nvlinked or ()) for a, b in combinations(gpus, 2)) else "PCIe"
