"""GPUs beside a measurement: a full look before and after, a light one every second or so in between."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import psutil

from pytest_llmperf.measure.checks.nvml_state import POWER_CAP, SLOWDOWNS, GpuReader, GpuState
from pytest_llmperf.measure.limits import Limits
from pytest_llmperf.measure.metrics import Guard

States = tuple[GpuState, ...]


class GpuWatch:
    """Life cycle: ``start``, then ``stop`` once. A thread takes the light samples; NVML calls release the GIL."""

    def __init__(self, reader: GpuReader, limits: Limits) -> None:
        self._reader, self._pause = reader, max(limits.sample_s, 0.5)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="llmperf-gpus", daemon=True)
        self.before: States = ()
        self.after: States = ()
        self.during: list[States] = []

    def start(self) -> None:
        self.before = self._reader.read(True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self.after = self._reader.read(True)

    def _sample(self) -> None:
        while not self._stopped.wait(self._pause):
            self.during.append(self._reader.read(False))

    @property
    def evidence(self) -> dict[str, Any]:
        """JSON-ready: per GPU what was seen, and how often NVML was asked."""
        return {"nvml_calls": self._reader.calls, "gpus": [self._one(i) for i in range(len(self.before))]}

    def _one(self, i: int) -> dict[str, Any]:
        a, b = self.before[i], self.after[i]
        clocks = _known(s[i].sm_mhz for s in self.during)
        heat = _known(s[i].temperature_c for s in (*self.during, self.after))
        return {
            "uuid": a.uuid,
            "sm_mhz": [min(clocks), float(np.median(clocks)), max(clocks)] if clocks else None,
            "max_sm_mhz": a.max_sm_mhz,
            "temperature_c": max(heat) if heat else None,
            "power_limit_w": b.power_limit_w,
            "default_limit_w": b.default_limit_w,
            "power_capped": _share([s[i].reasons for s in self.during], POWER_CAP),
        }


def gpu_guards(watch: GpuWatch, ours: Iterable[int], limits: Limits) -> list[Guard]:
    """``ours``: pids of the server's processes and their descendants."""
    own = set(ours)
    out: list[Guard] = []
    for i, (before, after) in enumerate(zip(watch.before, watch.after, strict=True)):
        during = [states[i] for states in watch.during]
        out += [*_clocks(before, during, limits), *_slowdowns(before, during, limits), *_heat(before, during, after)]
        out += [*_ecc(before, after), *_power(before, after), *_foreign(before, after, own)]
    return out


def _known(values: Iterable[int | None]) -> list[int]:
    return [v for v in values if v is not None]


def _share(reasons: Sequence[int | None], mask: int) -> float | None:
    known = _known(reasons)
    return sum(bool(r & mask) for r in known) / len(known) if known else None


def _clocks(before: GpuState, during: Sequence[GpuState], limits: Limits) -> list[Guard]:
    clocks = _known(s.sm_mhz for s in during)
    if not clocks:
        return []
    p10, median, p90 = (float(x) for x in np.percentile(clocks, [10, 50, 90]))
    swing = (p90 - p10) / median if median else 0.0
    out = [
        Guard(
            "gpu clock swing",
            swing > limits.clock_swing,
            f"{before.uuid}: SM clock {p10:.0f} to {p90:.0f} MHz (p10, p90), median {median:.0f}",
            "lock the clocks: nvidia-smi --lock-gpu-clocks=MHZ",
            swing,
            limits.clock_swing,
        )
    ]
    if before.max_sm_mhz:
        share = median / before.max_sm_mhz
        out.append(
            Guard(
                "gpu clock",
                share < limits.clock_share,
                f"{before.uuid}: median SM clock {median:.0f} MHz of at most {before.max_sm_mhz}",
                "the card is stuck, capped or locked very low: see nvidia-smi -q -d PERFORMANCE,CLOCK",
                share,
                limits.clock_share,
            )
        )
    return out


def _slowdowns(before: GpuState, during: Sequence[GpuState], limits: Limits) -> list[Guard]:
    reasons = [s.reasons for s in during]
    share = _share(reasons, sum(SLOWDOWNS))
    if share is None:
        return []
    named = [name for bit, name in SLOWDOWNS.items() if _share(reasons, bit)]
    text = f"{before.uuid}: slowed down in {share:.0%} of {len(reasons)} samples"
    return [
        Guard(
            "gpu slowdown",
            share > limits.throttled,
            f"{text} ({', '.join(named)})" if named else text,
            "check cooling and power supply",
            share,
            limits.throttled,
        )
    ]


def _heat(before: GpuState, during: Sequence[GpuState], after: GpuState) -> list[Guard]:
    seen = _known(s.temperature_c for s in (*during, after))
    if not seen or not before.slowdown_c:
        return []
    hottest = max(seen)
    text = f"{before.uuid}: {hottest} C, slows down at {before.slowdown_c} C"
    return [Guard("gpu temperature", hottest >= before.slowdown_c, text, "check cooling", hottest, before.slowdown_c)]


def _ecc(before: GpuState, after: GpuState) -> list[Guard]:
    if before.ecc is None or after.ecc is None:
        return []
    new = after.ecc - before.ecc
    text = f"{before.uuid}: {new} uncorrected memory errors during the measurement"
    return [Guard("gpu ecc", new > 0, text, "the card may be failing: see nvidia-smi -q -d ECC", new, 0)]


def _power(before: GpuState, after: GpuState) -> list[Guard]:
    """A limit below the default is said, not punished: it is as fair as locked clocks while it stays where it is."""
    if not before.power_limit_w or not after.power_limit_w:
        return []
    text = f"{after.uuid}: power limit {after.power_limit_w:.0f} W, by default {after.default_limit_w or 0:.0f} W"
    moved = abs(after.power_limit_w / before.power_limit_w - 1)
    if moved > 0:
        text += f", {before.power_limit_w:.0f} W when the measurement began"
    return [Guard("gpu power limit", moved > 0, text, "somebody changed it: measure again", moved, 0)]


def _foreign(before: GpuState, after: GpuState, ours: set[int]) -> list[Guard]:
    if before.pids is None or after.pids is None:
        return []
    seen = {*before.pids, *after.pids}
    if not seen & ours:
        # inside a container NVML may give the host's pids: they say nothing here
        return [Guard("gpu foreign processes", False, f"{before.uuid}: its process ids cannot be matched with ours")]
    foreign = sorted(p for p in seen - ours if psutil.pid_exists(p))
    text = f"{before.uuid}: in use by {', '.join(f'pid {p}' for p in foreign) or 'nobody else'}"
    return [Guard("gpu foreign processes", bool(foreign), text, "stop them or measure on another GPU", len(foreign), 0)]
