"""Many streams: warm up with whole waves, then a closed loop (or Poisson arrivals) with a steady window."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pytest_llmperf.errors import MeasurementError
from pytest_llmperf.measure.checks.guards import client_guard, delay_guard, drift_guard
from pytest_llmperf.measure.checks.nvml_state import GpuReader
from pytest_llmperf.measure.checks.traffic import speculation
from pytest_llmperf.measure.checks.watch import Watch, quiet
from pytest_llmperf.measure.client.asker import Asker
from pytest_llmperf.measure.client.compiler import Call
from pytest_llmperf.measure.client.connection import Connection
from pytest_llmperf.measure.client.request_outcome import RequestOutcome, finish
from pytest_llmperf.measure.client.swarm import Finished, Swarm
from pytest_llmperf.measure.client.timing import pace
from pytest_llmperf.measure.evidence import client_evidence, failed, reasons, run_notes, unknown_rates
from pytest_llmperf.measure.latencies import Latencies
from pytest_llmperf.measure.limits import DEFAULT, Limits
from pytest_llmperf.measure.measuring_progress import MeasuringProgress, Say, silent
from pytest_llmperf.measure.metrics import Measurement, Warmup
from pytest_llmperf.measure.prompts import PromptLedger
from pytest_llmperf.measure.run import Run, launch_value, record
from pytest_llmperf.measure.steady import hiccups, is_steady
from pytest_llmperf.measure.window import Ended, closed_window, open_window, queue_guard, window_values
from pytest_llmperf.measure.workloads import Workload


def load(
    connection: Connection,
    workload: Workload,
    *,
    seed: str,
    say: Say = silent,
    reuse: PromptLedger | None = None,
    limits: Limits = DEFAULT,
    gpus: GpuReader | None = None,
) -> Run:
    """Measure ``workload`` with several streams at once; one value a metric, over the steady window.

    Closed loop: ``concurrency`` streams until ``requests`` (default ``repetitions`` for each stream) were sent or
    ``seconds`` have passed. With ``rate``: Poisson arrivals for ``seconds`` or until there were ``requests`` of them
    (default ten times ``repetitions``). ``say`` is called before each wave of the warm-up and before the window. The
    other arguments and the errors are those of ``stream``.
    """
    ledger = reuse if reuse is not None else PromptLedger()
    with Asker(connection, workload, seed=seed, ledger=ledger, limits=limits) as asker:
        if asker.transport == "raw":
            raise MeasurementError("load() does not go through a proxy: reach the server directly (NO_PROXY)")
        warmup, warm = _warm_up(asker, say)
        bad = [o for o in warm if o.problems]
        if bad:
            return failed(connection, workload, warmup, bad)
        each_s = float(np.median([o.timing.e2e_ms for o in warm if o.timing])) / 1e3
        play = _open_loop(asker) if workload.rate is not None else _closed_loop(asker, each_s)
        swarm = Swarm(asker.target, limits, connection.check)
        say(MeasuringProgress("window", 1, 1, left_s=_likely_s(workload, each_s)))
        with quiet():
            with Watch(connection, limits, gpus) as watch:
                finished = play(swarm)
            return _conclude(asker, warmup, watch, _parse(asker, finished))


def _parse(asker: Asker, finished: Sequence[Finished]) -> list[Ended]:
    """Outcomes in the order in which their requests were sent."""
    ended = [
        Ended(
            finish(f.call, f.recording, asker.connection),
            f.ended_ns,
            f.successor,
            None if f.due_ns is None else (f.recording.sent_ns - f.due_ns) / 1e6,
        )
        for f in finished
    ]
    if any(e.outcome.problems for e in ended):
        asker.connection.check()
    return sorted(ended, key=lambda e: e.outcome.sent_ns)


def _warm_up(asker: Asker, say: Say) -> tuple[Warmup, list[RequestOutcome]]:
    """Waves of as many requests as there are streams until both rates stand still, or the bounds are reached."""
    limits, work, start = asker.limits, asker.workload, time.monotonic()
    outcomes = asker.calibrate()
    streams = work.concurrency
    if work.rate is not None and outcomes[0].timing is not None:  # as many as the arrivals will keep in flight
        streams = max(streams, math.ceil(work.rate * outcomes[0].timing.e2e_ms / 1e3))
    decode: list[float] = []
    ttft: list[float] = []
    tok_s: float | None = None
    steady = any(o.problems for o in outcomes)
    while not steady and len(decode) < limits.warmup_requests and time.monotonic() - start < limits.warmup_s:
        calls = [asker.call("warmup") for _ in range(streams)]
        say(MeasuringProgress("warm-up", len(decode) + 1, limits.warmup_requests, tok_s))
        swarm = Swarm(asker.target, limits, asker.connection.check)
        with quiet():
            wave = [e.outcome for e in _parse(asker, swarm.closed_loop(iter(calls), streams))]
        outcomes += wave
        timings = [o.timing for o in wave if o.timing]
        if len(timings) < len(wave):
            break
        decode.append(float(np.median([pace(t) for t in timings])))
        tok_s = decode[-1] * streams
        ttft.append(float(np.median([t.ttft_ms for t in timings])))
        steady = is_steady(decode, limits.steady_decode) and is_steady(ttft, limits.steady_ttft)
    return Warmup(len(outcomes), time.monotonic() - start, steady, tuple(decode)), outcomes


Play = Callable[[Swarm], list[Finished]]


def _closed_loop(asker: Asker, each_s: float) -> Play:
    """``each_s``: how long a request takes, so that enough of them are built before the clock runs."""
    work = asker.workload
    count = work.requests
    if count is None and work.seconds is None:
        count = work.repetitions * work.concurrency
    likely = math.ceil((work.seconds or 0.0) / each_s * work.concurrency * 1.2) + work.concurrency
    built = [asker.call("measured") for _ in range(count if count is not None else likely)]

    def calls() -> Iterator[Call]:
        end = time.monotonic() + work.seconds if work.seconds is not None else math.inf
        more = (asker.call("measured") for _ in itertools.count())
        for call in built if count is not None else itertools.chain(built, more):
            if time.monotonic() > end:
                return
            yield call

    return lambda swarm: swarm.closed_loop(calls(), work.concurrency)


def _open_loop(asker: Asker) -> Play:
    work = asker.workload
    assert work.rate is not None
    rng = random.Random(f"{asker.key}/arrivals")
    gaps = (rng.expovariate(work.rate) for _ in itertools.count())
    times: Iterator[float] = itertools.accumulate(gaps)
    if work.seconds is not None:
        times = itertools.takewhile(lambda t: t < (work.seconds or 0.0), times)
    most = work.requests if work.requests is not None or work.seconds is not None else 10 * work.repetitions
    after = list(itertools.islice(times, most))
    built = [asker.call("measured") for _ in after]
    return lambda swarm: swarm.open_loop(built, after)


def _likely_s(work: Workload, each_s: float) -> float:
    """How long the load will take, when a request takes ``each_s``."""
    ends = [work.seconds] if work.seconds is not None else []
    if work.requests is not None or not ends:
        count = work.requests or work.repetitions * (work.concurrency if work.rate is None else 10)
        ends.append(count / work.rate if work.rate else (count / work.concurrency - 1) * each_s)
    return max(min(ends), 0.0) + each_s


def _conclude(asker: Asker, warmup: Warmup, watch: Watch, ended: Sequence[Ended]) -> Run:
    work, limits = asker.workload, asker.limits
    outcomes = [e.outcome for e in ended]
    guards, problems, evidence = watch.conclude(outcomes)
    invalid = [*reasons(outcomes), *unknown_rates(outcomes, limits), *problems]
    values: dict[str, tuple[float, ...]] = {}
    notes = run_notes(outcomes, warmup)
    if not ended:
        invalid.append("no request was sent: raise requests, seconds or rate")
    elif not any(o.problems for o in outcomes):
        window = open_window(ended) if work.rate is not None else closed_window(ended, work.concurrency)
        if window is None:
            invalid.append("there was no steady window: raise requests or seconds, or lower concurrency")
        else:
            values = window_values(outcomes, window, None if work.rate is not None else work.concurrency)
            evidence["window_s"] = window.seconds
            guards += delay_guard(outcomes, launch_value(values.get("itl_p50_ms", (math.nan,))), limits)
            guards += drift_guard(values["output_tok_s"], limits, on_cpu=not asker.connection.engine.uses_gpu)
            guards.append(client_guard(watch.client_s, watch.seconds, limits.client_cpu_load))
            if work.rate is None:
                guards.append(queue_guard(outcomes, work.concurrency))
            rate = launch_value(values.get("stream_tok_s", (math.nan,)))
            said = speculation(watch.delta, rate, requests=len(outcomes))
            values |= {name: (value,) for name, value in said.items()}
            for index, away in hiccups(values["output_tok_s"]):
                notes.append(f"part {index + 1} of the window was {away:+.1%} off the median rate")
    measurement = Measurement(
        launch_id=asker.connection.launch_id,
        workload=work,
        values=values,
        warmup=warmup,
        guards=tuple(guards),
        invalid=tuple(invalid),
        notes=tuple(notes),
        evidence={**asker.evidence, **client_evidence(outcomes, watch.client_s), **evidence, **_spread(ended)},
        latencies=Latencies.of(outcomes),
    )
    return Run(measurement, [record(o) for o in outcomes])


def _spread(ended: Sequence[Ended]) -> dict[str, Any]:
    """JSON-ready: how requests differed, and how late those of an open loop left."""
    ttft = [e.outcome.timing.ttft_ms for e in ended if e.outcome.timing]
    late = [e.late_ms for e in ended if e.late_ms is not None]
    found = {"ttft_p99_ms": ttft, "late_p99_ms": late}
    return {name: float(np.percentile(values, 99)) for name, values in found.items() if values}
