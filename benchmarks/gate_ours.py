"""This project's gate, over many series at once: the array functions that ``Gate`` itself calls."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gate_launches import Array, Case

from pytest_llmperf.stats.levels import Design
from pytest_llmperf.stats.location import log_location, squared_error
from pytest_llmperf.stats.prior import Prior
from pytest_llmperf.stats.reference import reference, shift
from pytest_llmperf.stats.stability import STEADY, disagree, unsteadiness
from pytest_llmperf.stats.verdict import PASSED, REGRESSED, SUSPECT, first_stage, last_stage

LEAST = float(-np.log1p(-0.01))


@dataclass(frozen=True)
class Verdicts:
    """Per series: whether the gate fails it, whether it declines to say, and how many fresh launches it used."""

    failed: Array
    inconclusive: Array
    launches: Array


def gate(case: Case, *, alpha: float, prior: Prior | None = None) -> Verdicts:
    """Screen on the first fresh launch, confirm suspects on the others; ``min_effect`` 1 %."""
    prior = prior or Prior()
    stored, fresh = log_location(case.stored), log_location(case.fresh)
    wander = np.mean(squared_error(case.stored), axis=-1)
    ref = reference(stored, prior, wander=wander, hosts=case.hosts or None, host=case.host or None)
    confirming = fresh.shape[-1] - 1
    design = Design(1 / stored.shape[-1], 1, confirming, ref.nu, alpha)
    first = first_stage(shift(ref, fresh[:, :1], pooled=False), design, LEAST)
    last = last_stage(shift(ref, fresh[:, 1:], pooled=True), criticals(design, ref.share), LEAST)
    suspect = first == SUSPECT
    code = np.where(suspect, last, first)
    unsteady = unsteadiness(ref, prior.d0, LEAST) != STEADY
    wild = suspect & disagree(ref, fresh[:, 1:], LEAST)
    return Verdicts(code == REGRESSED, (unsteady | wild) & (code == PASSED), 1.0 + confirming * suspect)


def criticals(design: Design, share: Array) -> Array:
    """The second stage's critical values; interpolated where hosts make the baseline's share differ by series."""
    low, high = float(np.min(share)), float(np.max(share))
    if high - low < 1e-9:
        return np.full(share.shape, design.confirm)
    grid = np.geomspace(low, high, 12)
    values = [Design(float(s), design.screened, design.confirmed, design.nu, design.alpha).confirm for s in grid]
    return np.interp(np.log(share), np.log(grid), values)
