"""When warm-up ends, when repetitions suffice, what stands out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pytest_llmperf.measure.steady import hiccups, is_steady, moved, relative_error, robust_spread, trend_p
from pytest_llmperf.stats.location import location


@pytest.mark.parametrize(
    ("values", "steady"),
    [
        ([100.0], False),
        ([50.0, 100.0], False),
        ([50.0, 100.0, 100.5], True),
        ([1187.0, 7653.0, 10996.0], False),  # kernels were still compiling
        ([1187.0, 7653.0, 10996.0, 11020.0], True),
        ([100.0, 90.0, 80.0], False),  # a card that heats up
        ([100.0, 90.0, 97.0], True),  # noise
        ([math.nan, 100.0], False),
    ],
)
def test_warm_up_ends_when_values_stop_moving(values: list[float], steady: bool) -> None:
    assert is_steady(values, 0.01) is steady


def test_noise_costs_a_request_or_two_and_never_the_budget() -> None:
    rng = np.random.default_rng(1)
    lengths = []
    for _ in range(300):
        values = list(100 * np.exp(rng.normal(0, 0.1, 12)))
        lengths.append(next((n for n in range(2, 13) if is_steady(values[:n], 0.01)), 13))
    assert np.mean(lengths) < 4
    assert np.mean(np.array(lengths) > 8) < 0.01


def test_spread_and_error_are_those_of_normal_data() -> None:
    rng = np.random.default_rng(2)
    samples = np.exp(rng.normal(0, 0.02, (2000, 10)))
    assert np.mean([robust_spread(s) for s in samples]) == pytest.approx(0.02, rel=0.05)
    actual = np.std([math.log(location(s)) for s in samples])
    assert np.mean([relative_error(s) for s in samples]) == pytest.approx(actual, rel=0.08)


def test_one_stalled_request_of_ten_moves_nothing_and_is_shown() -> None:
    values = [100.0, 100.2, 99.9, 100.1, 99.8, 50.0, 100.0, 100.3, 99.7, 100.1]
    assert location(values) == pytest.approx(100, rel=0.002)  # the mean moves by 5 %
    assert relative_error(values) < 0.002
    [(index, away)] = hiccups(values)
    assert (index, round(away, 2)) == (5, -0.5)
    assert not hiccups([100.0, 103.0, 98.0, 101.0, 97.0])


def test_trend_has_the_exact_p_of_kendalls_tau() -> None:
    values = [100.0, 99.0, 98.0, 97.0, 96.0]
    assert moved(values) == pytest.approx(-0.04, abs=0.001)
    assert trend_p(values) == pytest.approx(2 / math.factorial(5))
    assert (moved([100.0] * 5), trend_p([100.0] * 5)) == (0, 1)
    assert moved([100.0, 0.0, 90.0, 80.0]) == 0


def test_the_change_is_the_median_slope_of_all_pairs() -> None:
    values = [100.0, 103.0, 50.0, 108.0, 112.0, 119.0]
    wanted = float(stats.theilslopes(np.log(values)).slope)
    assert moved(values) == pytest.approx(math.expm1(wanted * 5))


def test_neighbours_that_resemble_each_other_make_no_trend() -> None:
    """Of 400 unchanging series whose neighbours correlate by 0.5, tau alone calls about 12 % a trend."""
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(400):
        noise = [0.0]
        for step in rng.normal(0, 0.05, 40):
            noise.append(0.5 * noise[-1] + float(step))
        alarms += trend_p([100 * math.exp(x) for x in noise[-20:]]) < 0.02
    assert alarms <= 32  # 4 % expected; 32 has a chance below 1e-3, and tau alone gives 48


def test_a_warm_up_that_levels_out_is_a_trend() -> None:
    rng = np.random.default_rng(6)
    for n in (8, 12, 20):
        rates = [100 * (1 - 0.15 * math.exp(-3 * i / n)) * (1 + float(rng.normal(0, 0.005))) for i in range(n)]
        assert moved(rates) > 0.05
        assert trend_p(rates) < 0.02
