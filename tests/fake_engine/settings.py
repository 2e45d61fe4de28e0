"""Every FAKE_* variable as one frozen value. The package docstring holds the table for readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class At:
    """A value and the ordinals it applies to, counted from 1: ``V`` always, ``V@3``, ``V@3,5``, ``V@3+`` (from 3 on)."""

    value: str
    only: tuple[int, ...] = ()
    since: int | None = None

    def hits(self, ordinal: int) -> bool:
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


def faults(text: str) -> Faults:
    """``A@1;B@2``: several values, each with its ordinals."""
    return tuple(At.parse(part.strip()) for part in text.split(";") if part.strip())


def flag(text: str) -> bool:
    return text.strip().lower() not in ("", "0", "no", "false", "off")


def floats(text: str) -> tuple[float, ...]:
    return tuple(float(x) for x in text.split(",") if x.strip())


def ints(text: str) -> tuple[int, ...]:
    return tuple(int(x) for x in text.split(",") if x.strip())


def weights(text: str) -> tuple[tuple[str, float], ...]:
    """``name=value:0.9;other:1.1``: a number for each key; the number stands after the last colon."""
    pairs = (part.strip().rpartition(":") for part in text.split(";") if part.strip())
    return tuple((key, float(number)) for key, _, number in pairs)


def _env(parse: Callable[[str], Any], default: Any) -> Any:
    return field(default=default, metadata={"parse": parse})


@dataclass(frozen=True)
class Settings:
    """What this stand-in does. Field ``itl_ms`` is read from ``FAKE_ITL_MS``, and so on."""

    # speed
    itl_ms: float = _env(float, 2.0)
    ttft_ms: float = _env(float, 10.0)
    slowdown: float = _env(float, 1.0)
    ttft_slowdown: float = _env(float, 1.0)
    prefill_tok_s: float = _env(float, 0.0)
    cached_speedup: float = _env(float, 0.8)
    effects: tuple[tuple[str, float], ...] = _env(weights, ())
    launch_factors: tuple[float, ...] = _env(floats, ())
    launch_cv: float = _env(float, 0.0)
    request_cv: float = _env(float, 0.0)
    seed: int = _env(int, 0)
    warmup_requests: int = _env(int, 0)
    warmup_factor: float = _env(float, 2.0)
    drift: float = _env(float, 0.0)
    stall: Faults = _env(faults, ())
    lockstep: bool = _env(flag, False)
    per_stream: float = _env(float, 0.0)
    # speculative decoding
    spec_accept: float = _env(float, 0.0)
    spec_accept_by: tuple[tuple[str, float], ...] = _env(weights, ())
    spec_draft: int = _env(int, 0)
    spec_jitter: float = _env(float, 0.0)
    # shape of a stream
    tokens_per_chunk: tuple[int, ...] = _env(ints, ())
    events_per_segment: int = _env(int, 1)
    split_events: int = _env(int, 1)
    split_gap_ms: float = _env(float, 0.3)
    role_chunk: str = _env(str, "with_first")
    empty_first: bool = _env(flag, False)
    late_headers: bool = _env(flag, False)
    usage: str = _env(str, "as_asked")
    usage_null: bool = _env(flag, False)
    usage_off_by: int = _env(int, 0)
    after_finish_ms: float = _env(float, 0.0)
    natural_eos: int = _env(int, 0)
    reasoning_tokens: int = _env(int, 0)
    reasoning_field: str = _env(str, "reasoning_content")
    tool_call_tokens: int = _env(int, 0)
    token_text: str = _env(str, "")
    blank_every: int = _env(int, 0)
    response_model: str = _env(str, "")
    # broken requests
    eos_at: Faults = _env(faults, ())
    truncate_at: Faults = _env(faults, ())
    truncate_clean: bool = _env(flag, False)
    reset_at: Faults = _env(faults, ())
    error_event_at: Faults = _env(faults, ())
    http_error: Faults = _env(faults, ())
    silent_at: Faults = _env(faults, ())
    generation_broken: bool = _env(flag, False)
    number_from_tokens: int = _env(int, 0)
    # start and end
    start_s: float = _env(float, 0.0)
    start_tick_s: float = _env(float, 0.1)
    start_silent: bool = _env(flag, False)
    ready_s: float = _env(float, 0.0)
    cache_state: str = _env(str, "warm")
    crash: Faults = _env(faults, ())
    crash_code: int = _env(int, 1)
    crash_after_s: float = _env(float, 0.0)
    hang: Faults = _env(faults, ())
    die: Faults = _env(faults, ())
    die_code: int = _env(int, -9)
    deaf: bool = _env(flag, False)
    stop_s: float = _env(float, 0.0)
    children: int = _env(int, 0)
    orphans: int = _env(int, 0)
    pids_file: str = _env(str, "")
    child_life_s: float = _env(float, 60.0)
    child_deaf: bool = _env(flag, True)
    serve_in_child: bool = _env(flag, False)
    life_s: float = _env(float, 600.0)
    strict: bool = _env(flag, False)
    # what the engine resolves to
    replace_backend: str = _env(str, "")
    max_running: int = _env(int, 0)
    custom_all_reduce_off: bool = _env(flag, False)
    hide_info: bool = _env(flag, False)
    version: str = _env(str, "")
    preemptions: Faults = _env(faults, ())
    queue: Faults = _env(faults, ())
    uncaptured: Faults = _env(faults, ())
    no_cache: bool = _env(flag, False)
    always_cached: float = _env(float, 0.0)
    # log
    hostile_log: bool = _env(flag, False)
    log_secrets: bool = _env(flag, False)
    # truth
    truth: str = _env(str, "")
    counter: str = _env(str, "")
    launch_log: str = _env(str, "")

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Raises ``SystemExit`` with the name of a variable that is unknown or cannot be read."""
        known = {f"FAKE_{f.name.upper()}": f for f in fields(cls)}
        values: dict[str, Any] = {}
        for name, text in environ.items():
            if not name.startswith("FAKE_") or name == "FAKE_DIALECT":
                continue
            if name not in known:
                raise SystemExit(f"fake engine: unknown variable {name}")
            try:
                values[known[name].name] = known[name].metadata["parse"](text)
            except ValueError as error:
                raise SystemExit(f"fake engine: cannot read {name}={text!r}: {error}") from error
        return cls(**values)


def hit(faults: Faults, ordinal: int) -> str | None:
    """The value of the first fault that applies to this ordinal."""
    return next((at.value for at in faults if at.hits(ordinal)), None)
