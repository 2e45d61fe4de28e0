"""What an engine adapter must know: flags, readiness, effective config, request extras, counters.

An adapter is pure knowledge. It starts nothing, reads no socket, writes no file and keeps no state: the server room
gives it text (log, HTTP bodies) and it gives back values. A new engine is one subclass in one file; see
docs/how-to/write-an-engine, and ``pytest_llmperf.testing`` for the contract that every adapter is held to.
"""

from __future__ import annotations

import abc
import re
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

from pytest_llmperf.engines import command_flags, metrics_text
from pytest_llmperf.engines.command_flags import Spelling
from pytest_llmperf.engines.effective import Counters, EffectiveConfig, Probe
from pytest_llmperf.engines.mismatches import COMPARED, Mismatch, differences
from pytest_llmperf.engines.settings import EngineSettings
from pytest_llmperf.server_config import ServerConfig

#: What an adapter's author needs is here.
__all__ = [
    "PORTABLE",
    "Command",
    "Counters",
    "EffectiveConfig",
    "Endpoint",
    "Engine",
    "EngineSettings",
    "Mismatch",
    "Probe",
    "RequestTraits",
    "Spelling",
    "Starting",
    "Translation",
    "off",
]


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
class Starting:
    """One server about to be started: what it is, where it is to listen, and the words that come first.

    ``model`` is the declared model as the engine finds it on this machine: a path where ``config.model`` is ``tiny``.
    """

    config: ServerConfig
    settings: EngineSettings
    endpoint: Endpoint
    model: str
    program: tuple[str, ...]


@dataclass(frozen=True)
class RequestTraits:
    """How this engine wants a comparable request to be made.

    ``token_ids``: completions take a list of ids as prompt. ``tokenize_path``: endpoint that turns text into ids.
    ``continuous_usage``: usage in every chunk can be asked for.
    """

    token_ids: bool = True
    tokenize_path: str | None = None
    continuous_usage: bool = False
    chat: bool = True


#: How a portable key is written on an engine's command line: the flag that takes its value, or what makes flags of a
#: config that declares it.
Translation: TypeAlias = str | Callable[[ServerConfig], Mapping[str, Any]]

