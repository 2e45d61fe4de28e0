"""False alarms, power and launches spent, by seeded simulation; tolerances are four binomial standard errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_llmperf.stats import Gate, Prior
from pytest_llmperf.stats.levels import Design, failing
from tests.stats.simulation import failed, launches

RUNS = 20_000


def error(p: float, n: int = RUNS) -> float:
    return 4 * math.sqrt(max(p * (1 - p), 1 / n) / n)


def run(k: int, cv: float, drop: float, *, heavy: bool = False, seed: int = 1) -> tuple[float, float]:
    """Share failed and mean launches used at alpha = 0.1 %."""
    rng = np.random.default_rng(seed)
    stored, fresh = launches(rng, RUNS, k, cv, heavy=heavy), launches(rng, RUNS, 3, cv, heavy=heavy)
    fails, used = failed(stored, fresh + math.log1p(-drop))
    return float(np.mean(fails)), float(np.mean(used))


@pytest.mark.parametrize("heavy", [False, True], ids=["normal", "heavy"])
@pytest.mark.parametrize("k", [1, 3, 5, 10])
def test_unchanged_tests_hardly_ever_fail(k: int, heavy: bool) -> None:
    fails, used = run(k, 0.01, 0.0, heavy=heavy)
    assert fails <= 0.002 + error(0.002)
    assert used <= 1.08


def test_unchanged_tests_spend_hardly_any_launches() -> None:
    assert run(5, 0.01, 0.0)[1] <= 1.06


@pytest.mark.parametrize(
    ("k", "drop", "least"),
    [(5, 0.05, 0.96), (3, 0.05, 0.78), (10, 0.05, 0.99), (1, 0.10, 0.93), (3, 0.10, 0.995), (10, 0.03, 0.58)],
)
def test_losses_are_caught(k: int, drop: float, least: float) -> None:
    assert run(k, 0.01, drop)[0] >= least - error(least)


def test_heavy_tails_do_not_blind_it() -> None:
    assert run(5, 0.01, 0.05, heavy=True)[0] >= 0.93 - error(0.93)


@pytest.mark.parametrize("alpha", [0.01, 0.001])
@pytest.mark.parametrize("k", [1, 4, 10])
def test_the_level_is_kept_exactly_when_the_prior_is_right(k: int, alpha: float) -> None:
    """Spread drawn from the prior, launch by launch: what an unchanged test fails with is what both stages and every
    launch's own limit spend, alpha at most."""
    n = 40_000
    rng = np.random.default_rng(3)
    prior = Prior(4.0, 0.1)  # so wide that neither the practical minimum nor the repetitions count
    sigma = prior.s0 * np.sqrt(prior.d0 / rng.chisquare(prior.d0, n))
    fails, _ = failed(*(rng.normal(0, 1, (n, m)) * sigma[:, None] for m in (k, 3)), alpha=alpha, prior=prior)
    design = Design(1 / k, 1, 2, prior.d0 + k - 1, alpha)
    spent = failing(design, design.confirm, design.each)
    assert spent <= alpha * 1.001
    assert abs(float(np.mean(fails)) - spent) < error(alpha, n)


@pytest.mark.parametrize("k", [2, 5])
def test_the_gate_is_what_was_simulated(k: int) -> None:
    """The class that users call and the array functions agree case by case."""
    rng = np.random.default_rng(4)
    stored, fresh = launches(rng, 150, k, 0.01), launches(rng, 150, 3, 0.01) + math.log(0.96)
    fails, used = failed(stored, fresh)
    for i in range(150):
        gate = Gate(list(np.exp(stored[i])))
        first = gate.screen([math.exp(fresh[i, 0])])
        outcome = gate.confirm(list(np.exp(fresh[i, 1:]))) if first.verdict == "suspect" else first
        assert (outcome.verdict == "regressed") == fails[i]
        assert (first.verdict == "suspect") == (used[i] > 1)


@pytest.mark.parametrize("k", [3, 5, 10])
def test_the_stated_detectable_loss_is_caught_four_times_in_five(k: int) -> None:
    """Known spread: the prior is all but certain and right."""
    prior = Prior(400.0, 0.01)
    loss = Gate(list(np.exp(0.01 * np.linspace(-1, 1, k) * math.sqrt(1.5))), prior=prior).mde
    rng = np.random.default_rng(5)
    stored, fresh = rng.normal(0, 0.01, (RUNS, k)), rng.normal(0, 0.01, (RUNS, 3)) + math.log1p(-loss)
    fails, _ = failed(stored, fresh, prior=prior)
    assert abs(float(np.mean(fails)) - 0.8) < error(0.8) + 0.01


def test_pooled_repetitions_would_cry_wolf() -> None:
    """Why the launch is the unit: Welch over repetitions at 1 % on the very same unchanged launches."""
    from scipy import stats

    rng = np.random.default_rng(6)
    effect = rng.normal(0, 0.01, (2000, 6))
    logs = effect[..., None] + rng.normal(0, 0.004, (2000, 6, 10))
    old, new = logs[:, :5].reshape(2000, -1), logs[:, 5]
    cried = float(np.mean(stats.ttest_ind(old, new, axis=1, equal_var=False, alternative="greater").pvalue < 0.01))
    assert cried > 0.2
