"""Every FAKE_* variable as one frozen value. The package docstring holds the table for readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class At:
    """A value and the ordinals it applies to, from 1: ``V`` always, ``V@3``, ``V@3,5``, ``V@3+`` (3 and later)."""

    value: str
    only: tuple[int, ...] = ()
    since: int | None = None

    def hits(self, ordinal: int) -> bool:
        """False in any case for what has no ordinal (0)."""
        if ordinal < 1:
            return False
        if self.since is not None:
            return ordinal >= self.since
        return not self.only or ordinal in self.only

    @classmethod
    def parse(cls, text: str) -> At:
        value, _, where = text.partition("@")
        if where.endswith("+"):
            return cls(value, since=int(where[:-1]))
        return cls(value, tuple(int(x) for x in where.split(",") if x))


Faults = tuple[At, ...]
Floats = tuple[float, ...]
Ints = tuple[int, ...]
Weights = tuple[tuple[str, float], ...]


def faults(text: str) -> Faults:
    """``A@1;B@2``: several values, each with its ordinals."""
    return tuple(At.parse(part.strip()) for part in text.split(";") if part.strip())


def flag(text: str) -> bool:
    return text.strip().lower() not in ("", "0", "no", "false", "off")


def floats(text: str) -> Floats:
    return tuple(float(x) for x in text.split(",") if x.strip())


def ints(text: str) -> Ints:
    return tuple(int(x) for x in text.split(",") if x.strip())


def weights(text: str) -> Weights:
    """``name=value:0.9;other:1.1``: a number for each key; the number stands after the last colon."""
    pairs = (part.strip().rpartition(":") for part in text.split(";") if part.strip())
    return tuple((key, float(number)) for key, _, number in pairs)


#: How the text of a variable is read, by the annotation of its field.
READERS: Mapping[str, Callable[[str], Any]] = {
    "float": float,
    "int": int,
    "str": str,
    "bool": flag,
    "Floats": floats,
    "Ints": ints,
    "Faults": faults,
    "Weights": weights,
}


@dataclass(frozen=True)
class Settings:
    """What this stand-in does. Field ``itl_ms`` is read from ``FAKE_ITL_MS``, and so on."""

    # speed
    itl_ms: float = 2.0
    ttft_ms: float = 10.0
    slowdown: float = 1.0
    ttft_slowdown: float = 1.0
    prefill_tok_s: float = 0.0
    cached_speedup: float = 0.8
    effects: Weights = ()
    launch_factors: Floats = ()
    launch_cv: float = 0.0
    request_cv: float = 0.0
    seed: int = 0
    warmup_requests: int = 0
    warmup_factor: float = 2.0
    drift: float = 0.0
    stall: Faults = ()
    lockstep: bool = False
    per_stream: float = 0.0
    # speculative decoding
    spec_accept: float = 0.0
    spec_accept_by: Weights = ()
    spec_draft: int = 0
    spec_jitter: float = 0.0
    # shape of a stream
    tokens_per_chunk: Ints = ()
    events_per_segment: int = 1
    split_events: int = 1
    split_gap_ms: float = 0.3
    role_chunk: str = "with_first"
    empty_first: bool = False
    late_headers: bool = False
    usage: str = "as_asked"
    usage_null: bool = False
    usage_off_by: int = 0
    after_finish_ms: float = 0.0
    comments: bool = False
    natural_eos: int = 0
    reasoning_tokens: int = 0
    reasoning_field: str = "reasoning_content"
    tool_call_tokens: int = 0
    token_text: str = ""
    blank_every: int = 0
    response_model: str = ""
    # broken requests
    eos_at: Faults = ()
    truncate_at: Faults = ()
    truncate_clean: bool = False
    reset_at: Faults = ()
    error_event_at: Faults = ()
    garbage_at: Faults = ()
    http_error: Faults = ()
    silent_at: Faults = ()
    generation_broken: bool = False
    number_from_tokens: int = 0
    # start and end
    start_s: float = 0.0
    start_tick_s: float = 0.1
    start_silent: bool = False
    ready_s: float = 0.0
    jit_cache: str = ""
    cold: Faults = ()
    crash: Faults = ()
    crash_code: int = 1
    crash_after_s: float = 0.0
    hang: Faults = ()
    die: Faults = ()
    die_code: int = -9
    die_text: str = ""
    deaf: bool = False
    stop_s: float = 0.0
    children: int = 0
    orphans: int = 0
    pids_file: str = ""
    child_life_s: float = 60.0
    child_deaf: bool = False
    serve_in_child: bool = False
    life_s: float = 600.0
    strict: bool = False
    # what the engine resolves to
    replace_backend: str = ""
    max_running: int = 0
    custom_all_reduce_off: bool = False
    hide_info: bool = False
    version: str = ""
    preemptions: Faults = ()
    queue: Faults = ()
    uncaptured: Faults = ()
    no_cache: bool = False
    always_cached: float = 0.0
    # log
    hostile_log: bool = False
    log_secrets: bool = False
    # truth
    truth: str = ""
    counter: str = ""
    launch_log: str = ""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Raises ``SystemExit`` with the name of a variable that is unknown or cannot be read."""
        known = {f"FAKE_{f.name.upper()}": f for f in fields(cls)}
        values: dict[str, Any] = {}
        for name, text in environ.items():
            if not name.startswith("FAKE_"):
                continue
            if name not in known:
                raise SystemExit(f"fake engine: unknown variable {name}")
            try:
                values[known[name].name] = READERS[str(known[name].type)](text)
            except ValueError as error:
                raise SystemExit(f"fake engine: cannot read {name}={text!r}: {error}") from error
        return cls(**values)


def hit(faults: Faults, ordinal: int) -> str | None:
    """The value of the first fault that applies to this ordinal."""
    return next((at.value for at in faults if at.hits(ordinal)), None)
