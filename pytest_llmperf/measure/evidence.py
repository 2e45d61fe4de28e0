"""What ``stream`` and ``load`` have in common when they sum up: reasons, notes, evidence about the client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_llmperf.measure.client.connection import Connection
from pytest_llmperf.measure.client.request_outcome import RequestOutcome, delay_p99_ms
from pytest_llmperf.measure.limits import Limits
from pytest_llmperf.measure.metrics import Measurement, Warmup
from pytest_llmperf.measure.run import Run, record
from pytest_llmperf.measure.workloads import Workload

_MOST_REASONS = 10
#: Tokens of a chunk that are worth saying: an engine joins two now and then when its client is late.
_SEVERAL = 1.05


def reasons(outcomes: Sequence[RequestOutcome]) -> list[str]:
    """Why requests were invalid, each naming its request; beyond ten, how many more there were."""
    every = [reason for outcome in outcomes for reason in outcome.reasons]
    more = len(every) - _MOST_REASONS
    return [*every[:_MOST_REASONS], *([f"and {more} more like these"] if more > 0 else [])]


def failed(connection: Connection, workload: Workload, warmup: Warmup, outcomes: Sequence[RequestOutcome]) -> Run:
    """The run of a measurement that did not get past its warm-up."""
    measurement = Measurement(connection.launch_id, workload, {}, warmup, invalid=tuple(reasons(outcomes)))
    return Run(measurement, [record(o) for o in outcomes])


def unknown_rates(outcomes: Sequence[RequestOutcome], limits: Limits) -> list[str]:
    """Why decode rates must not count whose first chunk holds an unknown number of tokens: too wide bounds."""
    wide = [o for o in outcomes if o.timing and o.timing.slack > limits.first_chunk]
    if not wide:
        return []
    chunks, tokens = len(wide[0].answer.at_ns), wide[0].answer.completion_tokens or 0
    return [
        f"request {wide[0].call.id}: its first chunk holds 1 to {tokens - chunks + 1} of {tokens} tokens, so its "
        f"decode rate is known to {max(o.timing.slack for o in wide if o.timing):.0%} only ({len(wide)} of "
        f"{len(outcomes)} requests are like this): let the engine send usage with every chunk "
        "(stream_options.continuous_usage_stats)"
    ]


def run_notes(outcomes: Sequence[RequestOutcome], warmup: Warmup) -> list[str]:
    """Things worth saying that change nothing."""
    notes = []
    if not warmup.steady:
        notes.append(f"not steady after {warmup.requests} warm-up requests in {warmup.seconds:.0f} s")
    slack = [o.timing.slack for o in outcomes if o.timing and o.timing.slack]
    if slack:
        notes.append(
            f"tokens of the first chunk unknown in {len(slack)} of {len(outcomes)} requests: their decode rate is "
            f"known to {max(slack) / 2:.2%} either way, and a blank first token is in no TTFT"
        )
    chunks, tokens = chunks_and_tokens(outcomes)
    if chunks and tokens / chunks >= _SEVERAL:
        notes.append(f"{tokens / chunks:.2f} tokens in a chunk")
    return notes


def chunks_and_tokens(outcomes: Sequence[RequestOutcome]) -> tuple[int, int]:
    """Chunks with content, and tokens by usage."""
    return sum(len(o.answer.at_ns) for o in outcomes), sum(o.answer.completion_tokens or 0 for o in outcomes)


def client_evidence(outcomes: Sequence[RequestOutcome], client_s: float) -> dict[str, Any]:
    """JSON-ready: chunks per token, stamps, delays. ``client_s``: CPU seconds of this process while it measured."""
    chunks, tokens = chunks_and_tokens(outcomes)
    stamped = sum(len(o.answer.delays_ns) for o in outcomes)
    return {
        "requests": len(outcomes),
        "chunks_per_token": chunks / tokens if tokens else None,
        "chunks_sharing_a_stamp": sum(o.merged for o in outcomes) / chunks if chunks else None,
        "kernel_stamps": stamped / chunks if chunks else None,
        "delay_p99_ms": delay_p99_ms(outcomes),
        "delay_max_ms": max((d for o in outcomes for d in o.answer.delays_ns), default=0) / 1e6,
        "client_cpu_s_per_1000_tokens": client_s / tokens * 1e3 if tokens else None,
        "cached_tokens": sum(o.answer.cached_tokens or 0 for o in outcomes),
    }
