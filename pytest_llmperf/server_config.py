"""What a test declares about a server: a value, its canonical form and its key. A leaf: imports nothing of ours."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from types import MappingProxyType
from typing import Any

#: Words of a name that say its value is a secret. ``tokens`` and ``tokenizer`` are other words.
_SECRET_WORDS = frozenset({"token", "secret", "secrets", "password", "passwd", "passphrase", "auth", "authorization"})
#: It begins with a literal: ``\w+://`` takes hours over a log's line of a megabyte.
_LOGIN = re.compile(r"(?<=\w)(://)[^\s/@]+@")
_SECRET_PARTS = re.compile(r"credential|(?:api|access|private|secret)key|passw")
MASK = "***"
#: Short names of types of numbers.
DTYPES = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32", "fp32": "float32"}

#: Fields that steer a launch without making it another server.
_NOT_IDENTITY = frozenset({"startup_timeout", "allow_mismatch"})


def is_secret(name: str) -> bool:
    """True when a variable or flag of this name usually holds a secret (``HF_TOKEN``, ``--api-key``)."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    return not _SECRET_WORDS.isdisjoint(words) or bool(_SECRET_PARTS.search("".join(words)))


def mask(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same mapping with the values of secret names replaced, also inside nested mappings, and who logs in in URLs.

    Numbers and switches are no secrets (``token_budget``: 4).
    """
    return {
        k: mask(v) if isinstance(v, Mapping) else MASK if is_secret(k) and _may_be_secret(v) else without_login(v)
        for k, v in values.items()
    }


def without_login(value: Any) -> Any:
    """``http://user:password@host`` with the login replaced; anything but text as it is."""
    return _LOGIN.sub(rf"\1{MASK}@", value) if isinstance(value, str) else value


def _may_be_secret(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_may_be_secret, value))
    return isinstance(value, (str, bytes)) and not value.isdigit()


def _frozen(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(sorted(mapping.items())))


@dataclass(frozen=True, eq=False)
class ServerConfig:
    """One declared server. Two configs are equal when their ``key`` is; ``None`` leaves a choice to the engine.

    ``nccl`` holds full variable names (``NCCL_PROTO``); ``flags`` holds the engine-only keys as declared
    (``num_continuous_decode_steps``: 4). ``tp``, ``dp`` and ``pp`` count GPUs.
    """

    engine: str
    model: str
    tokenizer: str | None = None
    tp: int = 1
    dp: int = 1
    pp: int = 1
    dtype: str | None = None
    quantization: str | None = None
    load_format: str | None = None
    attention_backend: str | None = None
    cuda_graph: bool | None = None
    custom_all_reduce: bool | None = None
    prefix_cache: bool | None = None
    max_running_requests: int | None = None
    context_length: int | None = None
    speculative: Mapping[str, Any] | None = None
    seed: int | None = None
    nccl: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)
    startup_timeout: float | None = None
    """Seconds without any sign of progress before a start is given up (not part of the key)."""
    allow_mismatch: tuple[str, ...] = ()
    """Effective-config fields whose difference from the declared value is a note, not an error (not in the key)."""

    def __post_init__(self) -> None:
        for name in ("nccl", "env", "flags"):
            object.__setattr__(self, name, _frozen(getattr(self, name)))
        if self.speculative is not None:
            object.__setattr__(self, "speculative", _frozen(self.speculative))

    def canonical(self) -> dict[str, Any]:
        """JSON-ready declaration without defaults and with secrets masked; the same for any order of keys, for the long
        and the short name of a type, and for an attention backend in either case."""
        out: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in _NOT_IDENTITY or value == {} or value == f.default:
                continue
            out[f.name] = mask(value) if isinstance(value, Mapping) else without_login(value)
        if self.dtype:
            out["dtype"] = DTYPES.get(self.dtype.lower(), self.dtype)
        if self.attention_backend:
            out["attention_backend"] = self.attention_backend.lower().replace("-", "_")
        return out

    @cached_property
    def key(self) -> str:
        """12 hex digits of the SHA-256 of the canonical form: the identity of a server within and across sessions."""
        text = json.dumps(self.canonical(), sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """Short name for people: engine, model's last path component, tp when above one."""
        tp = f" tp={self.tp}" if self.tp > 1 else ""
        return f"{self.engine} {without_login(self.model).rstrip('/').rsplit('/', 1)[-1]}{tp}"

    def __repr__(self) -> str:
        """Without secrets: this may end up in a traceback."""
        return f"ServerConfig({', '.join(f'{k}={v!r}' for k, v in self.canonical().items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerConfig) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)
