"""Where a running server is not what was declared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pytest_llmperf.engines.effective import EffectiveConfig
from pytest_llmperf.server_config import ServerConfig


@dataclass(frozen=True)
class Mismatch:
    """A declared value that the engine did not take."""

    field: str
    declared: str
    effective: str
    why: str = ""


_DTYPES = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32", "fp32": "float32"}
_COMPARED = (
    *("attention_backend", "cuda_graph", "custom_all_reduce", "prefix_cache", "max_running_requests"),
    *("context_length", "tp", "dtype", "quantization"),
)


def differences(config: ServerConfig, effective: EffectiveConfig) -> Iterator[Mismatch]:
    """Declared values that the server did not take. Unknown effective values are never a mismatch."""
    for name in _COMPARED:
        wanted, got = getattr(config, name), getattr(effective, name)
        if wanted is None or got is None or wanted == "auto" or _plain(wanted) == _plain(got):
            continue
        if name == "quantization" and _plain(got).startswith(_plain(wanted)):
            continue  # awq served by awq_marlin: the same weights by a faster kernel
        yield Mismatch(name, str(wanted), str(got))
    for name, value in config.nccl.items():
        seen = effective.nccl_env.get(name)
        if seen is not None and seen.lower() != value.lower():
            yield Mismatch(name, value, seen, "another value is in force in the server's processes")


def _plain(value: Any) -> Any:
    """Texts without regard to case, ``-`` or ``_``, torch's prefix and the short names of types."""
    if not isinstance(value, str):
        return value
    text = value.lower().removeprefix("torch.").replace("-", "_")
    return _DTYPES.get(text, text)
