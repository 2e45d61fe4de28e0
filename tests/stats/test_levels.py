"""Critical values against scipy, against simulation, and in the limits where they are known."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pytest_llmperf.stats import session_alpha
from pytest_llmperf.stats.levels import EACH, OUTLIERS, POWER, Design, failing, quantile


@pytest.mark.parametrize("nu", [1.0, 2.5, 4.0, 8.0, 100.0])
@pytest.mark.parametrize("level", [1e-6, 1e-3, 0.05, 0.5])
def test_quantile_is_scipys(level: float, nu: float) -> None:
    assert quantile(level, nu) == pytest.approx(float(stats.t.isf(level, nu)), rel=1e-7, abs=1e-9)


@given(st.floats(1e-4, 0.5), st.integers(1, 5000))
def test_session_level_is_kept_by_independent_gates(level: float, gated: int) -> None:
    alpha = session_alpha(level, gated)
    assert 1 - (1 - alpha) ** gated == pytest.approx(level, rel=1e-6)
    assert session_alpha(level, 0) == session_alpha(level, 1) == pytest.approx(level)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, math.nan])
def test_session_level_must_be_a_probability(level: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        session_alpha(level, 3)


@pytest.mark.parametrize("k", [1, 3, 5, 10])
def test_single_confirmation_is_scipys_bivariate_t(k: int) -> None:
    """With one confirming launch no spread is added, and both stages together are a bivariate t."""
    design = Design(1 / k, 1, 1, 4.0 + k - 1, 0.01)
    rho = design.share / (design.share + 1)
    joint = stats.multivariate_t(shape=[[1, rho], [rho, 1]], df=design.nu, seed=1)
    both = float(joint.cdf([-design.screen, -2.0], maxpts=200_000))
    assert failing(design, 2.0, -math.inf) == pytest.approx(both, rel=0.02)


@pytest.mark.parametrize("confirmed", [1, 2, 4])
@pytest.mark.parametrize(("drop", "least"), [(0.0, 0.0), (3.0, 0.0), (3.0, 2.5)])
@pytest.mark.parametrize(("k", "d0"), [(1, 4.0), (3, 1.0), (10, 4.0)])
def test_failing_probability_is_that_of_the_model(k: int, d0: float, drop: float, least: float, confirmed: int) -> None:
    """Drawn from the model itself: true variance from the prior, then every launch, each held to the screen's limit."""
    n = 400_000
    rng = np.random.default_rng(7)
    design = Design(1 / k, 1, confirmed, d0 + k - 1, 0.02)
    center = rng.normal(drop, math.sqrt(1 / k), n)
    stored = rng.chisquare(design.nu, n)
    first = center - rng.normal(0, 1, n)
    again = center[:, None] - rng.normal(0, 1, (n, confirmed))
    second = np.mean(again, axis=1)
    added = np.sum((again - second[:, None]) ** 2, axis=1)
    error = np.sqrt(stored / design.nu * (1 / k + 1))
    one, each = np.maximum(design.screen * error, least), np.maximum(design.each * error, least)
    limit = design.confirm * np.sqrt((stored + added) / design.confirm_nu * (1 / k + 1 / confirmed))
    both = (first > one) & (second > np.maximum(limit, least))
    failed = float(np.mean(both & np.all(again > each[:, None], axis=1)))
    expected = failing(design, design.confirm, design.each, drop, least)
    assert abs(failed - expected) < 4 * math.sqrt(expected * (1 - expected) / n) + 0.01 * expected + 1e-4


@given(
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([1.0, 2.0, 4.0, 12.0]),
    st.sampled_from([0.2, 1e-2, 1e-3, 1e-5]),
)
@settings(max_examples=40, deadline=None)
def test_both_stages_spend_alpha_and_no_more(k: int, screened: int, confirmed: int, d0: float, alpha: float) -> None:
    design = Design(1 / k, screened, confirmed, d0 + k - 1, alpha)
    spent = failing(design, design.confirm, design.each)
    assert spent <= alpha * (1 + 1e-3)
    assert spent == pytest.approx(alpha, rel=1e-3) or design.confirm == 0, "unless every launch's own limit is stricter"


@pytest.mark.parametrize("alpha", [0.05, 1e-3, 1e-4])
@pytest.mark.parametrize("k", [1, 3, 10, 30])
def test_detectable_loss_is_seen_as_often_as_said(k: int, alpha: float) -> None:
    design = Design(1 / k, 1, 2, 3.0 + k, alpha)
    for least in (0.0, 6.0):
        seen = failing(design, design.confirm, design.each, design.detectable(least), least)
        assert seen == pytest.approx(POWER, abs=1e-3)
    assert design.detectable(6.0) > 6.0


def test_more_evidence_tightens_everything() -> None:
    designs = [Design(1 / k, 1, 2, 3.0 + k, 1e-3) for k in (1, 2, 3, 5, 8, 13, 21)]
    for looser, tighter in pairwise(designs):
        assert tighter.screen < looser.screen
        assert tighter.confirm <= looser.confirm
        assert tighter.detectable() < looser.detectable()


@pytest.mark.parametrize("alpha", [0.01, 0.001])
@pytest.mark.parametrize("k", [3, 10])
def test_each_launch_is_held_as_loosely_as_outliers_allow(k: int, alpha: float) -> None:
    """The fewer metrics share the session's level, the looser; never below half the screen's limit."""
    design = Design(1 / k, 1, 2, 3.0 + k, alpha)
    assert EACH[-1] * design.screen <= design.each <= design.screen
    spent = failing(design, design.confirm, design.each, outliers=OUTLIERS)
    assert spent <= alpha or design.each == design.screen
    assert Design(1 / k, 1, 2, 3.0 + k, alpha / 10).each >= design.each
