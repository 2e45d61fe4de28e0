"""What the engine's own counters say about a measurement: cache hits, preemptions, speculation, strangers.

Counters are read before and after, while no request of ours is in flight; never inside the window.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields

from pytest_llmperf.engines.base import Counters
from pytest_llmperf.measure.client.request_outcome import RequestOutcome
from pytest_llmperf.measure.limits import Limits
from pytest_llmperf.measure.metrics import Guard

_GAUGES = frozenset({"running", "waiting"})


def settled(read: Callable[[], Counters | None], before: Counters | None, tokens: int) -> Counters | None:
    """Counters once they hold the ``tokens`` generated since ``before``: engines publish a little late. Bounded."""
    after = read()
    for _ in range(10):
        if before is None or after is None or before.generation_tokens is None or after.generation_tokens is None:
            break
        if after.generation_tokens - before.generation_tokens >= tokens:
            break
        time.sleep(0.05)  # counters can only be asked for
        after = read()
    return after


def difference(before: Counters | None, after: Counters | None) -> Counters:
    """What was counted in between; gauges are those of ``after``. None where either side does not tell."""
    if before is None or after is None:
        return Counters()
    out: dict[str, float | None] = {}
    for f in fields(Counters):
        old, new = getattr(before, f.name), getattr(after, f.name)
        if f.name in _GAUGES:
            out[f.name] = new
        else:
            out[f.name] = None if old is None or new is None else new - old
    return Counters(**out)


def as_evidence(delta: Counters) -> dict[str, float]:
    """JSON-ready: the counters that there are."""
    return {name: value for name, value in asdict(delta).items() if value is not None}


def cache_problems(outcomes: Sequence[RequestOutcome], delta: Counters, limits: Limits) -> list[str]:
    """Reasons why prompts were not as new as they must be: usage where it tells, else the counters."""

    def allowed(prompt: int) -> float:
        return max(limits.cached_tokens, limits.cached_share * prompt)

    told = [o for o in outcomes if o.answer.cached_tokens is not None]
    problems = [
        f"request {o.call.id}: {o.answer.cached_tokens} of {o.call.prompt_tokens} prompt tokens came from the cache"
        for o in told
        if (o.answer.cached_tokens or 0) > allowed(o.call.prompt_tokens)
    ]
    if not told and delta.cached_tokens is not None:
        most = sum(allowed(o.call.prompt_tokens) for o in outcomes)
        if delta.cached_tokens > most:
            problems.append(f"{delta.cached_tokens:.0f} prompt tokens came from the cache (server's counter)")
    return problems


def traffic_guards(before: Counters | None, delta: Counters, outcomes: Sequence[RequestOutcome]) -> list[Guard]:
    out: list[Guard] = []
    alone = "let nothing else use this server"
    if before is not None and before.running:
        text = f"the server was running {before.running:.0f} requests before the measurement began"
        out.append(Guard("other traffic", True, text, alone, before.running, 0))
    elif delta.generation_tokens is not None:
        ours = sum(o.answer.completion_tokens or 0 for o in outcomes)
        extra = delta.generation_tokens - ours
        text = f"the server generated {delta.generation_tokens:.0f} tokens, we received {ours}"
        out.append(Guard("other traffic", extra > max(1.0, 0.01 * ours), text, alone, extra, max(1.0, 0.01 * ours)))
    if delta.preemptions is not None:
        text = f"{delta.preemptions:.0f} requests were preempted or retracted"
        advice = "lower the concurrency or give the KV cache more memory"
        out.append(Guard("preemptions", delta.preemptions > 0, text, advice, delta.preemptions, 0))
    return out


def graph_guard(before: Counters | None, delta: Counters, *, eager: bool, on_gpu: bool) -> list[Guard]:
    """Decode batches that ran outside captured graphs, unless there are none to be had: a server that holds no GPU of
    ours and has captured none. ``eager``: the engine says that it captured none."""
    batches = delta.uncaptured_batches
    never = before is not None and before.captured_batches == 0 and delta.captured_batches == 0
    if never and not on_gpu:
        return []
    if on_gpu and (eager or (never and batches)):
        ran = "every decode batch" if batches is None else f"all {batches:.0f} decode batches"
        text, advice = f"{ran} ran eagerly: no graph was captured", "declare cuda_graph=False where that is meant"
        return [Guard("captured graphs", True, text, advice, batches, 0)]
    if batches is None:
        return []
    text = f"{batches:.0f} decode batches ran outside captured graphs"
    advice = "capture graphs for this batch size (cuda_graph_max_bs, max_running_requests)"
    return [Guard("captured graphs", batches > 0, text, advice, batches, 0)]


def one_server(disagreement: str | None, delta: Counters, ours: int) -> Guard:
    """Whether all ``ours`` tokens came from the server whose counters were read: a balancer may stand before several.

    ``disagreement``: how answers disagree about who gave them.
    """
    limit = max(1.0, 0.01 * ours)
    missing = 0.0 if delta.generation_tokens is None else ours - delta.generation_tokens
    said = disagreement or "each look met the same server"
    text = f"{said}; of the {ours} tokens that we received its counter misses {max(missing, 0.0):.0f}"
    advice = "attach to one server, not to a balancer before several"
    return Guard("one server", disagreement is not None or missing > limit, text, advice, max(missing, 0.0), limit)


def speculation(delta: Counters, decode_tok_s: float, requests: int = 0) -> dict[str, float]:
    """``acceptance_length``, ``acceptance_rate`` and ``steps_s`` over one window; empty without speculation.

    length = 1 + accepted / drafts (the token that every verify step yields, and the accepted ones); rate = accepted /
    drafted tokens. An engine that does not count accepted tokens gives the length alone, tokens / verify steps, less
    the first token of each of the ``requests``, which its prompt's step yields.
    """
    if not delta.drafts:
        return {}
    out: dict[str, float] = {}
    if delta.accepted_tokens is not None:
        length = 1 + delta.accepted_tokens / delta.drafts
        if delta.draft_tokens:
            out["acceptance_rate"] = delta.accepted_tokens / delta.draft_tokens
    elif delta.generation_tokens:
        length = (delta.generation_tokens - requests) / delta.drafts
    else:
        return {}
    return {**out, "acceptance_length": length, "steps_s": decode_tok_s / length}
