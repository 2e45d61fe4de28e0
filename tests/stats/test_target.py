"""A typed number judged beside the baseline."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pytest_llmperf.stats import Prior, target_outcome


def test_credibly_short_of_the_target() -> None:
    outcome = target_outcome([[63.6, 63.5, 63.7]], 82.5)
    assert outcome.verdict == "regressed"
    assert outcome.limit is not None
    assert 63.6 < outcome.limit < 82.5
    assert "82.5" in outcome.reasons[0]
    assert "credibly short" in outcome.reasons[0]


def test_a_little_short_is_no_failure_but_is_said() -> None:
    outcome = target_outcome([81.9], 82.5)
    assert outcome.verdict == "passed"
    assert "within what launches differ by" in outcome.reasons[0]


def test_reached() -> None:
    assert target_outcome([83.0], 82.5).reasons == ()
    assert target_outcome([83.0], 82.5).verdict == "passed"


def test_direction() -> None:
    assert target_outcome([40.0], 25.0, higher_is_better=False).verdict == "regressed"
    assert target_outcome([20.0], 25.0, higher_is_better=False).verdict == "passed"


def test_more_launches_make_it_stricter() -> None:
    assert target_outcome([78.0], 82.5).verdict == "passed"
    assert target_outcome([[78.0], [78.1], [77.9], [78.0]], 82.5).verdict == "regressed"


def test_limit_is_scipys_without_a_prior() -> None:
    values = [80.0, 81.0, 82.0, 80.5]
    outcome = target_outcome([[v] for v in values], 90.0, alpha=0.01, prior=Prior(d0=0.0))
    test = stats.ttest_1samp(np.log(values), 0.0)
    assert outcome.limit == pytest.approx(math.exp(test.confidence_interval(0.98).high))


@pytest.mark.parametrize("bad", [math.nan, 0.0, -1.0])
def test_what_is_no_measurement_is_invalid(bad: float) -> None:
    assert target_outcome([80.0, bad], 82.5).verdict == "invalid"


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan, math.inf])
def test_a_target_must_be_reachable(target: float) -> None:
    with pytest.raises(ValueError, match="target"):
        target_outcome([80.0], target)


def test_keeps_its_level() -> None:
    """A server exactly at its target, 200 targets a point: short in alpha of cases."""
    rng = np.random.default_rng(1)
    n, alpha = 4000, 0.02
    prior = Prior(6.0, 0.01)
    sigma = prior.s0 * np.sqrt(prior.d0 / rng.chisquare(prior.d0, n))
    failed = [
        target_outcome([[v] for v in 80 * np.exp(rng.normal(0, s, 3))], 80.0, alpha=alpha, prior=prior).verdict
        == "regressed"
        for s in sigma
    ]
    assert abs(np.mean(failed) - alpha) < 4 * math.sqrt(alpha * (1 - alpha) / n)
