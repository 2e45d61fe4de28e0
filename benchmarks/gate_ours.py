"""This project's gate, over many series at once: the array functions that ``Gate`` itself calls."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gate_launches import Array, Case

from pytest_llmperf.stats.location import log_location, squared_error
from pytest_llmperf.stats.prior import Prior
from pytest_llmperf.stats.reference import reference
from pytest_llmperf.stats.stability import STEADY, disagree, unsteadiness
from pytest_llmperf.stats.verdict import REGRESSED, SUSPECT, both_stages

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
    first, last = both_stages(ref, fresh, alpha=alpha, least=LEAST)
    suspect = first == SUSPECT
    failed = suspect & (last == REGRESSED)
    unsteady = unsteadiness(ref, prior.d0, LEAST) != STEADY
    wild = suspect & disagree(ref, fresh[:, 1:], LEAST)
    return Verdicts(failed, (unsteady | wild) & ~failed, 1.0 + confirming * suspect)
