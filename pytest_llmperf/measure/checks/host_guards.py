"""What the host did while we measured: who used the CPUs, and whether the server had to wait for one.

Read once before and once after, outside every request. Linux counts, for each thread, the time it ran and the time it
was ready to run and stood in a queue (``/proc/PID/task/TID/schedstat``): the latter is the harm that other load did to
the server, where the load itself only says that there might be some.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import psutil

from pytest_llmperf.measure.limits import Limits
from pytest_llmperf.measure.metrics import Guard

#: Per (pid, thread id): seconds run, and seconds runnable without a CPU.
Threads: TypeAlias = Mapping[tuple[int, int], tuple[float, float]]


@dataclass(frozen=True)
class HostSample:
    """Seconds of CPU so far: ``busy_s`` of the whole host, ``client_s`` of this process, ``server_s`` of the server's
    processes. ``threads_s``: the server's threads; empty where the kernel does not say.
    """

    at_s: float
    busy_s: float
    client_s: float
    server_s: float
    threads_s: Threads


def sample_host(pids: Iterable[int]) -> HostSample:
    """``pids``: the server's processes; their descendants are counted too."""
    tree = process_tree(pids)
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted in user and nice already
    return HostSample(
        at_s=time.monotonic(),
        busy_s=sum(times) - idle - guest,
        client_s=time.process_time(),
        server_s=sum(_cpu_s(p) for p in tree),
        threads_s=dict(found for p in tree for found in _threads(p.pid)),
    )


def process_tree(pids: Iterable[int]) -> list[psutil.Process]:
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        try:
            process = psutil.Process(pid)
            found |= {p.pid: p for p in (process, *process.children(recursive=True))}
        except psutil.Error:
            continue
    return list(found.values())


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system


def _threads(pid: int) -> list[tuple[tuple[int, int], tuple[float, float]]]:
    out = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            fields = (task / "schedstat").read_text().split()
            out.append(((pid, int(task.name)), (int(fields[0]) / 1e9, int(fields[1]) / 1e9)))
    except (OSError, IndexError, ValueError):
        return out  # not Linux, no schedstat, or the process or thread has just ended
    return out


def host_guards(before: HostSample, after: HostSample, limits: Limits, *, on_cpu: bool) -> list[Guard]:
    """``server starved`` where the kernel tells waiting time, else ``host load``; none for a remote server.

    ``on_cpu``: the model itself runs on the CPU.
    """
    wall = after.at_s - before.at_s
    cores = psutil.cpu_count() or 1
    busy = (after.busy_s - before.busy_s) / wall / cores
    known = after.client_s - before.client_s + max(after.server_s - before.server_s, 0.0)
    others = max(busy - known / wall / cores, 0.0)
    load = f"other processes took {others:.0%} of {cores} cores"
    advice = "measure on a machine that does nothing else, or pin the server to cores of its own"
    if after.threads_s:
        waited = _waited(before.threads_s, after.threads_s) / wall
        text = f"the server's most delayed thread waited for a CPU during {waited:.1%} of the measurement; {load}"
        limit = limits.starved_cpu if on_cpu else limits.starved_gpu
        # others kept it waiting for no longer than they ran: the rest is its own threads, ours, or the hypervisor
        caused = min(waited, others * cores)
        return [Guard("server starved", caused > limit, text, advice, caused, limit)]
    if not after.server_s:
        return []
    tripped = busy > limits.host_busy and others > limits.others_busy
    return [Guard("host load", tripped, f"{load}, {busy:.0%} were busy in all", advice, others, limits.others_busy)]


def _waited(before: Threads, after: Threads) -> float:
    """Longest wait, in seconds, among the threads that do the work: those that ran a tenth as long as the busiest. The
    others sleep, and each of their many wake-ups takes a moment whatever else the host does."""
    spent = []
    for key, (ran, waited) in after.items():
        ran_before, waited_before = before.get(key, (0.0, 0.0))
        spent.append((ran - ran_before, waited - waited_before))
    busiest = max(ran for ran, _ in spent)
    return max(waited for ran, waited in spent if ran >= busiest / 10)
