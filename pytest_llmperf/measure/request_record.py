"""One request of a measurement, as users and the metrics of plugins see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RequestRecord:
    """One request as it went, valid or not. ``id`` was sent as X-Request-Id, ``server_id`` is what the server called
    it. ``sent_s`` is on the monotonic clock, the other times are in ms after it; None where there is none. ``arrivals``
    are the moments at which chunks came: fewer than chunks when several came in one segment."""

    id: str
    server_id: str | None
    sent_s: float
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    chunks: int
    arrivals: int
    ttft_ms: float | None
    decode_tok_s: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None
    e2e_ms: float | None
    finish_reason: str | None
    problems: tuple[str, ...] = ()
