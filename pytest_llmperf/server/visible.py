"""Which GPUs pytest may use: the inherited CUDA_VISIBLE_DEVICES (ROCR_, HIP_) read as the drivers read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_llmperf.errors import LaunchError
from pytest_llmperf.hardware import Gpu

CUDA = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
ROCR = "ROCR_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Visible:
    """One usable GPU and the ``token`` that names it to the engine.

    A number wherever that is sure (SGLang reads every entry as an integer), the UUID for MIG slices and beside them.
    """

    gpu: Gpu
    token: str


def visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[Visible, ...]:
    """The GPUs that the environment leaves and the driver lets us use, in the environment's order.

    Raises LaunchError where the environment cannot be read without guessing.
    """
    if not gpus:
        return ()
    amd = gpus[0].vendor == "amd"
    kept = _amd(gpus, environ) if amd else _take(CUDA, environ[CUDA], gpus, environ) if CUDA in environ else tuple(gpus)
    # Beside slices, numbers say different things to different readers; beside a GPU that is lost they may as well.
    by_uuid = any(g.mig for g in gpus) or ("GPU-" in environ.get(CUDA, "") and any(g.refused for g in gpus))
    return tuple(Visible(g, g.uuid if by_uuid else str(list(gpus).index(g))) for g in kept if not g.refused)


def _amd(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """HIP (and CUDA, its alias there) counts within what ROCR leaves; engines are told through ROCR alone."""
    kept = tuple(gpus)
    if ROCR in environ:
        kept = _take(ROCR, environ[ROCR], gpus, environ)
    for name in (HIP, CUDA):
        if name in environ:
            return _take(name, environ[name], kept, environ)
    return kept


def _take(name: str, text: str, gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """As the drivers do: stop at the first entry that names no GPU; a GPU named twice leaves none."""
    taken: list[Gpu] = []
    for token in (part.strip() for part in text.split(",")):
        gpu = _named(name, token, gpus, environ)
        if gpu is None:
            break
        if gpu in taken:
            return ()
        taken.append(gpu)
    return tuple(taken)


def _named(name: str, token: str, gpus: Sequence[Gpu], environ: Mapping[str, str]) -> Gpu | None:
    if token.isdigit():
        _check_numbers(name, gpus, environ)
        return gpus[int(token)] if int(token) < len(gpus) else None
    if not token.startswith(("GPU-", "MIG-")):
        return None
    found = [g for g in gpus if g.uuid.startswith(token)]
    return found[0] if len(found) == 1 else None


def _check_numbers(name: str, gpus: Sequence[Gpu], environ: Mapping[str, str]) -> None:
    """CUDA numbers unlike GPUs by speed unless told otherwise: a number then means another GPU than the driver's."""
    if any(g.mig for g in gpus):
        raise LaunchError(f"{name} uses numbers, but a GPU of this host is sliced (MIG): name GPUs and slices by UUID")
    names = sorted({g.name for g in gpus if not g.refused})
    if name == CUDA and len(names) > 1 and gpus[0].vendor == "nvidia" and environ.get(ORDER) != "PCI_BUS_ID":
        raise LaunchError(
            f"{CUDA} uses numbers, but this host's GPUs differ ({', '.join(names)}) and CUDA "
            f"numbers those by speed: set {ORDER}=PCI_BUS_ID, or name GPUs by UUID"
        )


def variables(chosen: Sequence[Visible]) -> dict[str, str]:
    """What an engine's environment needs to see ``chosen`` and nothing else."""
    if not chosen:
        return {}
    tokens = ",".join(v.token for v in chosen)
    if chosen[0].gpu.vendor == "amd":
        within = ",".join(str(i) for i in range(len(chosen)))
        return {ROCR: tokens, HIP: within, CUDA: within}  # engines refuse to start when the last two differ
    return {CUDA: tokens, ORDER: "PCI_BUS_ID"}
