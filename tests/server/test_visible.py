"""CUDA_VISIBLE_DEVICES and its relatives, read as the drivers read them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_llmperf.errors import LaunchError
from pytest_llmperf.hardware import Gpu
from pytest_llmperf.server.visible import variables, visible

FOUR = tuple(Gpu(f"GPU-{c * 8}-0000", "NVIDIA H200", 141_000, "9.0") for c in "abcd")
SLICES = (FOUR[0], Gpu("MIG-1111-0", "NVIDIA H200", 16_000, "9.0", mig="1g.18gb"), FOUR[1])
AMD = tuple(Gpu(f"GPU-{c * 16}", "MI300X", 192_000, "gfx942", vendor="amd") for c in "abcd")


def names(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> str:
    """First letters of the visible GPUs' ids, in order."""
    return "".join(v.gpu.uuid[4] for v in visible(gpus, environ))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "abcd"),
        ("2,0", "ca"),
        (" 1 , 3 ", "bd"),
        ("", ""),
        ("-1", ""),
        ("0,-1,1", "a"),
        ("NoDevFiles", ""),
        ("0,9,1", "a"),
        ("0,0", ""),
        ("GPU-bbbbbbbb-0000", "b"),
        ("GPU-bbb,GPU-a", "ba"),
        ("GPU-", ""),
        ("GPU-ffff", ""),
    ],
)
def test_cuda(text: str | None, expected: str) -> None:
    assert names(FOUR, {} if text is None else {"CUDA_VISIBLE_DEVICES": text}) == expected


def test_slices_go_by_id() -> None:
    assert [v.gpu.uuid for v in visible(SLICES, {"CUDA_VISIBLE_DEVICES": "MIG-1111-0"})] == ["MIG-1111-0"]
    assert [v.token for v in visible(SLICES, {})] == [g.uuid for g in SLICES]
    with pytest.raises(LaunchError, match="sliced"):
        visible(SLICES, {"CUDA_VISIBLE_DEVICES": "1"})


def test_whole_gpus_are_handed_over_as_numbers_and_slices_by_id() -> None:
    """SGLang reads each entry as an integer, whatever the user wrote."""
    by_uuid = visible(FOUR, {"CUDA_VISIBLE_DEVICES": "GPU-bbb,GPU-a"})
    assert variables(by_uuid) == {"CUDA_VISIBLE_DEVICES": "1,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    beside_slices = visible(SLICES, {"CUDA_VISIBLE_DEVICES": "GPU-bbb"})
    assert variables(beside_slices)["CUDA_VISIBLE_DEVICES"] == "GPU-bbbbbbbb-0000"
    assert variables(visible(FOUR, {})[1:3])["CUDA_VISIBLE_DEVICES"] == "1,2"
    assert variables(visible(SLICES, {})[1:2])["CUDA_VISIBLE_DEVICES"] == "MIG-1111-0"
    assert variables(()) == {}


def test_numbers_of_unlike_gpus_are_not_guessed() -> None:
    mixed = (FOUR[0], Gpu("GPU-eeee", "NVIDIA L4", 24_000, "8.9"))
    with pytest.raises(LaunchError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        visible(mixed, {"CUDA_VISIBLE_DEVICES": "1"})
    assert names(mixed, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == "e"
    assert names(mixed, {"CUDA_VISIBLE_DEVICES": "GPU-e"}) == "e"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "abcd"),
        ({"ROCR_VISIBLE_DEVICES": "3,1"}, "db"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-" + "c" * 16}, "c"),
        ({"HIP_VISIBLE_DEVICES": "2"}, "c"),
        ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "1"}, "b"),
        ({"ROCR_VISIBLE_DEVICES": "3,1", "CUDA_VISIBLE_DEVICES": "0"}, "d"),
        ({"HIP_VISIBLE_DEVICES": ""}, ""),
    ],
)
def test_rocm(environ: Mapping[str, str], expected: str) -> None:
    assert names(AMD, environ) == expected


def test_rocm_engines_are_told_once() -> None:
    chosen = visible(AMD, {"ROCR_VISIBLE_DEVICES": "3,1"})
    within = {"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert variables(chosen) == {"ROCR_VISIBLE_DEVICES": "3,1", **within}
