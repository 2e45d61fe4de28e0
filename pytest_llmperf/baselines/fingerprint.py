"""Under which conditions is a baseline comparable: stable, meaningful fields and their hash.

A field belongs here when a different value makes a different experiment (another GPU, another flag, a longer prompt).
What may change under the same experiment (driver, engine version, clocks) is provenance: see ``provenance``.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_llmperf import models
from pytest_llmperf.hardware import Hardware, interconnect
from pytest_llmperf.measure.metrics import DEFINITIONS
from pytest_llmperf.server_config import ServerConfig, mask, without_login

#: Prefixes of the fields that describe the server and the workload; every other field describes the hardware.
SERVER, WORKLOAD = "server.", "workload."
_NOT_HARDWARE = (SERVER, WORKLOAD, "definitions")


@dataclass(frozen=True)
class Fingerprint:
    """Identity under which baselines compare. ``fields`` maps a name to its value, both as text."""

    fields: Mapping[str, str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", dict(sorted(self.fields.items())))

    @property
    def key(self) -> str:
        """8 hex digits of the SHA-256 of all fields."""
        text = json.dumps(self.fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]

    @property
    def hardware(self) -> Mapping[str, str]:
        """The fields that describe the machine: a prior is fitted over series that share them."""
        return {k: v for k, v in self.fields.items() if not k.startswith(_NOT_HARDWARE)}

    @property
    def label(self) -> str:
        """Short, file-name-safe name of the hardware: ``h200-x8``, ``intel-xeon-cpu-2-20ghz``."""
        gpu = self.fields.get("gpu")
        name = re.sub(r"(?i)\bnvidia\b", "", gpu) if gpu else self.fields.get("cpu", "unknown")
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "unknown"
        return f"{slug}-x{self.fields.get('gpu count', '1')}" if gpu else slug

    def differences(self, other: Fingerprint) -> list[tuple[str, str, str]]:
        """(name, mine, theirs) for each field that differs; ``-`` stands for a field that one side lacks."""
        names = sorted(self.fields.keys() | other.fields.keys())
        pairs = ((n, self.fields.get(n, "-"), other.fields.get(n, "-")) for n in names)
        return [(n, mine, theirs) for n, mine, theirs in pairs if mine != theirs]


def of(
    hardware: Hardware,
    config: ServerConfig,
    gpu_count: int,
    workload: Mapping[str, Any],
    pool: str | None = None,
    *,
    gpus: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
    definitions: int = DEFINITIONS,
) -> Fingerprint:
    """The fingerprint of one workload on one server on this machine.

    ``gpu_count`` is how many GPUs the engine takes for ``config``, 0 on a CPU; ``gpus`` names (by UUID) the GPUs that
    the server holds, on a host with unlike ones; ``extra`` adds fields of other plugins; ``pool`` is the runner pool,
    when unlike machines of one kind must not be compared.
    """
    on_gpu = gpu_count and hardware.gpus  # an engine for GPUs may run on a CPU as well
    on_cpu = {"cpu": cpu_model(hardware.cpu), "cores": str(hardware.cores)}
    fields = _gpu_fields(hardware, gpu_count, gpus) if on_gpu else on_cpu
    if pool:
        fields["pool"] = pool
    fields["definitions"] = str(definitions)
    if config.model == models.TINY:
        fields["tiny model"] = f"recipe {models.RECIPE}"
    fields.update(_flat(SERVER, config.canonical()))
    fields.update(_flat(WORKLOAD, workload))
    fields.update(_flat("", mask(extra or {})))
    return Fingerprint(fields)


def host_identity(hardware: Hardware) -> str:
    """10 hex digits for one physical machine: its GPUs' UUIDs, else its host name (hashed: names stay private)."""
    return _identity((g.uuid for g in hardware.gpus), hardware.host)


def reported_host(hardware: Mapping[str, Any]) -> str | None:
    """The same of a report's ``session.hardware``; None when that does not tell."""
    uuids = [str(g["uuid"]) for g in hardware.get("gpus") or () if g.get("uuid")]
    return _identity(uuids, str(hardware.get("host") or "")) if uuids or hardware.get("host") else None


def _identity(uuids: Iterable[str], host: str) -> str:
    return hashlib.sha256(("\n".join(sorted(uuids)) or host).encode()).hexdigest()[:10]


def memory_class(mib: float) -> int:
    """GiB of a card as sold: rounded up to a multiple of 2 (of 8 above 32).

    ECC and drivers take a few per cent of the capacity away, never add to it, so that rounding up is stable.
    """
    gib = mib / 1024
    step = 2 if gib <= 32 else 8
    return max(step, math.ceil(gib / step) * step)


def cpu_model(name: str) -> str:
    """The CPU's name without trademark signs and uneven spaces."""
    return " ".join(re.sub(r"\((?:R|TM|C)\)", " ", name, flags=re.IGNORECASE).split()) or "unknown"


def _gpu_fields(hardware: Hardware, count: int, uuids: Sequence[str]) -> dict[str, str]:
    held = [g for g in hardware.gpus if g.uuid in uuids] or list(hardware.gpus)
    fields = {
        "gpu": _each(g.name for g in held),
        "gpu count": str(count),
        "gpu memory": _each(f"{memory_class(g.memory_mib)} GiB" for g in held),
        "compute capability": _each(g.compute_capability or "unknown" for g in held),
    }
    if any(g.mig for g in held):
        fields["mig"] = _each(g.mig or "whole" for g in held)
    if count > 1 and (links := interconnect(held)):
        fields["interconnect"] = links
    return fields


def _each(values: Iterator[str]) -> str:
    return ", ".join(sorted({" ".join(v.split()) for v in values})) or "unknown"


def _flat(prefix: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Nested mappings as dotted names; numbers in one spelling (``2`` and ``2.0`` are one value)."""
    out: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            out.update(_flat(f"{prefix}{name}.", value))
        elif value is not None:
            out[prefix + str(name)] = _text(value)
    return out


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(without_login(value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)))
