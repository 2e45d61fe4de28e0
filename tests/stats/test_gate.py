"""Verdicts of the gate, one by one, and what holds for all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_llmperf.stats import Gate, Prior, target_outcome

STEADY = [[100.0, 100.2, 99.9], [101.0, 100.6, 101.1], [99.2, 99.0, 99.4], [100.1, 100.3, 100.0], [99.8, 99.7, 100.0]]
LAUNCHES = st.lists(st.floats(80, 120), min_size=1, max_size=8)
VALUE = st.floats(20, 500)


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(100.0, "passed"), (98.5, "passed"), (96.5, "suspect"), (85.0, "suspect"), (10.0, "suspect"), (110.0, "passed")],
)
def test_screen(value: float, verdict: str) -> None:
    """Nothing fails on one launch, however far off it is, and nothing is improved by one."""
    assert Gate(STEADY).screen([value, value * 1.001, value * 0.999]).verdict == verdict


def test_a_faster_launch_passes_unconfirmed() -> None:
    outcome = Gate(STEADY).screen([110.0])
    assert (outcome.verdict, outcome.faster) == ("passed", True)
    assert "faster, unconfirmed" in outcome.reasons
    assert not Gate(STEADY).screen([100.5]).faster


@pytest.mark.parametrize("better", [False, True])
def test_every_confirming_launch_must_bear_it_out(better: bool) -> None:
    """One launch so far off that their mean lies beyond its limit, the other as before: neither red nor improved."""
    values = (112.0, 100.5) if better else (89.0, 99.5)
    gate = Gate(STEADY, alpha=0.01)
    assert gate.confirm([[v] for v in values]).verdict not in ("regressed", "improved")
    mean = math.sqrt(values[0] * values[1])
    assert gate.confirm([[mean], [mean]]).verdict == ("improved" if better else "regressed")


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(100.0, "passed"), (98.5, "passed"), (95.0, "regressed"), (85.0, "regressed"), (110.0, "improved")],
)
def test_confirm(value: float, verdict: str) -> None:
    assert Gate(STEADY).confirm([[value, value * 1.001], [value * 0.999]]).verdict == verdict


def test_single_stage_never_leaves_a_suspect() -> None:
    gate = Gate(STEADY)
    outcomes = [gate.single([v]) for v in np.linspace(80, 120, 81)]
    assert {x.verdict for x in outcomes} == {"passed", "regressed", "improved"}
    assert all(x.unconfirmed == (x.verdict != "passed") for x in outcomes)
    assert all(any("unconfirmed" in r for r in x.reasons) for x in outcomes if x.unconfirmed)


@given(LAUNCHES, VALUE)
@settings(deadline=None)
def test_direction_mirrors(stored: list[float], value: float) -> None:
    """Latency judged upside down is throughput of the reciprocal."""
    up = Gate(stored, True, min_effect=0.0)
    down = Gate([1 / x for x in stored], False, min_effect=0.0)
    assert up.screen([value]).verdict == down.screen([1 / value]).verdict
    assert down.center == pytest.approx(1 / up.center)
    assert down.band[1] == pytest.approx(1 / up.band[0])


@given(LAUNCHES, VALUE, st.floats(0.01, 100))
@settings(deadline=None)
def test_unit_does_not_matter(stored: list[float], value: float, factor: float) -> None:
    here, there = Gate(stored), Gate([x * factor for x in stored])
    low, high = here.band
    assume(all(abs(value / edge - 1) > 1e-6 for edge in (low, high)))
    a, b = here.screen([value]), there.screen([value * factor])
    assert a.t == pytest.approx(b.t, abs=1e-6)
    assert there.mde == pytest.approx(here.mde, rel=1e-6)


@given(LAUNCHES, VALUE, VALUE)
@settings(deadline=None)
def test_a_worse_launch_is_never_judged_better(stored: list[float], one: float, other: float) -> None:
    order = ["regressed", "suspect", "inconclusive", "passed", "improved"]
    gate = Gate(stored)
    low, high = sorted((one, other))
    worse, better = gate.screen([low]).verdict, gate.screen([high]).verdict
    assert order.index(worse) <= order.index(better)


@given(LAUNCHES, VALUE)
@settings(deadline=None)
def test_the_band_is_what_decides(stored: list[float], value: float) -> None:
    gate = Gate(stored)
    outcome = gate.screen([value])
    assert outcome.band == gate.band
    low, high = gate.band
    assume(min(abs(value / low - 1), abs(value / high - 1)) > 1e-9)
    inside = low < value < high
    assert inside == (outcome.verdict in ("passed", "inconclusive") and not outcome.faster) or (
        outcome.verdict == "inconclusive"
    )


@given(LAUNCHES, st.lists(VALUE, min_size=1, max_size=4))
@settings(deadline=None)
def test_deterministic_and_blind_to_the_order_of_launches(stored: list[float], fresh: list[float]) -> None:
    forth, back = Gate(stored), Gate(stored[::-1])
    a, b = forth.confirm(fresh), back.confirm(fresh[::-1])
    assert a.verdict == b.verdict
    assert a.t == pytest.approx(b.t, rel=1e-6, abs=1e-9)
    assert forth.confirm(fresh) == a


def test_a_loss_below_the_practical_minimum_is_no_regression() -> None:
    tight = Prior(4.0, 0.0005)
    stored = [100.0, 100.01, 99.99, 100.02, 99.98]
    assert Gate(stored, prior=tight).screen([99.3]).verdict == "passed"
    assert Gate(stored, prior=tight).screen([98.9]).verdict != "passed"
    assert Gate(stored, prior=tight, min_effect=0.002).screen([99.3]).verdict != "passed"
    assert Gate(stored, prior=tight).mde > 0.01


@pytest.mark.parametrize("bad", [math.nan, 0.0, -3.0, math.inf])
def test_what_is_no_measurement_is_invalid(bad: float) -> None:
    gate = Gate(STEADY)
    for outcome in (gate.screen([100.0, bad]), gate.confirm([[100.0], [bad]]), gate.single([[bad], [100.0]])):
        assert outcome.verdict == "invalid"
        assert outcome.value is None
        assert outcome.reasons
    assert gate.screen([]).verdict == gate.confirm([]).verdict == gate.screen([[100.0], []]).verdict == "invalid"


@pytest.mark.parametrize("bad", [math.nan, 0.0, -3.0, math.inf])
def test_a_baseline_of_no_measurements_is_refused_by_number(bad: float) -> None:
    with pytest.raises(ValueError, match="stored launch 2"):
        Gate([[100.0], [100.0, bad]])
    with pytest.raises(ValueError, match="at least one"):
        Gate([])


@pytest.mark.parametrize(
    "wrong",
    [
        *({"alpha": x} for x in (0.0, 1e-12, 0.5, math.nan)),
        *({"min_effect": x} for x in (-0.1, 1.0)),
        *({"max_regression": x} for x in (0.0, math.nan)),
        {"confirm_launches": 0},
    ],
)
def test_settings_out_of_range_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Gate(STEADY, **wrong)  # type: ignore[arg-type]


def test_one_stored_launch_says_that_the_spread_is_assumed() -> None:
    gate = Gate([[100.0, 100.1]])
    assert gate.prior_only
    assert any("prior-only" in r for r in gate.screen([99.0]).reasons)
    assert not Gate(STEADY).prior_only


def test_too_thin_evidence_says_what_would_mend_it() -> None:
    gate = Gate([100.0, 101.0, 99.0], max_regression=0.04)
    outcome = gate.screen([100.0])
    assert outcome.mde is not None
    assert outcome.mde > 0.04
    assert outcome.required_launches is not None
    assert any("underpowered" in r and str(outcome.required_launches) in r for r in outcome.reasons)
    assert Gate(STEADY, max_regression=0.06).screen([100.0]).required_launches is None


def test_required_launches_is_the_least_that_do() -> None:
    gate = Gate([100.0, 101.0, 99.0])
    needed = gate.required_launches(0.04)
    assert needed is not None
    rng = np.random.default_rng(0)
    shape = rng.normal(0, 1, needed)
    shape = (shape - shape.mean()) / shape.std(ddof=1) * gate.spread

    def mde(k: int) -> float:
        part = shape[:k] - shape[:k].mean()
        part *= gate.spread / part.std(ddof=1)
        return Gate(list(np.exp(part) * 100), prior=Prior(4.0, gate.spread)).mde

    assert mde(needed) == pytest.approx(0.04, rel=0.1)
    assert mde(needed - 2) > 0.04
    assert gate.required_launches(0.011) is None


def test_two_groups_of_launches_are_inconclusive_not_passed() -> None:
    stored = [100.0, 100.2, 94.0, 94.1, 100.1]
    outcome = Gate(stored).screen([97.0])
    assert outcome.verdict == "inconclusive"
    assert any("two groups" in r for r in outcome.reasons)
    assert Gate(stored).confirm([70.0, 70.1]).verdict == "regressed", "a loss beyond even that band is one"


def test_launches_far_more_spread_than_usual_are_inconclusive() -> None:
    stored = [100.0, 84.0, 112.0, 93.0, 105.0]
    outcome = Gate(stored).screen([98.0])
    assert outcome.verdict == "inconclusive"
    assert any("is usual" in r for r in outcome.reasons)
    assert Gate(stored, prior=Prior(4.0, 0.1)).screen([98.0]).verdict == "passed", "where it is usual, it is no news"


def test_a_spread_that_still_shows_what_matters_is_no_obstacle_but_is_said() -> None:
    stored = [100.0, 100.2, 94.0, 94.1, 100.1]
    outcome = Gate(stored, max_regression=0.15).screen([97.0])
    assert outcome.verdict == "passed"
    assert any("two groups" in r for r in outcome.reasons)


@pytest.mark.parametrize("k", [3, 5, 10])
def test_one_odd_stored_launch_is_named_and_makes_nothing_inconclusive(k: int) -> None:
    stored = [100.0, 95.0, 100.2, 99.9, 100.1, 99.8, 100.0, 100.3, 99.9, 100.1][:k]
    gate = Gate(stored, prior=Prior(4.0, 0.006))
    assert gate.outliers == (1,)
    assert gate.center == pytest.approx(100, rel=0.05 / k), "plainly it would lie that far below"
    assert gate.screen([100.0]).verdict == "passed"
    assert gate.screen([90.0]).verdict == "suspect"
    assert Gate([100.0, 100.2, 99.9, 100.1, 99.8]).outliers == ()


def test_outliers_are_named_by_their_place_among_all_stored_launches() -> None:
    values, hosts = [100.0, 50.0, 100.2, 99.9, 94.0, 100.1], ["a", "b", "a", "a", "a", "a"]
    gate = Gate(values, prior=Prior(4.0, 0.006), hosts=hosts, host="a")
    assert gate.k == 5
    assert gate.outliers == (4,)


def test_one_stored_outlier_does_not_blind_the_gate() -> None:
    """Mean and variance put the limit at 93.5 and let this loss pass for good."""
    gate = Gate([100.0, 95.0, 100.3, 99.8, 100.1], prior=Prior(4.0, 0.006))
    assert gate.screen([96.0]).verdict == "suspect"
    assert gate.confirm([96.0, 96.2]).verdict == "regressed"


def test_weak_is_a_pass_that_would_not_have_seen_much() -> None:
    thin, sound = Gate([100.0], prior=Prior(4.0, 0.02)), Gate(STEADY)
    assert thin.weak
    assert thin.screen([100.0]).weak
    assert thin.screen([100.0]).required_launches is not None
    assert not sound.weak
    assert not sound.screen([100.0]).weak
    assert Gate(STEADY, max_regression=0.02).weak, "what is asked for counts first"
    assert not Gate([100.0], prior=Prior(4.0, 0.05), max_regression=0.9).weak


def test_confirming_launches_that_disagree_are_inconclusive() -> None:
    outcome = Gate(STEADY).confirm([88.0, 103.0])
    assert outcome.verdict == "inconclusive"
    assert any("fresh launches spread" in r for r in outcome.reasons)


def test_another_host_is_judged_more_widely_and_says_so() -> None:
    same = Gate(STEADY, hosts=["a"] * 5, host="a")
    other = Gate(STEADY, hosts=["a"] * 5, host="b")
    assert other.band[0] < same.band[0]
    assert other.other_host
    assert any("other host" in r for r in other.screen([100.0]).reasons)
    assert not any("other host" in r for r in same.screen([100.0]).reasons)
    assert same.screen([96.5]).verdict == "suspect"
    assert other.screen([96.5]).verdict == "passed"


def test_wandering_repetitions_raise_the_expected_spread_and_say_so() -> None:
    wandering = [387.0, 396.0, 386.0, 387.0, 367.0, 363.0, 355.0, 325.0, 313.0, 325.0]
    quiet = Gate([[387.0] * 10])
    loud = Gate([wandering])
    assert loud.spread > 2 * quiet.spread
    assert any("wander" in r for r in loud.screen([380.0]).reasons)


def test_more_launches_at_the_screen_see_smaller_losses() -> None:
    gate = Gate(STEADY)
    one, three = gate.screen([[98.3]]), gate.screen([[98.3], [98.4], [98.2]])
    assert (one.verdict, three.verdict) == ("passed", "suspect")
    assert three.launches == 3


def test_what_was_learned_is_the_prior_of_a_target() -> None:
    gate = Gate(STEADY)
    assert (gate.learned.d0, gate.learned.s0) == (gate.nu, gate.spread)
    loose = target_outcome([100.0], 104.5)
    assert loose.verdict == "passed"
    assert target_outcome([100.0], 104.5, prior=gate.learned).verdict == "regressed"


def test_numpy_arrays_and_integers_are_launches_too() -> None:
    gate = Gate(np.array([100, 101, 99]))  # type: ignore[arg-type]
    assert gate.k == 3
    assert gate.screen(np.array([100, 101])).launches == 1  # type: ignore[arg-type]
    assert gate.screen(100.0).verdict == "passed"
