"""A/B that may stop early: the level is kept over all looks, the budget never exceeded."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pytest_llmperf.stats import Prior, Trial, abba, trial
from pytest_llmperf.stats.sequential import FIRST_LOOK, STEADY, look_levels


def run(a: list[float], b: list[float], budget: int, prior: Prior | None = None) -> Trial:
    """Launch pair after pair until the trial says that it is done."""
    for pairs in range(budget + 1):
        state = trial(a[:pairs], b[:pairs], budget=budget, prior=prior)
        if state.done:
            return state
    raise AssertionError("never done")


def test_order_cancels_drift() -> None:
    assert abba(1) == "AB"
    assert abba(3) == "ABBAAB"
    order = abba(4)
    places = {side: [i for i, s in enumerate(order) if s == side] for side in "AB"}
    assert sum(places["A"]) == sum(places["B"])


@pytest.mark.parametrize("budget", [1, 2, 5, 10])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_levels_spend_alpha_over_all_looks(budget: int, alpha: float) -> None:
    levels = look_levels(budget, alpha)
    first = min(FIRST_LOOK, budget)
    assert len(levels) == budget - first + 1
    n = 200_000
    steps = np.random.default_rng(1).normal(size=(n, budget))
    walk = np.cumsum(steps, axis=1)[:, first - 1 :] / np.sqrt(np.arange(first, budget + 1))
    crossed = float(np.mean(np.any(np.abs(walk) > stats.norm.isf(np.array(levels) / 2), axis=1)))
    assert abs(crossed - alpha) < 4 * math.sqrt(alpha * (1 - alpha) / n)


def test_one_look_spends_all() -> None:
    assert look_levels(2, 0.05) == pytest.approx((0.05,))


@pytest.mark.parametrize("times", [1.0, STEADY])
@pytest.mark.parametrize("budget", [2, 6])
def test_unchanged_builds_are_rarely_told_apart(budget: int, times: float) -> None:
    """Up to twice the prior's spread."""
    n, prior = 800, Prior(4.0, 0.012)
    rng = np.random.default_rng(2)
    logs = rng.normal(0, times * prior.s0, (n, 2, budget))
    states = [run(list(a), list(b), budget, prior) for a, b in np.exp(logs)]
    called = sum(s.verdict in ("faster", "slower") for s in states)
    assert called / n < 0.05 + 2 * math.sqrt(0.05 * 0.95 / n)
    assert called > 0 or times == 1.0


def test_launches_that_spread_beyond_the_claim_are_said() -> None:
    steady, wild = [100.0, 101.0, 99.5], [100.0, 107.0, 94.0]
    prior = Prior(4.0, 0.012)
    calm, loud = trial(steady, steady, budget=3, prior=prior), trial(steady, wild, budget=3, prior=prior)
    assert not calm.unsteady
    assert loud.unsteady
    assert calm.spread == pytest.approx(float(np.std(np.log(steady), ddof=1)))
    assert trial([100.0], [101.0], budget=1).spread is None


def test_a_clear_difference_stops_early_and_the_interval_holds_it() -> None:
    rng = np.random.default_rng(3)
    a, b = 100 * np.exp(rng.normal(0, 0.01, 10)), 90 * np.exp(rng.normal(0, 0.01, 10))
    state = run(list(a), list(b), 10)
    assert state.verdict == "slower"
    assert state.pairs <= FIRST_LOOK + 1
    assert state.ratio is not None
    assert state.ratio.low <= 0.9 <= state.ratio.high


def test_direction() -> None:
    a, b = [100.0, 100.5], [80.0, 80.5]
    assert trial(a, b, budget=4).verdict == "slower"
    assert trial(a, b, budget=4, higher_is_better=False).verdict == "faster"


def test_builds_that_are_alike_are_called_so_when_launches_agree() -> None:
    rng = np.random.default_rng(4)
    a, b = 100 * np.exp(rng.normal(0, 0.001, (2, 10)))
    assert run(list(a), list(b), 10, Prior(4.0, 0.001)).verdict == "no difference"


def test_an_open_question_ends_with_the_budget() -> None:
    a, b = [100.0, 103.0, 98.0], [99.0, 101.0, 97.0]
    assert trial(a[:2], b[:2], budget=3).verdict == "continue"
    final = trial(a, b, budget=3)
    assert (final.verdict, final.pairs) == ("undecided", 3)


@given(st.integers(1, 6), st.lists(st.floats(50, 200), max_size=8), st.lists(st.floats(50, 200), max_size=8))
@settings(deadline=None)
def test_never_more_than_the_budget(budget: int, a: list[float], b: list[float]) -> None:
    state = trial(a, b, budget=budget)
    assert state.pairs <= budget
    if min(len(a), len(b)) >= budget:
        assert state.done
        assert state.ratio is not None


def test_needs_a_budget() -> None:
    with pytest.raises(ValueError, match="budget"):
        trial([100.0], [100.0], budget=0)
