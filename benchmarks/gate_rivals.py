"""What people gate with otherwise: thresholds, tests on pooled repetitions, plain intervals, and two packages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gate_launches import Array, Case
from gate_ours import Verdicts
from scipy import stats

Judge = Callable[[Case], Verdicts]


def _one_launch(failed: Array) -> Verdicts:
    return Verdicts(failed, np.zeros(failed.shape, dtype=bool), np.ones(failed.shape))


def threshold(share: float) -> Judge:
    """The fresh launch's mean against the last stored run's."""
    return lambda case: _one_launch(_means(case.fresh)[:, 0] < (1 - share) * _means(case.stored)[:, -1])


def two_sd(case: Case) -> Verdicts | None:
    """Below the mean of stored runs less twice their standard deviation."""
    means = _means(case.stored)
    if means.shape[-1] < 2:
        return None
    return _one_launch(_means(case.fresh)[:, 0] < means.mean(axis=-1) - 2 * means.std(axis=-1, ddof=1))


def welch(case: Case) -> Verdicts:
    """One-sided at 1 % over all repetitions, launches forgotten."""
    old, new = _pooled(case)
    test = stats.ttest_ind(old, new, axis=-1, equal_var=False, alternative="greater")
    return _one_launch(np.asarray(test.pvalue) < 0.01)


def mann_whitney(case: Case) -> Verdicts:
    """One-sided at 1 % over all repetitions, launches forgotten."""
    old, new = _pooled(case)
    test = stats.mannwhitneyu(old, new, axis=-1, alternative="greater", method="asymptotic")
    return _one_launch(np.asarray(test.pvalue) < 0.01)


def plain_interval(level: float) -> Callable[[Case], Verdicts | None]:
    """Below the one-sided prediction limit of the stored launches alone, no prior, no confirmation."""

    def judge(case: Case) -> Verdicts | None:
        means = _means(case.stored)
        k = means.shape[-1]
        if k < 2:
            return None
        reach = stats.t.isf(level, k - 1) * means.std(axis=-1, ddof=1) * np.sqrt(1 + 1 / k)
        return _one_launch(_means(case.fresh)[:, 0] < means.mean(axis=-1) - reach)

    return judge


def pytest_benchmark(expression: str) -> Judge:
    """``--benchmark-compare --benchmark-compare-fail=EXPRESSION``: its own check, on seconds per token, against the
    last saved run."""
    from pytest_benchmark.stats import Stats
    from pytest_benchmark.utils import parse_compare_fail

    check = parse_compare_fail(expression)

    def fields(logs: Array) -> dict[str, float]:
        seen = Stats()
        for seconds in np.exp(-logs):
            seen.update(float(seconds))
        return {check.field: getattr(seen, check.field)}

    def judge(case: Case) -> Verdicts:
        pairs = zip(case.fresh[:, 0], case.stored[:, -1], strict=True)
        return _one_launch(np.array([check.fails(fields(now), fields(was)) is not None for now, was in pairs]))

    return judge


def inference_doctor(percent: float) -> Judge:
    """``compare-runs --regression-percent``: its own decision, one run per launch, three fresh launches each time."""
    from inference_doctor.quality import QualityThresholds, decide_regression

    limits = QualityThresholds(regression_percent=percent)

    def judge(case: Case) -> Verdicts:
        old, new = _means(case.stored), _means(case.fresh)
        n = len(old)
        used = np.full(n, float(new.shape[-1]))
        if min(old.shape[-1], new.shape[-1]) < limits.min_repetitions:
            return Verdicts(np.zeros(n, dtype=bool), np.ones(n, dtype=bool), used)
        said = [
            decide_regression(list(a), list(b), lower_is_better=False, thresholds=limits).status
            for a, b in zip(old, new, strict=True)
        ]
        return Verdicts(np.array([s == "FAIL" for s in said]), np.array([s == "INCONCLUSIVE" for s in said]), used)

    return judge


def _means(logs: Array) -> Array:
    return np.asarray(np.exp(logs).mean(axis=-1))


def _pooled(case: Case) -> tuple[Array, Array]:
    n = len(case.stored)
    return np.exp(case.stored).reshape(n, -1), np.exp(case.fresh[:, 0])
