"""The gate of one metric over stored launches: the one place that gives it hosts and priors, so that verdicts, history
and recordings mean the same band."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmperf.baselines.attempts import SUSPECT
from pytest_llmperf.baselines.series import StoredLaunch
from pytest_llmperf.measure.metrics import Metric
from pytest_llmperf.stats import Gate, Launch, Outcome, Prior


def gate_of(
    stored: Sequence[StoredLaunch],
    metric: Metric,
    host: str,
    *,
    prior: Prior | None = None,
    alpha: float = 0.001,
    min_effect: float = 0.01,
    confirm_launches: int = 2,
    max_regression: float | None = None,
) -> Gate:
    """Over ``stored`` launches that hold ``metric``, for fresh ones on ``host``. Raises ``ValueError`` as ``Gate``."""
    return Gate(
        [x.metrics[metric.name] for x in stored],
        metric.higher_is_better,
        alpha,
        prior,
        min_effect,
        max(confirm_launches, 1),
        max_regression=max_regression,
        hosts=[x.host for x in stored],
        host=host,
    )


def recordable_as(gate: Gate, outcome: Outcome, screened: Sequence[Launch], confirmed: Sequence[Launch]) -> str:
    """The verdict that a recording goes by. A suspect whose fresh launches neither proved nor cleared it stays
    ``suspect``, and so does one that none could confirm: recorded as normal, a loss that this session could not prove
    would be hidden from the next ones."""
    if outcome.verdict == "passed" and gate.doubts([*screened, *confirmed]):
        return SUSPECT
    return outcome.verdict
