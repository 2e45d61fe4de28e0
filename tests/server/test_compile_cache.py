"""What the loaded libraries of a process tell of its compile cache."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_llmperf.server import compile_cache

SINCE = 1_000_000.0


def compiled(path: Path, at: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(mmap.PAGESIZE))
    os.utime(path, (at, at))
    return path


@contextmanager
def loaded(path: Path) -> Iterator[None]:
    """This process has mapped ``path`` as it would a library."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        yield


@pytest.mark.parametrize(
    "library",
    [
        ".triton/cache/XU5D/cuda_utils.cpython-312-x86_64-linux-gnu.so",
        ".cache/tvm-ffi/sgl_kernel_jit_norm_36ec/sgl_kernel_jit_norm_36ec.so",
        ".cache/flashinfer/0.6.1/90a/cached_ops/page/page.so",
        "torchinductor_somebody/p6/cp6.main.so",
    ],
)
def test_when_it_was_written_tells(tmp_path: Path, library: str) -> None:
    path = compiled(tmp_path / library, SINCE - 1)
    assert compile_cache.state([os.getpid()], SINCE) is None, "it lies there, and this process has not loaded it"
    with loaded(path):
        assert compile_cache.state([os.getpid()], SINCE) == "warm"
        os.utime(path, (SINCE, SINCE))
        assert compile_cache.state([os.getpid()], SINCE) == "cold"


def test_a_kernel_beside_the_loaded_library_tells_too(tmp_path: Path) -> None:
    """Triton keeps one launcher for many kernels, whose binaries are loaded without being mapped."""
    with loaded(compiled(tmp_path / ".triton/cache/A/launcher.so", SINCE - 1)):
        compiled(tmp_path / ".triton/cache/B/kernel.cubin", SINCE + 1)
        assert compile_cache.state([os.getpid()], SINCE) == "cold"


def test_what_is_installed_is_no_cache(tmp_path: Path) -> None:
    with loaded(compiled(tmp_path / "site-packages/triton/_C/libtriton.so", SINCE + 1)):
        assert compile_cache.state([os.getpid()], SINCE) is None


def test_a_process_that_is_gone_tells_nothing() -> None:
    assert compile_cache.state([2**22 + 1], SINCE) is None
    assert compile_cache.state([], SINCE) is None
