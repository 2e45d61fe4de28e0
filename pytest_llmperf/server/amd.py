"""AMD GPUs as the kernel driver (KFD) shows them under /sys; no ROCm library is needed to lease them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_llmperf.errors import GpuDriverError
from pytest_llmperf.hardware import Gpu, Holder
from pytest_llmperf.server.nvidia import process_name

KFD = Path("/sys/class/kfd/kfd")


class Kfd:
    """``Inventory`` of AMD GPUs, in the driver's node order. ``root`` is the driver's folder."""

    def __init__(self, root: Path = KFD) -> None:
        self._root = root

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu, _ in self._nodes())

    def holders(self, uuid: str) -> tuple[Holder, ...]:
        gpu_id = next((number for gpu, number in self._nodes() if gpu.uuid == uuid), None)
        if gpu_id is None:
            raise GpuDriverError(f"AMD's driver does not show {uuid} any more: see what `rocm-smi` says")
        found: list[Holder] = []
        for entry in sorted(self._root.glob(f"proc/*/vram_{gpu_id}")):
            pid = int(entry.parent.name)
            try:
                used = int(entry.read_text("ascii"))
            except FileNotFoundError:
                continue  # it has ended
            except (OSError, ValueError):
                found.append(Holder(pid, process_name(pid), None))
                continue
            if used:
                found.append(Holder(pid, process_name(pid), used >> 20))
        return tuple(found)

    def _nodes(self) -> Iterator[tuple[Gpu, str]]:
        folders = [p for p in self._root.glob("topology/nodes/*") if p.name.isdigit()]
        for folder in sorted(folders, key=lambda p: int(p.name)):
            facts = _facts(folder / "properties")
            gpu_id = _read(folder / "gpu_id")
            if facts.get("simd_count", "0") == "0" or gpu_id in ("", "0"):
                continue  # a CPU, or a GPU this container may not use
            unique = int(facts.get("unique_id", "0"))
            version = int(facts.get("gfx_target_version", "0"))
            memory = sum(int(_facts(bank).get("size_in_bytes", "0")) for bank in folder.glob("mem_banks/*/properties"))
            gpu = Gpu(
                uuid=f"GPU-{unique:016x}" if unique else f"GPU-kfd-{gpu_id}",
                name=_read(folder / "name") or "AMD GPU",
                memory_mib=memory >> 20,
                compute_capability=f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else "",
                vendor="amd",
            )
            yield gpu, gpu_id


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _facts(path: Path) -> Mapping[str, str]:
    pairs = (line.split(maxsplit=1) for line in _read(path).splitlines())
    return {p[0]: p[1] for p in pairs if len(p) == 2}
