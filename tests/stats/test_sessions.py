"""What a session's colour is worth: the figures of docs/reference/gate-benchmark.md on fewer runs; margins are three
binomial standard errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_llmperf.stats import Gate, Prior, drift, session_alpha
from pytest_llmperf.stats.location import Array
from pytest_llmperf.stats.reference import reference
from pytest_llmperf.stats.verdict import FASTER, IMPROVED, REGRESSED, SUSPECT, both_stages
from tests.stats.simulation import LEAST

RUNS, TESTS = 20_000, 10
ALPHA = session_alpha(0.01, TESTS)
SGLANG, VLLM = 0.006, 0.015


def drawn(k: int, cv: float, *, outliers: float = 0.0, outlier: float = 0.95) -> Array:
    rng = np.random.default_rng([k, int(cv * 1e4)])
    logs = rng.normal(0, cv, (RUNS, k + 3))
    return logs + math.log(outlier) * (rng.random(logs.shape) < outliers)


def shares(logs: Array, k: int, prior: float, loss: float = 0.0) -> tuple[float, float, float]:
    """Share failed, share called improved, launches used."""
    ref = reference(logs[:, :k], Prior(s0=prior))
    first, last = both_stages(ref, logs[:, k:] + math.log1p(-loss), alpha=ALPHA, least=LEAST)
    failed, improved = (first == SUSPECT) & (last == REGRESSED), (first == FASTER) & (last == IMPROVED)
    return float(np.mean(failed)), float(np.mean(improved)), 1 + 2 * float(np.mean(first == SUSPECT))


def margin(p: float) -> float:
    return 3 * math.sqrt(p * (1 - p) / RUNS)


@pytest.mark.parametrize("outliers", [0.0, 0.05], ids=["clean", "one launch in twenty 5 % slow"])
@pytest.mark.parametrize("k", [1, 3, 5, 10])
@pytest.mark.parametrize(("prior", "cv"), [(SGLANG, 0.001), (SGLANG, 0.006), (VLLM, 0.001), (VLLM, 0.015)])
def test_unchanged_sessions_of_ten_are_red_once_in_a_hundred_at_most(
    prior: float, cv: float, k: int, outliers: float
) -> None:
    failed, improved, launches = shares(drawn(k, cv, outliers=outliers), k, prior)
    assert failed <= ALPHA + margin(ALPHA)
    if not outliers:
        assert improved <= 0.002
        assert launches <= 1.15


@pytest.mark.parametrize(
    ("prior", "cv", "loss", "least"),
    [(SGLANG, 0.006, 0.03, 0.95), (SGLANG, 0.006, 0.05, 0.99), (VLLM, 0.015, 0.05, 0.60)],
)
def test_five_stored_launches_see_a_loss(prior: float, cv: float, loss: float, least: float) -> None:
    assert shares(drawn(5, cv), 5, prior, loss)[0] >= least


def test_one_stored_outlier_hardly_costs_power() -> None:
    logs = drawn(5, 0.003)
    logs[:, 0] += math.log(0.95)
    assert shares(logs, 5, SGLANG, 0.03)[0] >= 0.85


@pytest.mark.parametrize("k", [3, 5, 10])
@pytest.mark.parametrize("prior", [0.05, 0.12], ids=["p99", "TTFT"])
def test_spikes_of_a_latency_keep_the_sessions_level(prior: float, k: int) -> None:
    """One launch in twenty 60 % above, lower is better."""
    logs = -drawn(k, prior, outliers=0.05, outlier=1.6)
    assert shares(logs, k, prior)[0] <= ALPHA + margin(ALPHA)


@pytest.mark.parametrize("prior", [SGLANG, VLLM])
def test_a_new_host_is_no_regression_even_where_hosts_differ_by_twice_the_default(prior: float) -> None:
    """All ten tests of a session run there; degrees of freedom of launches alone made 2 % of these red."""
    sessions = RUNS // TESTS
    rng = np.random.default_rng(5)
    here, there = (np.repeat(rng.normal(0, 0.03, sessions), TESTS)[:, None] for _ in "ab")
    logs = np.hstack([here + np.zeros((1, 5)), there + np.zeros((1, 3))]) + rng.normal(0, prior, (RUNS, 8))
    ref = reference(logs[:, :5], Prior(s0=prior), hosts=["a"] * 5, host="b")
    first, last = both_stages(ref, logs[:, 5:], alpha=ALPHA, least=LEAST)
    red = np.any(((first == SUSPECT) & (last == REGRESSED)).reshape(sessions, TESTS), axis=1)
    assert float(np.mean(red)) <= 0.01


def test_half_a_year_of_updates_rebases_nothing_and_does_not_creep() -> None:
    """Every week one launch, two more to confirm what looks odd either way; all are stored unless they regressed."""
    rng, prior = np.random.default_rng(6), Prior(s0=SGLANG)
    rebased, centers = 0, []
    for _ in range(12):
        stored = list(np.exp(rng.normal(0, SGLANG, 5)))
        for _ in range(26):
            gate = Gate(stored, alpha=ALPHA, prior=prior)
            fresh = list(np.exp(rng.normal(0, SGLANG, 3)))
            outcome = gate.screen(fresh[0])
            asked = outcome.verdict == "suspect" or outcome.faster
            verdict = gate.confirm(fresh[1:]).verdict if asked else outcome.verdict
            rebased += verdict == "improved"
            stored += [] if verdict == "regressed" else fresh if asked else fresh[:1]
        centers.append(math.log(Gate(stored, prior=prior).center))
    assert rebased == 0, "three in a hundred series at most"
    assert abs(float(np.mean(centers))) < 0.001


@pytest.mark.parametrize("cv", [0.003, SGLANG])
def test_one_percent_a_week_is_said_within_four_weeks(cv: float) -> None:
    """One recorded launch a week; the newest three against the epoch's first five."""
    rng, said, runs = np.random.default_rng(7), 0, 200
    for _ in range(runs):
        first, later = rng.normal(0, cv, 5), rng.normal(0, cv, 4) + math.log(0.99) * np.arange(1, 5)
        said += any(
            drift(list(np.exp(first)), list(np.exp(later[i : i + 3])), prior=Prior(s0=SGLANG)).drifted for i in (0, 1)
        )
    assert said / runs >= 0.95
