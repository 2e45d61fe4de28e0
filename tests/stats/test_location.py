"""The value of a launch: efficient, hardly moved by one wild repetition, honest about wandering ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.stats import location
from pytest_llmperf.stats.location import launch_logs, log_location, squared_error, stack, wander

VALUES = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=30)


@given(VALUES, st.floats(1e-3, 1e3))
def test_scales_with_the_unit(values: list[float], factor: float) -> None:
    scaled = location([v * factor for v in values])
    assert scaled == pytest.approx(location(values) * factor, rel=1e-9)


@given(VALUES)
def test_lies_within_the_values_and_ignores_their_order(values: list[float]) -> None:
    found = location(values)
    assert min(values) * (1 - 1e-9) <= found <= max(values) * (1 + 1e-9)
    assert location(values[::-1]) == pytest.approx(found)


@given(VALUES)
def test_of_reciprocals_is_the_reciprocal(values: list[float]) -> None:
    """tok/s and ms per token agree about a launch."""
    assert location([1 / v for v in values]) == pytest.approx(1 / location(values), rel=1e-9)


def test_one_value_is_itself() -> None:
    assert location([82.5]) == pytest.approx(82.5)


def test_is_the_median_of_pairwise_means_of_logs() -> None:
    logs = [0.0, 1.0, 5.0]
    pairs = [0.0, 0.5, 2.5, 1.0, 3.0, 5.0]
    assert math.log(location(list(np.exp(logs)))) == pytest.approx(float(np.median(pairs)))


def test_one_hiccup_hardly_moves_it() -> None:
    steady = [414.0, 413.9, 414.1, 414.2, 413.8, 414.0, 414.1]
    assert location([*steady, 207.0]) == pytest.approx(414.0, rel=1e-3)


def test_costs_five_percent_efficiency_on_normal_values() -> None:
    logs = np.random.default_rng(1).normal(0, 1, (20_000, 20))
    efficiency = np.var(np.mean(logs, axis=1)) / np.var(log_location(logs))
    assert 0.92 < efficiency < 0.99


@pytest.mark.parametrize("values", [[], [0.0], [-1.0], [math.nan], [math.inf], [100.0, 0.0]])
def test_refuses_what_is_no_measurement(values: list[float]) -> None:
    with pytest.raises(ValueError, match="positive finite"):
        location(values)


def test_error_of_independent_repetitions() -> None:
    logs = np.random.default_rng(2).normal(0, 0.01, (20_000, 20))
    assert 1.0 <= float(np.mean(squared_error(logs))) / (0.01**2 / 20) < 1.6


def test_error_of_wandering_repetitions_is_far_more_than_naive() -> None:
    rng = np.random.default_rng(3)
    logs = np.empty((20_000, 10))
    logs[:, 0] = rng.normal(0, 0.04, 20_000)
    for i in range(1, 10):
        logs[:, i] = 0.8 * logs[:, i - 1] + rng.normal(0, 0.04 * 0.6, 20_000)
    true = float(np.var(np.mean(logs, axis=1)))
    naive = float(np.mean(np.var(logs, axis=1, ddof=1) / 10))
    assert naive < 0.2 * true
    assert 0.5 < float(np.mean(squared_error(logs))) / true < 1.5


def test_wander_needs_repetitions() -> None:
    assert wander([100.0, 101.0]) == 0.0
    assert wander([[100.0, 101.0]]) == 0.0
    assert wander([[100.0, 104.0, 98.0, 101.0]]) > 0.0
    assert wander(100.0) == 0.0


def test_a_flat_sequence_is_one_launch_or_several() -> None:
    one, several = stack([100.0, 101.0]), stack([100.0, 101.0], flat_is_one=False)
    assert one is not None
    assert several is not None
    assert (one.size, several.size) == (1, 2)
    mixed = stack([[100.0, 101.0], 99.0])
    assert mixed is not None
    assert mixed.size == 2
    assert stack([]) is None
    assert stack([[100.0], []]) is None
    assert launch_logs([100.0, math.nan]) is None
