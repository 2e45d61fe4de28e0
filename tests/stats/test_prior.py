"""The prior: limma's fit, capped; the moderated variance between prior and data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.stats import Prior, fit_prior, two_groups
from pytest_llmperf.stats.prior import LEAST_SPREAD, moderate
from pytest_llmperf.stats.prior_fit import MOST_D0, MOST_USUAL


def many(rng: np.random.Generator, d0: float, s0: float, series: int, k: int) -> list[list[float]]:
    """Series whose variances are drawn from the very model that is fitted."""
    sigma = np.full(series, s0) if math.isinf(d0) else s0 * np.sqrt(d0 / rng.chisquare(d0, series))
    return [list(np.exp(rng.normal(0, s, k))) for s in sigma]


@pytest.mark.parametrize("s0", [0.001, 0.012, 0.05])
@pytest.mark.parametrize("d0", [2.0, 3.0, math.inf])
def test_recovers_the_spread_it_was_made_from(d0: float, s0: float) -> None:
    prior = fit_prior(many(np.random.default_rng(1), d0, s0, 4000, 5))
    assert prior.s0 == pytest.approx(s0, rel=0.05)
    assert prior.d0 == (d0 if d0 < MOST_D0 else MOST_D0) or abs(prior.d0 - d0) <= 0.5


def test_worth_is_capped_and_comes_in_halves() -> None:
    prior = fit_prior(many(np.random.default_rng(2), math.inf, 0.01, 200, 5))
    assert prior.d0 == MOST_D0
    assert (2 * fit_prior(many(np.random.default_rng(3), 2.7, 0.01, 500, 8)).d0).is_integer()


def test_too_few_series_leave_the_default() -> None:
    four = many(np.random.default_rng(4), 4.0, 0.05, 4, 5)
    assert fit_prior(four) is None
    assert fit_prior([*four, [100.0]]) is None, "a single launch shows no spread"
    fifth = many(np.random.default_rng(5), 4.0, 0.05, 1, 5)
    assert fit_prior(four + fifth).source == "5 series"


def test_series_of_the_same_launches_are_one_piece_of_evidence() -> None:
    """Ten tests of one server config, launched five times: what these launches had in common is no law."""
    ten = many(np.random.default_rng(6), 4.0, 0.01, 10, 5)
    assert fit_prior(ten, launches=[{1, 2, 3, 4, 5}] * 10) is None
    chained = [{i, i + 1} for i in range(10)]
    assert fit_prior(ten, launches=chained) is None, "shared through others"
    five = fit_prior(ten, launches=[{i // 2} for i in range(10)])
    assert five is not None
    assert "5 sets of launches" in five.source


def test_two_groups_of_launches_are_no_spread_to_learn() -> None:
    rng = np.random.default_rng(7)
    bimodal = [list(np.exp(rng.normal(0, 0.003, 6)) * [100, 76, 100, 76, 76, 100]) for _ in range(8)]
    assert all(two_groups(x, 0.006) for x in bimodal)
    learned = fit_prior(bimodal, usual=0.006)
    assert learned is not None
    assert learned.s0 == pytest.approx(0.003, rel=0.5)
    blind = fit_prior(bimodal)
    assert blind is not None
    assert blind.s0 > 0.1, "what it would have learned"


def test_one_odd_launch_makes_no_groups_and_teaches_no_spread() -> None:
    rng = np.random.default_rng(8)
    odd = [list(np.exp(rng.normal(0, 0.006, 5)) * [95 if i % 4 == 0 else 100, *[100] * 4]) for i in range(40)]
    assert not any(two_groups(x, 0.006) for x in odd)
    learned, plainly = fit_prior(odd, usual=0.006), fit_prior(odd)
    assert learned is not None
    assert plainly is not None
    assert learned.s0 == pytest.approx(0.006, rel=0.35)
    assert learned.d0 > plainly.d0, "which takes the odd ones for unlike series"


def test_a_fitted_spread_is_held_to_what_engines_have() -> None:
    learned = fit_prior(many(np.random.default_rng(9), math.inf, 0.08, 30, 5), usual=0.006)
    assert learned is not None
    assert learned.s0 == pytest.approx(MOST_USUAL * 0.006)
    assert "what is usual" in learned.source


def test_identical_launches_do_not_break_it() -> None:
    prior = fit_prior([[100.0, 100.0, 100.0]] * 6)
    assert prior.s0 >= LEAST_SPREAD
    assert math.isfinite(prior.d0)


def test_refuses_values_that_are_no_measurements() -> None:
    with pytest.raises(ValueError, match="positive finite"):
        fit_prior([[100.0, math.nan]] * 6)


@pytest.mark.parametrize(("d0", "s0"), [(-1.0, 0.01), (math.nan, 0.01), (4.0, 0.0), (4.0, -0.1), (4.0, math.inf)])
def test_a_prior_must_make_sense(d0: float, s0: float) -> None:
    with pytest.raises(ValueError, match="a prior needs"):
        Prior(d0, s0)


@given(st.floats(0.5, 50), st.floats(0.001, 0.1), st.integers(1, 30), st.floats(0.0001, 0.2))
def test_moderated_spread_lies_between_prior_and_sample(d0: float, s0: float, df: int, s: float) -> None:
    spread, nu = moderate(np.asarray(df * s**2), df, d0, s0**2)
    assert min(s, s0) * (1 - 1e-9) <= float(spread) <= max(s, s0) * (1 + 1e-9)
    assert nu == pytest.approx(d0 + df)


def test_neither_prior_nor_data_is_an_error() -> None:
    with pytest.raises(ValueError, match="give a prior"):
        moderate(np.zeros(()), 0, 0.0, 0.01)
