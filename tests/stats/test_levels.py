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
from pytest_llmperf.stats.levels import FAST_SHARE, POWER, Design, failing, quantile


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
    q1, qd, q2 = -design.screen, -design.fast, -design.confirm

    def cdf(x: float, y: float) -> float:
        return float(joint.cdf([x, y], maxpts=200_000))

    at_once = float(stats.t.cdf(qd, design.nu))
    confirmed = cdf(q1, q2) - cdf(qd, q2)
    assert at_once + confirmed == pytest.approx(0.01, rel=0.02)


@pytest.mark.parametrize("confirmed", [1, 2, 4])
@pytest.mark.parametrize("drop", [0.0, 3.0])
@pytest.mark.parametrize(("k", "d0"), [(1, 4.0), (3, 1.0), (10, 4.0)])
def test_failing_probability_is_that_of_the_model(k: int, d0: float, drop: float, confirmed: int) -> None:
    """Drawn from the model itself: true variance from the prior, then every launch."""
    n = 400_000
    rng = np.random.default_rng(7)
    design = Design(1 / k, 1, confirmed, d0 + k - 1, 0.02)
    center = rng.normal(0, math.sqrt(1 / k), n)
    stored = rng.chisquare(design.nu, n)
    first = center - rng.normal(-drop, 1, n)
    second = center - rng.normal(-drop, math.sqrt(1 / confirmed), n)
    added = rng.chisquare(confirmed - 1, n) if confirmed > 1 else np.zeros(n)
    t1 = first / np.sqrt(stored / design.nu * (1 / k + 1))
    t2 = second / np.sqrt((stored + added) / design.confirm_nu * (1 / k + 1 / confirmed))
    failed = float(np.mean((t1 > design.fast) | ((t1 > design.screen) & (t2 > design.confirm))))
    expected = failing(design, design.confirm, drop)
    assert abs(failed - expected) < 4 * math.sqrt(expected * (1 - expected) / n) + 1e-4
    if drop == 0:
        assert expected == pytest.approx(0.02, rel=1e-4)


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
    assert failing(design, design.confirm) == pytest.approx(alpha, rel=1e-3)
    assert (1 - FAST_SHARE) * alpha <= design.confirm_level * (1 + 1e-6)
    assert design.confirm < design.fast or confirmed > 1


@pytest.mark.parametrize("alpha", [0.05, 1e-3, 1e-4])
@pytest.mark.parametrize("k", [1, 3, 10, 30])
def test_detectable_loss_is_seen_as_often_as_said(k: int, alpha: float) -> None:
    design = Design(1 / k, 1, 2, 3.0 + k, alpha)
    assert failing(design, design.confirm, design.detectable) == pytest.approx(POWER, abs=1e-3)


def test_more_evidence_tightens_everything() -> None:
    designs = [Design(1 / k, 1, 2, 3.0 + k, 1e-3) for k in (1, 2, 3, 5, 8, 13, 21)]
    for looser, tighter in pairwise(designs):
        assert tighter.screen < looser.screen
        assert tighter.confirm < looser.confirm
        assert tighter.detectable < looser.detectable


def test_the_second_stage_tends_to_what_is_left_of_the_level() -> None:
    """Without a screen's help (independent stages, all but every launch suspect) nothing is gained."""
    design = Design(1e-9, 1, 2, 1e6, 0.4)
    assert design.screen_level == 0.5
    spent = 0.04 + (0.5 - 0.04) * design.confirm_level
    assert spent == pytest.approx(0.4, rel=1e-3)
