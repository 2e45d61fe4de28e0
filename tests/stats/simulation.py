"""Launches drawn from the model of docs/concepts/how-the-gate-decides.md, judged by the gate's own array functions."""

from __future__ import annotations

import numpy as np

from pytest_llmperf.stats.location import Array, log_location
from pytest_llmperf.stats.prior import Prior
from pytest_llmperf.stats.reference import reference
from pytest_llmperf.stats.verdict import REGRESSED, SUSPECT, both_stages

WITHIN, REPETITIONS = 0.004, 10
LEAST = -np.log1p(-0.01)


def launches(rng: np.random.Generator, n: int, k: int, cv: float | Array, *, heavy: bool = False) -> Array:
    """Log values of ``k`` launches of ``n`` series: a launch effect of spread ``cv``, ten repetitions of 0.4 %."""
    unit = rng.standard_t(4, (n, k)) / np.sqrt(2) if heavy else rng.normal(0, 1, (n, k))
    effect = unit * np.broadcast_to(cv, (n,))[:, None]
    return log_location(effect[..., None] + rng.normal(0, WITHIN, (n, k, REPETITIONS)))


def failed(stored: Array, fresh: Array, *, alpha: float = 0.001, prior: Prior | None = None) -> tuple[Array, Array]:
    """Whether each series fails, and how many launches it took; ``fresh`` holds the screened launch, then the rest."""
    first, last = both_stages(reference(stored, prior or Prior()), fresh, alpha=alpha, least=LEAST)
    suspect = first == SUSPECT
    return suspect & (last == REGRESSED), 1 + (fresh.shape[-1] - 1) * suspect
