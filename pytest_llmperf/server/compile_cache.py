"""Whether a launch found its compile cache warm, as the libraries tell that its processes have loaded.

Triton, Inductor, FlashInfer and tvm-ffi build shared libraries in a cache folder and load them from there (seen on an
H200: Triton 3.6, torch 2.11). A loaded one shows which folders a server uses; a library or a GPU binary that came into
these after the launch began was compiled, by this server or by one beside it. Where nothing of a cache is loaded, or
the processes are on another host or in a container, nothing is known.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

#: Where caches are unless a variable says so: the folder of each comes first in the match.
_USUAL = re.compile(r"(/.*?(?:/\.triton|/\.cache/(?:flashinfer|sglang|tvm-ffi|vllm)|/torchinductor_[^/]+))/.*")
#: Variables of an engine's environment that put a cache elsewhere.
_ELSEWHERE = (
    *("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TVM_FFI_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"),
    *("SGLANG_CACHE_DIR", "SGLANG_JIT_CACHE_ROOT", "VLLM_CACHE_ROOT"),
)
#: A line of /proc/PID/maps that maps a shared library.
_LIBRARY = re.compile(r"(?m)^\S+ \S+ \S+ \S+ \S+ +(/.+\.so)$")
_COMPILED = frozenset({".so", ".cubin", ".hsaco"})


def state(pids: Iterable[int], since: float) -> str | None:
    """``cold`` or ``warm``, None for unknown. ``pids`` are the server's processes on this host; ``since``, in Unix
    seconds, is when the launch began."""
    used = {folder for pid in pids for folder in _folders(pid)}
    if not used:
        return None
    return "cold" if any(t >= since for folder in used for t in _written(folder)) else "warm"


def _folders(pid: int) -> Iterator[Path]:
    """The cache folders out of which ``pid`` has loaded libraries; none where the system does not tell."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text("utf-8", "surrogateescape")
        environ = Path(f"/proc/{pid}/environ").read_text("utf-8", "surrogateescape")
    except OSError:
        return
    said = dict(pair.split("=", 1) for pair in environ.split("\0") if "=" in pair)
    elsewhere = [said[name].rstrip("/") for name in _ELSEWHERE if said.get(name, "").strip("/")]
    for library in set(_LIBRARY.findall(maps)):
        usual = _USUAL.fullmatch(library)
        folder = next((f for f in elsewhere if library.startswith(f"{f}/")), usual[1] if usual else None)
        if folder is not None:
            yield Path(folder)


def _written(folder: Path) -> Iterator[float]:
    """When each compiled file below ``folder`` was written; one that goes away meanwhile is passed over."""
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            if path.suffix in _COMPILED:
                with contextlib.suppress(OSError):
                    yield path.stat().st_mtime
