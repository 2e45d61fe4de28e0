"""One stream: warm until steady, then one request after another until the launch's mean is known."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np

from pytest_llmperf.engines.base import Counters
from pytest_llmperf.measure.checks.guards import client_guard, delay_guard, drift_guard
from pytest_llmperf.measure.checks.nvml_state import GpuReader
from pytest_llmperf.measure.checks.traffic import difference, settled, speculation
from pytest_llmperf.measure.checks.watch import Watch, quiet
from pytest_llmperf.measure.client.asker import Asker
from pytest_llmperf.measure.client.compiler import Call
from pytest_llmperf.measure.client.connection import Connection
from pytest_llmperf.measure.client.request_outcome import RequestOutcome
from pytest_llmperf.measure.client.timing import Timing, pace
from pytest_llmperf.measure.evidence import client_evidence, failed, reasons, run_notes, unknown_rates
from pytest_llmperf.measure.latencies import Latencies
from pytest_llmperf.measure.limits import DEFAULT, Limits
from pytest_llmperf.measure.measuring_progress import MeasuringProgress, Say, silent
from pytest_llmperf.measure.metrics import Measurement, Warmup
from pytest_llmperf.measure.prompts import PromptLedger
from pytest_llmperf.measure.run import Run, record
from pytest_llmperf.measure.steady import hiccups, is_steady, relative_error
from pytest_llmperf.measure.workloads import Workload


def stream(
    connection: Connection,
    workload: Workload,
    *,
    seed: str,
    say: Say = silent,
    reuse: PromptLedger | None = None,
    limits: Limits = DEFAULT,
    gpus: GpuReader | None = None,
) -> Run:
    """Measure ``workload`` one request at a time.

    ``seed`` names the test: it decides the prompts. ``say`` is called before each request. ``reuse`` is the ledger of
    this server's life, None for a server that nothing else was sent to. ``gpus`` replaces NVML. Raises
    ``ServerDiedError`` when the server dies and ``MeasurementError`` when no request can be built; whatever else goes
    wrong is in ``Run.measurement.invalid``.
    """
    ledger = reuse if reuse is not None else PromptLedger()
    with Asker(connection, workload, seed=seed, ledger=ledger, limits=limits) as asker:
        warmup, warm = _warm_up(asker, say)
        bad = [o for o in warm if o.problems]
        if bad:
            return failed(connection, workload, warmup, bad)
        most = max(workload.repetitions, workload.max_repetitions) if workload.precision > 0 else workload.repetitions
        calls = [asker.call("measured") for _ in range(most)]
        with quiet(), Watch(connection, limits, gpus) as watch:
            outcomes, counters = _repeat(asker, calls, watch.counters, say)
        return _conclude(asker, warmup, watch, outcomes, counters)


def _warm_up(asker: Asker, say: Say) -> tuple[Warmup, list[RequestOutcome]]:
    """Requests like the measured ones until both rates stand still, or the bounds are reached."""
    limits, start = asker.limits, time.monotonic()
    decode: list[float] = []
    ttft: list[float] = []
    outcomes: list[RequestOutcome] = []
    steady = False
    while not steady and len(decode) < limits.warmup_requests and time.monotonic() - start < limits.warmup_s:
        say(MeasuringProgress("warm-up", len(decode) + 1, limits.warmup_requests, decode[-1] if decode else None))
        outcomes += [asker.ask(asker.call("warmup"))] if outcomes else asker.calibrate()
        times = outcomes[-1].timing
        if times is None:
            break
        asker.learn(outcomes[-1])
        decode.append(pace(times))
        ttft.append(times.ttft_ms)
        steady = is_steady(decode, limits.steady_decode) and is_steady(ttft, limits.steady_ttft)
    return Warmup(len(outcomes), time.monotonic() - start, steady, tuple(decode)), outcomes


def _repeat(
    asker: Asker, calls: Sequence[Call], before: Counters | None, say: Say
) -> tuple[list[RequestOutcome], list[Counters]]:
    """At least ``repetitions`` of the calls, then more until the mean is known to ``precision``; stops at a failure.

    Also what the engine counted during each, when it speculates.
    """
    work, start = asker.workload, time.monotonic()
    outcomes: list[RequestOutcome] = []
    counted: list[Counters] = []
    rates: list[float] = []
    speculates = before is not None and bool(before.drafts)
    for call in calls:
        say(_reached(asker, rates, len(calls), time.monotonic() - start))
        outcome = asker.ask(call)
        outcomes.append(outcome)
        if outcome.timing is None:
            break
        if speculates:
            after = settled(asker.connection.counters, before, work.output_tokens)
            counted.append(difference(before, after))
            before = after
        rates.append(pace(outcome.timing))
        late = time.monotonic() - start > asker.limits.measure_s
        if len(outcomes) >= work.repetitions and (late or relative_error(rates) <= work.precision):
            break
    return outcomes, counted


def _reached(asker: Asker, rates: Sequence[float], most: int, spent_s: float) -> MeasuringProgress:
    """Before the next repetition; the time left is the most it can be, since a well-known mean ends it earlier."""
    done = len(rates)
    if not done:
        return MeasuringProgress("repetition", 1, most)
    each_s = spent_s / done
    least = each_s * (asker.workload.repetitions - done)
    left_s = max(least, min(each_s * (most - done), asker.limits.measure_s - spent_s), 0.0)
    return MeasuringProgress("repetition", done + 1, most, statistics.median(rates), left_s)


def _values(timings: Sequence[Timing], counted: Sequence[Counters]) -> dict[str, tuple[float, ...]]:
    """Metric name to one value per repetition."""
    values = {"ttft_ms": tuple(t.ttft_ms for t in timings), "e2e_ms": tuple(t.e2e_ms for t in timings)}
    if any(len(t.at) < 2 for t in timings):
        return values
    rates = tuple(t.decode_tok_s for t in timings)
    p50, p99 = zip(*(t.itl_ms(50, 99) for t in timings), strict=True)
    values |= {"decode_tok_s": rates, "tpot_ms": tuple(1e3 / r for r in rates), "itl_p50_ms": p50, "itl_p99_ms": p99}
    said = [speculation(delta, rate, requests=1) for delta, rate in zip(counted, rates, strict=False)]
    for name in ("acceptance_length", "acceptance_rate", "steps_s"):
        if said and all(name in each for each in said):
            values[name] = tuple(each[name] for each in said)
    return values


def _conclude(
    asker: Asker, warmup: Warmup, watch: Watch, outcomes: Sequence[RequestOutcome], counted: Sequence[Counters]
) -> Run:
    limits = asker.limits
    guards, problems, evidence = watch.conclude(outcomes)
    timings = [o.timing for o in outcomes if o.timing is not None]
    values = _values(timings, counted) if timings else {}
    rates = values.get("decode_tok_s", ())
    if rates:
        guards += delay_guard(outcomes, float(np.median(values["itl_p50_ms"])), limits)
        guards.append(client_guard(watch.client_s, watch.seconds, limits.client_cpu_stream))
        guards += drift_guard(rates, limits, on_cpu=not asker.connection.engine.uses_gpu)
    notes = [*run_notes(outcomes, warmup)]
    for index, away in hiccups(rates):
        notes.append(f"request {outcomes[index].call.id} was {away:+.1%} off the median decode rate")
    measurement = Measurement(
        launch_id=asker.connection.launch_id,
        workload=asker.workload,
        values=values,
        warmup=warmup,
        guards=tuple(guards),
        invalid=(*reasons(outcomes), *unknown_rates(outcomes, limits), *problems),
        notes=tuple(notes),
        evidence={
            **asker.evidence,
            **client_evidence(outcomes, watch.client_s),
            **evidence,
            "precision": relative_error(rates),
        },
        latencies=Latencies.of(outcomes),
    )
    return Run(measurement, [record(o) for o in outcomes])