#: Portable keys that some engine may not have; the rest (``env``, ``startup_timeout``, ...) any process takes.
PORTABLE = (
    *("tokenizer", "tp", "dp", "pp", "dtype", "quantization", "load_format", "attention_backend", "cuda_graph"),
    *("custom_all_reduce", "prefix_cache", "max_running_requests", "context_length", "speculative", "seed", "nccl"),
)
_COUNTS = ("tp", "dp", "pp", "max_running_requests", "context_length")
#: Quantisation methods that an engine renames when it finds a kernel for them (SGLang 0.5.23, vLLM 0.26 to 0.33).
QUANTIZATIONS: Mapping[str, Collection[str]] = MappingProxyType(
    {
        "awq": ("awq_marlin", "auto_awq"),
        "awq_marlin": ("auto_awq",),
        "gptq": ("gptq_marlin", "auto_gptq"),
        "gptq_marlin": ("auto_gptq",),
        "modelopt": ("modelopt_fp8", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"),
    }
)
#: Keys that lease GPUs: an engine's own flag of that meaning would lease none.
_LEASING = ("tp", "dp", "pp")


def off(key: str, *flags: str) -> Translation:
    """The translation of a switch that is on unless one of ``flags`` turns it off: ``cuda_graph=False``."""
    return lambda config: dict.fromkeys(flags, True) if getattr(config, key) is False else {}


def declared(config: ServerConfig) -> dict[str, Any]:
    """The keys of ``PORTABLE`` that ``config`` sets (``tp``, ``dp``, ``pp`` only above 1), with their values."""
    values = {name: getattr(config, name) for name in PORTABLE}
    return {k: v for k, v in values.items() if v is not None and v != {} and not (k in _LEASING and v == 1)}


class Engine(abc.ABC):
    """One kind of server software."""

    name: ClassVar[str]
    #: What starts it, where ``[tool.llmperf.engines.<name>]`` gives no command.
    program: ClassVar[tuple[str, ...]]
    #: Portable key to flag: which keys this engine honours, and how.
    flags: ClassVar[Mapping[str, Translation]] = {}
    spelling: ClassVar[Spelling] = Spelling()
    #: Flags that the adapter writes itself, by the portable key (or ``model``) that is to be declared in their place;
    #: ``host``, ``port``, ``api_key`` and the flags of tp, dp and pp are reserved in any case.
    reserved: ClassVar[Mapping[str, Sequence[str]]] = {}
    #: Words besides the end of ``program`` that start this engine, to be known in a pasted command.
    programs: ClassVar[Sequence[tuple[str, ...]]] = ()
    #: What the engine makes of a value that it was given, in lower case and with ``_``: the same thing by another name,
    #: or the faster kernel for the same weights.
    becomes: ClassVar[Mapping[str, Collection[str]]] = QUANTIZATIONS
    uses_gpu: ClassVar[bool] = True
    #: Flags that choose GPUs by their number: the lease does.
    choose_gpus: ClassVar[Sequence[str]] = ()
    #: Whether it compiles kernels, so that a launch may find its compile cache cold.
    compiles: ClassVar[bool] = True
    #: How much launches of one config usually differ (standard deviation of the log of a rate), until baselines tell.
    launch_spread: ClassVar[float] = 0.012
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

    # -- starting it

    def own_words(self, start: Starting) -> tuple[str, ...]:
        """Words between the program and the flags, such as a model in first place."""
        return ()

    @abc.abstractmethod
    def own_flags(self, start: Starting) -> Mapping[str, Any]:
        """Flags that every server needs: where it listens, its model, its key, its metrics. What the user declares is
        laid over them."""

    def own_env(self, start: Starting) -> Mapping[str, str]:
        """Variables that every server needs. What the user says is laid over them."""
        return {}

    @property
    def portable(self) -> frozenset[str]:
        """Portable keys that this engine honours: those of ``flags``, and NCCL's variables where it has GPUs."""
        return frozenset(self.flags) | ({"nccl"} if self.uses_gpu else frozenset())

    def command(
        self, config: ServerConfig, settings: EngineSettings, endpoint: Endpoint, model: str | None = None
    ) -> Command:
        """The command line and environment that start ``config`` listening on ``endpoint``; not for overriding.

        A flag is the marker's (``vllm={...}``), else a portable key's, else the adapter's own; where two of them hold
        mappings these are merged. A variable is the marker's ``env``, else its ``nccl``, else that of
        ``[tool.llmperf.engines.<name>]``, else the adapter's own.
        """
        start = Starting(config, settings, endpoint, model or config.model, settings.command or self.program)
        layers = (self.own_flags(start), self.portable_flags(config), self.given(config))
        argv = command_flags.argv(command_flags.layered(*layers), self.spelling)
        env = {**self.own_env(start), **settings.env, **config.nccl, **config.env}
        return Command((*start.program, *self.own_words(start), *argv), env)

    def given(self, config: ServerConfig) -> dict[str, Any]:
        """The engine's own flags that ``config`` declares, in the one form that they have however they are written."""
        return command_flags.normal(config.flags, self.spelling)

    def long_name(self, flag: str, value: Any) -> str:
        """Plain name of a flag that was pasted with ``value``: ``-tp`` is ``tensor_parallel_size``."""
        return command_flags.plain(flag, self.spelling)

    def portable_flags(self, config: ServerConfig) -> dict[str, Any]:
        """The flags of the portable keys that ``config`` declares."""
        out: dict[str, Any] = {}
        for key, value in declared(config).items():
            translation = self.flags.get(key)
            if translation is not None:
                out |= {translation: value} if isinstance(translation, str) else translation(config)
        return out

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
        return [*found, *command_flags.problems(self.name, config.flags, dict(self._places()), self.spelling)]

    def _places(self) -> Iterator[tuple[str, str]]:
        """Each reserved flag with what to write in its place."""
        yield "host", f"bind = ... in [tool.llmperf.engines.{self.name}]"
        yield "port", f"port = ... in [tool.llmperf.engines.{self.name}]"
        yield "api_key", "nothing: each launch gets a key of its own"
        for key in ("model", *_LEASING):
            flag = self.flags.get(key)
            for name in (*self.reserved.get(key, ()), *([flag] if isinstance(flag, str) else [])):
                yield name, f"{key}=...{', which also leases the GPUs' if key in _LEASING else ''}"

    def gpu_count(self, config: ServerConfig) -> int:
        """GPUs to lease for one server on this node, or 0 for one that runs on the CPU."""
        on_gpu = self.uses_gpu and self.given(config).get("device") != "cpu"
        return self.ranks(config) if on_gpu else 0

    def ranks(self, config: ServerConfig) -> int:
        """Processes on this node that take a GPU each: ``tp * pp * dp``."""
        return config.tp * config.pp * config.dp

    def model_name(self, config: ServerConfig) -> str:
        """The ``model`` field that requests must carry."""
        return config.model

    # -- asking it

    @abc.abstractmethod
    def effective(self, config: ServerConfig, probe: Probe) -> EffectiveConfig:
        """Read what the running server resolved to."""

    def request_body(self, config: ServerConfig, output_tokens: int) -> dict[str, Any]:
        """Engine-specific request fields that make the output exactly ``output_tokens`` long."""
        return {"ignore_eos": True}

    def counters(self, metrics: str) -> Counters:
        """Counters out of the text of ``metrics_path`` (Prometheus exposition format)."""
        return Counters()

    def birthmark(self, probe: Probe) -> str | None:
        """What this life of the server has in common with no other, the same at each look; None where it tells nothing.

        It tells a restarted server, or another one behind a balancer, from the one that was attached to. Here the
        start time that Prometheus' clients publish, in Unix seconds.
        """
        return metrics_text.born(probe.text(self.metrics_path) or "") if self.metrics_path else None

    def mismatches(self, config: ServerConfig, effective: EffectiveConfig) -> list[Mismatch]:
        """Declared values that the server did not take. Unknown effective values are never a mismatch."""
        return list(differences(self.wanted(config), effective, self.becomes))

    def wanted(self, config: ServerConfig) -> ServerConfig:
        """``config`` with its flags in their normal form; those that a portable key stands for, as that key."""
        given = self.given(config)
        keys = {flag if isinstance(flag, str) else key: key for key, flag in self.flags.items() if key in COMPARED}
        anew = {keys[flag]: given.pop(flag) for flag in keys.keys() & given.keys()}
        return replace(config, flags=given, **{k: v for k, v in anew.items() if v is not None})
