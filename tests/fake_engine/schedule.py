"""The token schedule of one request: which chunk leaves at which decode step, and when each step is due.

Pure functions of the settings, the launch and the request; no clock is read here. Times are seconds relative to the
moment the engine takes the request up. Step 0 is the end of prefill and gives one token; every later step gives one
token, or several with speculative decoding. A chunk leaves with the step that gives its last token.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

from .settings import Settings, hit


class Chunk(NamedTuple):
    """``tokens`` tokens, the first of them being token ``first`` (from 0), sent at decode step ``step``."""

    step: int
    first: int
    tokens: int


@dataclass(frozen=True)
class Plan:
    """``stalls``: (step, seconds) pairs, each delaying that step and all later ones."""

    ttft: float
    step_s: float
    chunks: tuple[Chunk, ...]
    accepted: tuple[int, ...]
    """Tokens per verify step (steps 1, 2, ...) with speculative decoding; empty without."""
    stalls: tuple[tuple[int, float], ...] = ()

    def due(self, step: int) -> float:
        """Seconds from the start at which ``step`` is due."""
        return self.ttft + step * self.step_s + sum(s for at, s in self.stalls if at <= step)

    @property
    def tokens(self) -> int:
        return sum(chunk.tokens for chunk in self.chunks)


def draw(seed: str, sd: float) -> float:
    """A normal deviate of standard deviation ``sd`` that depends on ``seed`` alone."""
    from random import Random  # here, because it takes as long to import as all the rest

    return Random(seed).gauss(0, sd)


def request_factor(settings: Settings, launch: int, request: int) -> float:
    """Factor on the decode speed of one request: warm-up, drift and noise within the launch."""
    request = max(request, 1)
    factor = (1 + settings.drift) ** -(request - 1)
    left = settings.warmup_requests - request + 1
    if left > 0:
        factor *= settings.warmup_factor ** (-left / settings.warmup_requests)
    if settings.request_cv:
        factor *= math.exp(draw(f"{settings.seed}/{launch}/{request}", settings.request_cv))
    return factor


def launch_factor(settings: Settings, launch: int) -> float:
    """Factor on the speed of a whole launch (counted from 1): an explicit list, cycled, or a seeded lognormal draw."""
    if settings.launch_factors:
        return settings.launch_factors[(launch - 1) % len(settings.launch_factors)]
    if settings.launch_cv:
        return math.exp(draw(f"{settings.seed}/{launch}", settings.launch_cv))
    return 1.0


def verify_steps(tokens: int, accept: float, most: int, jitter: float, seed: str) -> tuple[int, ...]:
    """Tokens given by each verify step until ``tokens`` are there, ``accept`` a step on average, 1 to ``most`` each.

    Without jitter the counts are as even as integers can be, so that the mean is exact over any stretch.
    """
    out: list[int] = []
    done, owed = 0, 0.0
    while done < tokens:
        owed += accept
        n = int(owed + 1e-9) if not jitter else round(accept + draw(f"{seed}/{len(out)}", jitter))
        n = max(1, min(n, most))
        owed -= n
        n = min(n, tokens - done)
        out.append(n)
        done += n
    return tuple(out)


def boundaries(tokens: int, pattern: tuple[int, ...], lead: int = 0) -> list[int]:
    """Cumulative token counts at the end of each chunk; ``lead`` tokens go first in a chunk of their own."""
    ends: list[int] = [min(lead, tokens)] if lead and tokens else []
    at = ends[-1] if ends else 0
    turn = 0
    while at < tokens:
        at = min(at + max(1, pattern[turn % len(pattern)]), tokens)
        ends.append(at)
        turn += 1
    return ends


def plan(
    settings: Settings,
    *,
    tokens: int,
    request: int,
    launch: int = 1,
    speed: float = 1.0,
    prompt: int = 1,
    cached: int = 0,
    interval: int = 1,
    accept: float = 0.0,
    most: int = 1,
) -> Plan:
    """The schedule of ``tokens`` output tokens of the ``request``-th request (from 1) of the ``launch``-th launch.

    ``speed`` multiplies decode speed (planted effects); ``interval`` is the engine's stream interval; ``accept`` > 0
    turns speculative decoding on.
    """
    launched = launch_factor(settings, launch)
    rate = settings.slowdown * speed * launched * request_factor(settings, launch, request)
    prefill = settings.ttft_ms / 1e3 * (1 - settings.cached_speedup * cached / max(prompt, 1))
    if settings.prefill_tok_s:
        prefill += (prompt - cached) / settings.prefill_tok_s
    accepted: tuple[int, ...] = ()
    if accept and tokens > 1:
        accepted = verify_steps(tokens - 1, accept, most, settings.spec_jitter, f"{settings.seed}/{launch}/{request}")
    have = [1]
    for n in accepted or (1,) * (tokens - 1):
        have.append(have[-1] + n)
    if settings.tokens_per_chunk:
        ends = boundaries(tokens, settings.tokens_per_chunk)
    elif interval > 1:
        ends = boundaries(tokens, (interval,), lead=1)
    else:
        ends = have[:] if tokens else []
    starts = [0, *ends][: len(ends)]
    chunks = tuple(Chunk(bisect_left(have, end), start, end - start) for start, end in zip(starts, ends, strict=True))
    stalls = []
    stall = hit(settings.stall, request)
    if stall is not None:
        ms, _, token = stall.partition(":")
        stalls.append((bisect_left(have, int(token or 2)), float(ms) / 1e3))
    return Plan(
        ttft=prefill / (settings.ttft_slowdown * launched),
        step_s=settings.itl_ms / 1e3 / rate,
        chunks=chunks,
        accepted=accepted,
        stalls=tuple(stalls),
    )
