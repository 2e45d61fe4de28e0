"""One stream: warm until steady, then one request after another until the launch's mean is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from pytest_llmperf.measure.asker import Asker
from pytest_llmperf.measure.connection import Connection
from pytest_llmperf.measure.limits import DEFAULT, Limits
from pytest_llmperf.measure.metrics import Measurement, Warmup, Workload
from pytest_llmperf.measure.outcome import Outcome
from pytest_llmperf.measure.prompts import PromptLedger
from pytest_llmperf.measure.run import Run, record
from pytest_llmperf.measure.steady import hiccups, is_steady, relative_error

Say = Callable[[str], None]


def stream(
    connection: Connection,
    workload: Workload,
    *,
    seed: str,
    say: Say = print,
    reuse: PromptLedger | None = None,
    limits: Limits = DEFAULT,
) -> Run:
    """Measure ``workload`` one request at a time.

    ``seed`` names the test: it decides the prompts. ``reuse`` is the ledger of this server's life, None for a server
    that nothing else was sent to. Raises ``ServerDiedError`` when the server dies and ``MeasurementError`` when no
    request can be built; whatever else goes wrong is in ``Run.measurement.invalid``.
    """
    ledger = reuse if reuse is not None else PromptLedger()
    with Asker(connection, workload, seed=seed, ledger=ledger, limits=limits) as asker:
        warmup, warm = _warm_up(asker, say)
        bad = [o for o in warm if o.problems]
        if bad:
            return _invalid(connection, workload, warmup, bad)
        measured = _repeat(asker, say)
    return _conclude(connection, workload, warmup, measured, asker)


def _warm_up(asker: Asker, say: Say) -> tuple[Warmup, list[Outcome]]:
    """Requests like the measured ones until both rates stand still, or the bounds are reached."""
    limits, start = asker.limits, time.monotonic()
    decode: list[float] = []
    ttft: list[float] = []
    outcomes: list[Outcome] = []
    steady = False
    while len(decode) < limits.warmup_requests and time.monotonic() - start < limits.warmup_s:
        first = not asker.calibrated
        outcome = asker.ask("warmup", len(outcomes))
        if first and not asker.calibrated:
            asker.calibrate(outcome)
            if outcome.timing is None and outcome.answer.chunks:
                outcome = asker.ask("warmup", 1)
        outcomes.append(outcome)
        if outcome.timing is None:
            break
        asker.continuous_usage |= not outcome.timing.exact and asker.connection.engine.traits.continuous_usage
        decode.append(outcome.timing.decode_tok_s)
        ttft.append(outcome.timing.ttft_ms)
        steady = is_steady(decode, limits.steady_decode) and is_steady(ttft, limits.steady_ttft)
        if steady:
            break
    seconds = time.monotonic() - start
    say(f"warm-up: {len(outcomes)} requests in {seconds:.1f} s" + ("" if steady else ", not steady"))
    return Warmup(len(outcomes), seconds, steady, tuple(decode)), outcomes


def _repeat(asker: Asker, say: Say) -> list[Outcome]:
    """At least ``repetitions`` requests, then more until the mean is known to ``precision``; stops at a failure."""
    work, start = asker.workload, time.monotonic()
    outcomes: list[Outcome] = []
    rates: list[float] = []
    while len(outcomes) < max(work.repetitions, work.max_repetitions if work.precision > 0 else 0):
        outcome = asker.ask("measured", len(outcomes))
        outcomes.append(outcome)
        if outcome.timing is None:
            break
        rates.append(outcome.timing.decode_tok_s)
        enough = len(outcomes) >= work.repetitions
        if enough and (relative_error(rates) <= work.precision or time.monotonic() - start > asker.limits.measure_s):
            break
    return outcomes


def _invalid(connection: Connection, workload: Workload, warmup: Warmup, bad: Sequence[Outcome]) -> Run:
    reasons = tuple(reason for outcome in bad for reason in outcome.reasons)
    return Run(Measurement(connection.launch_id, workload, {}, warmup, invalid=reasons), [record(o) for o in bad])


def _conclude(
    connection: Connection, workload: Workload, warmup: Warmup, outcomes: Sequence[Outcome], asker: Asker
) -> Run:
    times = [o.timing for o in outcomes if o.timing is not None]
    values: dict[str, tuple[float, ...]] = {}
    if times and workload.output_tokens > 1:
        values["decode_tok_s"] = tuple(t.decode_tok_s for t in times)
        values["tpot_ms"] = tuple(1e3 / t.decode_tok_s for t in times)
        values["itl_p50_ms"], values["itl_p99_ms"] = zip(*(t.itl_ms(50, 99) for t in times), strict=True)
    values["ttft_ms"] = tuple(t.ttft_ms for t in times)
    values["e2e_ms"] = tuple(t.e2e_ms for t in times)
    notes: list[str] = []
    for index, away in hiccups(values.get("decode_tok_s", ())):
        notes.append(f"request {outcomes[index].call.id} was {away:+.1%} off the median decode rate")
    evidence: dict[str, Any] = {"transport": asker.transport}
    invalid = tuple(reason for outcome in outcomes for reason in outcome.reasons)
    measurement = Measurement(
        launch_id=connection.launch_id,
        workload=workload,
        values=values,
        warmup=warmup,
        invalid=invalid,
        notes=tuple(notes),
        evidence=evidence,
    )
    return Run(measurement, [record(o) for o in outcomes])
