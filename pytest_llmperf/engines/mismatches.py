"""Where a running server is not what was declared."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmperf.engines.effective import EffectiveConfig
from pytest_llmperf.server_config import DTYPES, ServerConfig


@dataclass(frozen=True)
class Mismatch:
    """A declared value that the engine did not take."""

    field: str
    declared: str
    effective: str
    why: str = ""


_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?")
#: Declared, they leave the choice to the engine.
_NO_DEMAND = (None, "auto", -1.0)
#: Portable keys that are fields of the effective config too.
COMPARED = (
    *("attention_backend", "cuda_graph", "custom_all_reduce", "prefix_cache", "max_running_requests"),
    *("context_length", "tp", "dtype", "quantization"),
)


def differences(
    config: ServerConfig, effective: EffectiveConfig, becomes: Mapping[str, Collection[str]]
) -> Iterator[Mismatch]:
    """Declared values that the server did not take. Unknown effective values are never a mismatch.

    The flags of ``config`` are in their normal form; ``becomes`` is ``Engine.becomes``.
    """
    for name in COMPARED:
        wanted, got = getattr(config, name), getattr(effective, name)
        if not taken(wanted, got, becomes):
            yield Mismatch(name, str(wanted), str(got))
    for name, value in config.nccl.items():
        if not taken(value, effective.nccl_env.get(name), {}):
            seen = effective.nccl_env[name]
            yield Mismatch(name, value, seen, "another value is in force in the server's processes")
    for name, value in config.flags.items():
        got = effective.other.get(name)
        if not taken(value, got, becomes):
            yield Mismatch(name, str(value), str(got), "it resolved the flag to something else")


def taken(wanted: Any, got: Any, becomes: Mapping[str, Collection[str]]) -> bool:
    """Whether ``got`` is ``wanted`` by another spelling, or what the engine makes of it, or either side is open.

    Lists and mappings are not compared: engines complete them.
    """
    if isinstance(wanted, (Mapping, list, tuple)):
        return True
    one, other = _typed(wanted), _typed(got)
    return one in _NO_DEMAND or other in (None, "auto", one) or other in becomes.get(str(one), ())


def _typed(value: Any) -> Any:
    """Numbers out of texts; other texts without regard to case, ``-`` or ``_``, torch's prefix and the short names of
    types."""
    if value is None:
        return None
    text = str(value).strip().lower()
    if _NUMBER.fullmatch(text):
        return float(text)
    text = text.removeprefix("torch.").replace("-", "_")
    return DTYPES.get(text, text)
