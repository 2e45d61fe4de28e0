"""What stood behind a launch without being part of its identity: versions, driver, what the engine resolved to.

A fingerprint says which launches compare; provenance says why they may differ all the same. It is stored with every
launch and shown, most telling first, when a verdict needs an explanation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields

from pytest_llmperf.baselines.series import StoredLaunch
from pytest_llmperf.engines.base import EffectiveConfig
from pytest_llmperf.hardware import Hardware
from pytest_llmperf.records.results import Difference
from pytest_llmperf.server_config import mask, without_login

#: Shown for a value that one side lacks.
ABSENT = "-"
_LONGEST = 200
_FIRST = ("engine version", "driver", "cuda version", "nccl version")
#: Beside versions, the flags of the command and variables: what a launch is set up with.
_SETUP = ("driver", "command", "executable", "model files")
_HOST_FACTS = ("cpu", "cores", "host memory")
#: Fields of an effective config that are not told one by one: containers, and how rather than what was read.
_CONTAINERS = ("engine_version", "versions", "nccl_env", "other", "sources", "cache_state", "model")


def of(
    hardware: Hardware,
    effective: EffectiveConfig,
    *,
    commit: str | None = None,
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Provenance of one launch: name to value, both short text, secrets masked.

    ``commit`` is the revision under test; ``extra`` takes what else is known (the launch's circumstances). What the
    engine does not tell is left out, never assumed.
    """
    known: dict[str, object] = {
        "engine version": effective.engine_version,
        "driver": ", ".join(sorted({g.driver for g in hardware.gpus if g.driver})),
        "cpu": hardware.cpu,
        "cores": hardware.cores,
        "host memory": f"{hardware.memory_gb:.0f} GB",
        "commit": commit,
    }
    known |= {f"{name} version": value for name, value in effective.versions.items()}
    known |= {
        f.name.replace("_", " "): getattr(effective, f.name)
        for f in fields(effective)
        if f.name not in _CONTAINERS and not isinstance(getattr(effective, f.name), Mapping)
    }
    if effective.kv_tokens:
        # Free memory decides it, to the last token: only its size says something.
        known["kv tokens"] = f"about {float(f'{effective.kv_tokens:.2g}'):.0f}"
    known |= {**mask(effective.nccl_env), **mask(effective.other), **mask(extra or {})}
    told = {
        name: without_login(" ".join(str(value).split()))[:_LONGEST]
        for name, value in known.items()
        if value is not None
    }
    return {name: value for name, value in told.items() if value}


def source(provenance: Mapping[str, str]) -> str | None:
    """What was under test, in words: ``commit 4f1c2d9a8b70, engine version 0.5.17, setup 1b9e77c0``, the last 8 hex
    digits over what else somebody may have changed on purpose (other versions, the command, variables, the model's
    files). None without a commit, which alone tells one state of the source from the next."""
    commit, engine = provenance.get("commit"), provenance.get("engine version", "unknown")
    if commit is None:
        return None
    setup = {k: v for k, v in provenance.items() if k in _SETUP or k.startswith("command ") or k.isupper()}
    setup |= {k: v for k, v in provenance.items() if k.endswith(" version")}
    digits = hashlib.sha256(json.dumps(setup, sort_keys=True).encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return f"commit {commit}, engine version {engine}, setup {digits}"


def differences(stored: Sequence[StoredLaunch], fresh: Sequence[StoredLaunch]) -> tuple[Difference, ...]:
    """What the fresh launches have that no stored launch had, the most telling first.

    Engine version, driver, CUDA, NCCL and kernel libraries come first, then NCCL variables and the settings' own
    command, then what the engine resolved to, then the host and the commit.
    """
    was, now = [_facts(x) for x in stored], [_facts(x) for x in fresh]
    found = []
    names = {name for facts in (*was, *now) for name in facts}
    if not any("executable" in facts for facts in was):  # recorded before such things were
        names = {n for n in names if not n.startswith(("executable", "command", "model files"))}
    for name in names:
        before = list(dict.fromkeys(x.get(name, ABSENT) for x in reversed(was)))
        after = list(dict.fromkeys(x.get(name, ABSENT) for x in reversed(now)))
        if before and set(after) - set(before):
            found.append(Difference(name, _several(before), _several(after)))
    return tuple(sorted(found, key=lambda d: (_rank(d.name), d.name)))


def _facts(launch: StoredLaunch) -> dict[str, str]:
    return {**launch.provenance, **({"compile cache": launch.cache} if launch.cache else {})}


def _several(values: Sequence[str]) -> str:
    return (
        values[0] if len(values) == 1 else f"{values[0]} (also {', '.join(values[1:3])}{', ...' * (len(values) > 3)})"
    )


def _rank(name: str) -> int:
    if name in _FIRST:
        return _FIRST.index(name)
    if name.endswith(" version"):
        return len(_FIRST)
    if name.startswith(("NCCL_", "command")):
        return len(_FIRST) + 1
    if name == "commit":
        return len(_FIRST) + 4
    return len(_FIRST) + (3 if name in _HOST_FACTS else 2)
