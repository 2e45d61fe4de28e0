"""Every bound and threshold of a measurement in one place, each with the reason for its value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on time, and the values beyond which a guard trips. Times are seconds, shares are fractions of one."""

    # bounds on time
    connect_s: float = 10.0
    first_token_s: float = 900.0
    """Silence before the first byte: the first request of a cold server may compile kernels for many minutes."""
    idle_s: float = 120.0
    """Silence inside a stream. The server's process is looked at every second meanwhile, so a crash shows at once."""
    measure_s: float = 600.0
    """Repetitions beyond the least number stop after this."""

    # warm until steady
    warmup_requests: int = 12
    warmup_s: float = 300.0
    steady_decode: float = 0.01
    """Two warm-ups in a row that agree to this are steady; so are three that do not all move in one direction."""
    steady_ttft: float = 0.05

    # what a comparable request may look like
    cached_tokens: int = 2
    """Prompt tokens a request may find in the cache: a BOS token and a first token met by chance."""
    cached_share: float = 0.01

    first_chunk: float = 0.02
    """How far apart the bounds of a decode rate may lie whose first chunk holds an unknown number of tokens."""

    # guards
    client_delay: float = 0.5
    """Share of the ITL that the user-minus-kernel delay p99 may reach. The delay is in no value, since values rest on
    the kernel's stamps; but a reader more than one gap late may see two segments as one. Cores that sleep between
    tokens need a few tenths of a millisecond to wake, which is a tenth of a gap on a sound GPU host. Without kernel
    stamps the delay cannot be known, and the record says so (``kernel_stamps``: 0)."""
    client_cpu_stream: float = 0.5
    """Of one core. A single stream needs 1 to 7 %; beyond half a core something else in this process is at work."""
    client_cpu_load: float = 0.9
    """Of one core. The loop is single-threaded: beyond this it may have been the bottleneck."""
    starved_cpu: float = 0.05
    """Share of the window that the server's most delayed thread was ready to run and had no CPU, for a model that runs
    on the CPU: values are slow by about as much. An idle machine shows well under 0.1 %, and so does a busy one that
    leaves the server its cores. It is the harm itself, where the load of others only says that there might be some;
    counted up to the time that others ran at all, since what the server's own threads cost each other is its speed."""
    starved_gpu: float = 0.20
    """The same for a model on a GPU, whose host threads sleep most of the time and overlap with the GPU's work: only
    part of their waiting can reach a token."""
    host_busy: float = 0.9
    others_busy: float = 0.25
    """Used only where the kernel does not tell waiting time: the whole machine busier than the first while
    processes that are neither ours nor the server's took more than the second of all cores."""
    drift: float = 0.03
    drift_p: float = 0.02
    """A monotone trend over the repetitions (Kendall's tau) that moved the value by ``drift``. Five repetitions in
    perfect order have p = 0.017, so an unchanged series trips at most once in fifty, and only when it is spread."""
    drift_cpu: float = 0.5
    """The same for an engine made for CPUs: it shares caches, memory and clocks with all else on the host, and wanders
    by 10 to 25 % over seconds. Its launches differ by as much, and so wide is the band."""
    clock_share: float = 0.5
    """Median SM clock under load against the most it can do (a card stuck at 480 MHz runs at a quarter). Locked
    clocks are a fair way to measure and stay above this."""
    clock_swing: float = 0.10
    """(p90 - p10) / median of the SM clock under load."""
    throttled: float = 0.05
    """Share of samples under load with a thermal, hardware or power-brake slowdown. The software power cap is not
    counted: it is how a loaded card runs."""
    sample_s: float = 1.0
    """Pause between two NVML samples while a request runs (never below 0.5)."""


DEFAULT = Limits()
