"""What a running server tells about itself, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class EffectiveConfig:
    """What a running server says it resolved to. ``None`` means it could not be read: unknown, never assumed.

    ``kv_tokens`` is the KV cache's capacity in tokens. ``versions`` maps package to version as the server told
    (``sglang``, ``torch``, ``cuda``, ``nccl``, ``flashinfer``). ``nccl_env`` holds the NCCL variables in force after
    start. ``sources`` maps a field's name to where it was read (``/server_info``, ``log``).
    """

    engine_version: str | None = None
    model: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    attention_backend: str | None = None
    prefill_attention_backend: str | None = None
    decode_attention_backend: str | None = None
    cuda_graph: bool | None = None
    custom_all_reduce: bool | None = None
    prefix_cache: bool | None = None
    max_running_requests: int | None = None
    context_length: int | None = None
    kv_tokens: int | None = None
    speculative: str | None = None
    tp: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    nccl_env: Mapping[str, str] = field(default_factory=dict)
    other: Mapping[str, str] = field(default_factory=dict)
    cache_state: str | None = None
    """``cold`` or ``warm`` compile cache, when the log shows it."""
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Counters:
    """Cumulative counters (and gauges marked so) of one server, read from its metrics; ``None`` where not offered."""

    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    preemptions: float | None = None
    running: float | None = None  # gauge
    waiting: float | None = None  # gauge
    drafts: float | None = None  # verify steps
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    captured_batches: float | None = None
    """Decode batches that ran in a captured graph."""
    uncaptured_batches: float | None = None
    """Decode batches that ran outside one; where graphs are not to be had (a CPU) these are all."""


class Probe(Protocol):
    """Read-only view of a running server that the server room hands to ``Engine.effective``."""

    @property
    def log(self) -> str:
        """The server's log so far."""

    def json(self, path: str) -> Any | None:
        """Parsed body of GET ``path``, or None when it is not 200 or not JSON."""

    def text(self, path: str) -> str | None:
        """Body of GET ``path``, or None when it is not 200."""
