"""Centre and spread of stored launches, with and without hosts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from pytest_llmperf.stats.prior import Prior
from pytest_llmperf.stats.reference import HOST_SPREAD, reference, shift

LOGS = st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=12)
PAIR = st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=2)


@given(PAIR, st.integers(1, 4))
def test_without_a_prior_it_is_the_plain_prediction_interval(logs: list[float], r: int) -> None:
    """scipy's t and textbook arithmetic; pooled variance of two samples is Student's own test."""
    x = np.array(logs) + np.linspace(0, 0.01, len(logs))
    assume(np.std(x) > 1e-3)  # launches that are all alike are given the least spread that there is
    fresh = np.linspace(-0.02, -0.01, r)
    seen = shift(reference(x, Prior(d0=0.0)), fresh, pooled=True)
    if r > 1:
        expected = stats.ttest_ind(x, fresh, alternative="greater")
        assert float(seen.t) == pytest.approx(float(expected.statistic), rel=1e-6)
        assert float(seen.p) == pytest.approx(float(expected.pvalue), rel=1e-6)
    else:
        error = np.std(x, ddof=1) * math.sqrt(1 + 1 / x.size)
        assert float(seen.error) == pytest.approx(error, rel=1e-6)
        assert seen.nu == x.size - 1


@given(LOGS, st.floats(-3, 3))
def test_moves_with_the_logs(logs: list[float], by: float) -> None:
    x = np.array(logs)
    here, there = reference(x, Prior()), reference(x + by, Prior())
    assert float(there.center) == pytest.approx(float(here.center) + by, abs=1e-9)
    assert float(there.spread) == pytest.approx(float(here.spread), rel=1e-6)


def test_many_series_at_once_are_each_of_them_alone() -> None:
    rng = np.random.default_rng(1)
    x, fresh = rng.normal(0, 0.01, (7, 5)), rng.normal(0, 0.01, (7, 2))
    hosts = ["a", "a", "b", "b", "c"]
    for names, host in ((None, None), (hosts, "a"), (hosts, "d")):
        together = shift(reference(x, Prior(), hosts=names, host=host), fresh, pooled=True)
        for i in range(7):
            alone = shift(reference(x[i], Prior(), hosts=names, host=host), fresh[i], pooled=True)
            assert float(together.t[i]) == pytest.approx(float(alone.t), rel=1e-9)


def test_hosts_that_are_all_the_same_change_nothing() -> None:
    x = np.array([0.0, 0.01, -0.01])
    plain, named = reference(x, Prior()), reference(x, Prior(), hosts=["a"] * 3, host="a")
    assert (float(plain.center), float(plain.spread), plain.nu) == (float(named.center), float(named.spread), named.nu)


def test_a_known_host_is_judged_by_its_own_launches() -> None:
    x = np.array([0.0, 0.001, -0.001, 0.04, 0.041, 0.039])
    ref = reference(x, Prior(s0=0.002), hosts=["a"] * 3 + ["b"] * 3, host="b")
    assert float(ref.center) == pytest.approx(0.04, abs=1e-4)
    assert float(ref.spread) < 0.002, "hosts' difference is no launch spread"
    assert float(ref.share) == pytest.approx(1 / 3, rel=0.02)


def test_a_host_seen_once_leans_on_the_others() -> None:
    x = np.array([0.0, 0.001, -0.001, 0.0, 0.02])
    ref = reference(x, Prior(), hosts=["a"] * 4 + ["b"], host="b")
    assert 0.005 < float(ref.center) < 0.02
    assert 1 / 5 < float(ref.share) < 1.0


def test_an_unseen_host_is_judged_more_widely() -> None:
    x = np.array([0.0, 0.01, -0.01, 0.005, -0.005])
    known, other = (reference(x, Prior(), hosts=["a"] * 5, host=h) for h in ("a", "b"))
    assert float(other.center) == pytest.approx(float(known.center))
    extra = float(other.share * other.spread**2) - float(known.share * known.spread**2)
    assert extra == pytest.approx(2 * HOST_SPREAD**2, rel=1e-6), "the known host is no better a sample than the new one"


def test_hosts_that_differed_widen_the_band_of_the_next_one() -> None:
    near = reference(np.array([0.0, 0.001, 0.002, 0.0]), Prior(), hosts=["a", "b", "c", "d"], host="e")
    far = reference(np.array([0.0, 0.08, -0.08, 0.05]), Prior(), hosts=["a", "b", "c", "d"], host="e")
    assert float(far.share * far.spread**2) > 3 * float(near.share * near.spread**2)


@pytest.mark.parametrize("spread", [0.0, 0.015])
@pytest.mark.parametrize("host", ["a", "b", "new"])
def test_false_alarms_keep_their_level_across_hosts(host: str, spread: float) -> None:
    """Launches of 1 % on hosts that differ by nothing or by the default: at 5 %, one in twenty is suspect at most."""
    n, names = 20_000, ["a", "a", "a", "b", "c", "c"]
    rng = np.random.default_rng(2)
    level = {h: rng.normal(0, spread, n) for h in ("a", "b", "c", "new")}
    x = np.stack([level[h] + rng.normal(0, 0.012, n) for h in names], axis=1)
    fresh = (level[host] + rng.normal(0, 0.012, n))[:, None]
    seen = shift(reference(x, Prior(), hosts=names, host=host), fresh, pooled=False)
    suspect = float(np.mean(seen.p < 0.05))
    assert suspect < 0.05 + 4 * math.sqrt(0.05 * 0.95 / n)
    assert suspect > 0.0005, "the allowance for hosts does not blind the gate"


def test_as_many_hosts_as_launches() -> None:
    with pytest.raises(ValueError, match="3 launches but 2 hosts"):
        reference(np.zeros(3), Prior(), hosts=["a", "b"], host="a")
