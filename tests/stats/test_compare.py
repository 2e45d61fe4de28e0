"""Gaps and effects with intervals: against scipy without a prior, for coverage with one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pytest_llmperf.stats import Prior, effects, ratio_interval
from pytest_llmperf.stats.compare import dunnett_cdf, dunnett_quantile

SIDE = st.lists(st.floats(50, 200), min_size=2, max_size=8, unique=True)
KNOWS_NOTHING = Prior(d0=0.0)


@given(SIDE, SIDE)
@settings(deadline=None)
def test_without_a_prior_it_is_welchs_interval(a: list[float], b: list[float]) -> None:
    found = ratio_interval(a, b, prior=KNOWS_NOTHING)
    test = stats.ttest_ind(np.log(b), np.log(a), equal_var=False)
    interval = test.confidence_interval(0.95)
    if min(np.std(np.log(a)), np.std(np.log(b))) < 1e-3:
        return  # the spread is not taken to be smaller than clocks resolve
    assert found.low == pytest.approx(math.exp(interval.low), rel=1e-6)
    assert found.high == pytest.approx(math.exp(interval.high), rel=1e-6)
    assert found.p == pytest.approx(float(test.pvalue), abs=1e-9)
    assert found.credible == (test.pvalue < 0.05)


@given(SIDE, SIDE)
@settings(deadline=None)
def test_swapping_sides_inverts_the_ratio(a: list[float], b: list[float]) -> None:
    forth, back = ratio_interval(a, b, pooled=True), ratio_interval(b, a, pooled=True)
    assert back.ratio == pytest.approx(1 / forth.ratio)
    assert back.low == pytest.approx(1 / forth.high)
    assert forth.low < forth.ratio < forth.high


@pytest.mark.parametrize(("na", "nb"), [(1, 1), (2, 3), (5, 5), (1, 6)])
def test_gap_between_engines_of_unlike_spread_is_covered(na: int, nb: int) -> None:
    """One engine's launches agree to 0.2 %, the other's differ by 1.5 %, each known by its own prior."""
    n = 800
    rng = np.random.default_rng(1)
    priors = Prior(4.0, 0.002), Prior(4.0, 0.015)
    covered = 0
    for _ in range(n):
        sa, sb = (p.s0 * math.sqrt(p.d0 / rng.chisquare(p.d0)) for p in priors)
        a, b = np.exp(rng.normal(0, sa, na)), np.exp(rng.normal(-0.25, sb, nb))
        found = ratio_interval(list(a), list(b), prior=priors[0], prior_b=priors[1])
        covered += found.low <= math.exp(-0.25) <= found.high
    assert abs(covered / n - 0.95) < 0.012 + 3 * math.sqrt(0.95 * 0.05 / n)


@pytest.mark.parametrize("n_each", [1, 2, 5])
def test_two_builds_of_one_engine_are_covered_exactly(n_each: int) -> None:
    n, prior = 800, Prior(4.0, 0.012)
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(n):
        sigma = prior.s0 * math.sqrt(prior.d0 / rng.chisquare(prior.d0))
        a, b = np.exp(rng.normal(0, sigma, (2, n_each)))
        found = ratio_interval(list(a), list(b), prior=prior, pooled=True, level=0.9)
        covered += found.low <= 1 <= found.high
    assert abs(covered / n - 0.9) < 4 * math.sqrt(0.9 * 0.1 / n)


def test_effects_are_scipys_dunnett_without_a_prior() -> None:
    rng = np.random.default_rng(3)
    base = rng.normal(0, 0.01, 6)
    groups = {name: rng.normal(m, 0.01, n) for name, m, n in (("x", 0.02, 3), ("y", 0.0, 5), ("z", -0.03, 4))}
    found = effects(list(np.exp(base)), {k: list(np.exp(g)) for k, g in groups.items()}, prior=KNOWS_NOTHING)
    expected = stats.dunnett(*groups.values(), control=base, rng=np.random.default_rng(1))
    interval = expected.confidence_interval(0.95)
    for i, name in enumerate(groups):
        effect = next(e for e in found if e.name == name)
        assert effect.p == pytest.approx(float(expected.pvalue[i]), abs=3e-3)
        assert effect.low == pytest.approx(math.exp(interval.low[i]), rel=1e-3)
        assert effect.high == pytest.approx(math.exp(interval.high[i]), rel=1e-3)


def test_effects_come_best_first_in_the_metrics_direction() -> None:
    sweep = {"fast": [110.0, 110.5], "same": [100.1, 99.9], "slow": [80.0, 80.4]}
    base = [100.0, 100.2, 99.8]
    up = effects(base, sweep)
    assert [e.name for e in up] == ["fast", "same", "slow"]
    assert [e.better for e in up] == [True, None, False]
    assert "no credible effect" in up[1].words
    assert up[0].words.startswith("+10")
    down = effects(base, sweep, higher_is_better=False)
    assert [e.name for e in down] == ["slow", "same", "fast"]
    assert [e.better for e in down] == [True, None, False]


def test_one_knob_that_does_nothing_among_many_is_rarely_credited() -> None:
    n, prior = 150, Prior(4.0, 0.01)
    rng = np.random.default_rng(4)
    credited = 0
    for _ in range(n):
        sigma = prior.s0 * math.sqrt(prior.d0 / rng.chisquare(prior.d0))
        knobs = {str(i): list(np.exp(rng.normal(0, sigma, 1))) for i in range(8)}
        credited += any(
            e.better is not None for e in effects(list(np.exp(rng.normal(0, sigma, 3))), knobs, prior=prior)
        )
    assert abs(credited / n - 0.05) < 4 * math.sqrt(0.05 * 0.95 / n)


def test_no_variation_no_effect() -> None:
    assert effects([100.0], {}) == []


def test_dunnett_of_one_comparison_is_students_t() -> None:
    one = np.array([0.7])
    assert dunnett_quantile((0.7,), 7.0, 0.95) == pytest.approx(float(stats.t.isf(0.025, 7)))
    assert dunnett_cdf(2.0, one, 7.0) == pytest.approx(1 - 2 * float(stats.t.sf(2.0, 7)), abs=1e-8)


def test_a_side_without_measurements_is_named() -> None:
    with pytest.raises(ValueError, match="b needs launches"):
        ratio_interval([100.0], [math.nan])
    with pytest.raises(ValueError, match="triton needs launches"):
        effects([100.0], {"triton": []})
