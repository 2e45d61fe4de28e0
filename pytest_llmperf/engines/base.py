"""What an engine adapter must know: command line, readiness, effective config, request extras, counters.

An adapter is pure knowledge. It starts nothing, reads no socket and keeps no state: the server room gives it text
(log, HTTP bodies) and it gives back values. A new engine is one subclass in one file; see docs/how-to/write-an-engine.
"""

from __future__ import annotations

import abc
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from pytest_llmperf.server_config import ServerConfig


@dataclass(frozen=True)
class EngineSettings:
    """``[tool.llmperf.engines.<name>]``: where and how this engine is started on this machine.

    ``command`` replaces the adapter's default program (the flags are appended). ``host`` is where clients connect,
    ``bind`` what the server is told to listen on. ``remote`` says the server's processes are not on this host
    (``ssh``, ``srun``): sockets and GPUs are then not checked here. ``port`` fixes the port where the kernel of this
    host cannot choose one.
    """

    command: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    host: str = "127.0.0.1"
    bind: str = "127.0.0.1"
    port: int | None = None
    remote: bool = False


@dataclass(frozen=True)
class Endpoint:
    """Where one server answers. ``api_key`` never appears in ``repr``."""

    host: str
    port: int
    api_key: str | None = field(default=None, repr=False)
    scheme: str = "http"
    path: str = ""

    @property
    def root_url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def base_url(self) -> str:
        """What ``openai.OpenAI(base_url=...)`` takes."""
        return f"{self.root_url}/v1"


@dataclass(frozen=True)
class Command:
    """A program and the variables added to its environment (pytest's own environment is never changed).

    Both may hold secrets, so neither is in ``repr``.
    """

    argv: tuple[str, ...] = field(repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


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
class Mismatch:
    """A declared value that the engine did not take."""

    field: str
    declared: str
    effective: str
    why: str = ""


@dataclass(frozen=True)
class Counters:
    """Cumulative counters (and gauges marked so) of one server, read from its metrics; ``None`` where not offered."""

    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    preemptions: float | None = None
    running: float | None = None  # gauge
    waiting: float | None = None  # gauge
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    acceptance_length: float | None = None  # gauge, where the engine only offers that
    uncaptured_batches: float | None = None


class Probe(Protocol):
    """Read-only view of a running server that the server room hands to ``Engine.effective``."""

    @property
    def log(self) -> str:
        """The server's log so far."""

    def json(self, path: str) -> Any | None:
        """Parsed body of GET ``path``, or None when it is not 200 or not JSON."""

    def text(self, path: str) -> str | None:
        """Body of GET ``path``, or None when it is not 200."""


@dataclass(frozen=True)
class RequestTraits:
    """How this engine wants a comparable request to be made.

    ``token_ids``: completions take a list of ids as prompt. ``tokenize_path``: endpoint that turns text into ids.
    ``continuous_usage``: usage in every chunk can be asked for. ``cached_in_usage``: usage reports cached prompt
    tokens.
    """

    token_ids: bool = True
    tokenize_path: str | None = None
    continuous_usage: bool = False
    cached_in_usage: bool = False
    chat: bool = True


#: Portable keys that some engine may not have; the rest (``env``, ``startup_timeout``, ...) any process takes.
PORTABLE = (
    *("tokenizer", "tp", "dp", "pp", "dtype", "quantization", "load_format", "attention_backend", "cuda_graph"),
    *("custom_all_reduce", "prefix_cache", "max_running_requests", "context_length", "speculative", "seed", "nccl"),
)


_COUNTS = ("tp", "dp", "pp", "max_running_requests", "context_length")


def declared(config: ServerConfig) -> dict[str, Any]:
    """The keys of ``PORTABLE`` that ``config`` sets (``tp``, ``dp``, ``pp`` only above 1), with their values."""
    values = {name: getattr(config, name) for name in PORTABLE}
    return {k: v for k, v in values.items() if v is not None and v != {} and not (k in ("tp", "dp", "pp") and v == 1)}


class Engine(abc.ABC):
    """One kind of server software."""

    name: ClassVar[str]
    uses_gpu: ClassVar[bool] = True
    #: How much launches of one config usually differ (standard deviation of the log of a rate), until baselines tell.
    launch_spread: ClassVar[float] = 0.012
    #: Portable marker keys (fields of ServerConfig) that this engine can honour.
    portable: ClassVar[frozenset[str]]
    health_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str | None] = "/metrics"
    #: The signal with which an orderly end of this engine begins.
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    #: Requests that keep a start alive: a log line that matches any of these is progress.
    progress_patterns: ClassVar[Sequence[tuple[re.Pattern[str], str]]] = ()
    #: (pattern in the log, cause in words), most specific first.
    crash_patterns: ClassVar[Sequence[tuple[re.Pattern[str], str]]] = ()
    #: Log lines after which a server cannot become ready, though its process may live on for a while.
    fatal_patterns: ClassVar[Sequence[re.Pattern[str]]] = ()
    traits: ClassVar[RequestTraits] = RequestTraits()

    @abc.abstractmethod
    def command(self, config: ServerConfig, settings: EngineSettings, endpoint: Endpoint) -> Command:
        """The full command line and environment that start ``config`` listening on ``endpoint``."""

    @abc.abstractmethod
    def effective(self, config: ServerConfig, probe: Probe) -> EffectiveConfig:
        """Read what the running server resolved to."""

    def problems(self, config: ServerConfig) -> list[str]:
        """What this engine cannot honour in ``config``, one sentence each; empty when all is well."""
        found = [
            f"{self.name} cannot honour {key}={dict(value) if isinstance(value, Mapping) else value!r}; "
            f"of these keys it takes {', '.join(sorted(self.portable))}"
            for key, value in declared(config).items()
            if key not in self.portable
        ]
        for key in _COUNTS:
            value = getattr(config, key)
            if value is not None and value < 1:
                found.append(f"{key}={value!r} must be a whole number above 0")
        return found

    def gpu_count(self, config: ServerConfig) -> int:
        """GPUs to lease for one server: ``tp * pp * dp``, or 0 for an engine that runs on the CPU."""
        return config.tp * config.pp * config.dp if self.uses_gpu else 0

    def model_name(self, config: ServerConfig) -> str:
        """The ``model`` field that requests must carry."""
        return config.model

    def request_body(self, config: ServerConfig, output_tokens: int) -> dict[str, Any]:
        """Engine-specific request fields that make the output exactly ``output_tokens`` long."""
        return {"ignore_eos": True}

    def counters(self, metrics: str) -> Counters:
        """Counters out of the text of ``metrics_path`` (Prometheus exposition format)."""
        return Counters()

    def mismatches(self, config: ServerConfig, effective: EffectiveConfig) -> list[Mismatch]:
        """Declared values that the server did not take. Unknown effective values are never a mismatch."""
        return list(_differences(config, effective))


_DTYPES = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32", "fp32": "float32"}
_COMPARED = (
    *("attention_backend", "cuda_graph", "custom_all_reduce", "prefix_cache", "max_running_requests"),
    *("context_length", "tp", "dtype", "quantization"),
)


def _differences(config: ServerConfig, effective: EffectiveConfig) -> Iterator[Mismatch]:
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
