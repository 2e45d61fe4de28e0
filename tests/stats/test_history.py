"""Slow drift and change points: found where planted, seldom where not."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.stats import drift, segments
from pytest_llmperf.stats.change_points import SHORTEST


def noise(rng: np.random.Generator, n: int, cv: float = 0.01) -> np.ndarray:
    return rng.normal(0, cv, n)


def test_drift_that_no_step_shows() -> None:
    falling = [100 * 0.995**i for i in range(12)]
    found = drift(falling[:5], falling[-3:])
    assert found.drifted
    assert found.change == pytest.approx(0.995 ** (10 - 2) - 1, rel=1e-3)
    assert (found.first, found.recent) == (5, 3)


def test_getting_better_is_no_drift() -> None:
    rising = [100 * 1.005**i for i in range(12)]
    assert not drift(rising[:5], rising[-3:]).drifted
    assert drift(rising[:5], rising[-3:], higher_is_better=False).drifted


def test_drift_below_the_practical_minimum_is_none() -> None:
    assert not drift([100.0] * 5, [99.3] * 3).drifted


def test_drift_keeps_its_level() -> None:
    rng, n = np.random.default_rng(1), 1000
    false = sum(drift(list(x[:5]), list(x[5:])).drifted for x in np.exp(rng.normal(0, 0.012, (n, 8))))
    assert false / n < 0.01 + 4 * math.sqrt(0.01 * 0.99 / n)


def test_drift_needs_measurements() -> None:
    with pytest.raises(ValueError, match="drift needs launches"):
        drift([100.0], [])


def test_a_steady_history_is_one_segment() -> None:
    rng = np.random.default_rng(2)
    split = sum(len(segments(list(np.exp(noise(rng, 30))))) > 1 for _ in range(300))
    assert split / 300 < 0.03


@pytest.mark.parametrize("step", [-0.05, 0.05])
def test_a_step_is_found_where_it_is(step: float) -> None:
    rng = np.random.default_rng(3)
    hit = 0
    for _ in range(100):
        logs = noise(rng, 30)
        logs[18:] += math.log1p(step)
        found = segments(list(100 * np.exp(logs)))
        hit += len(found) == 2 and abs(found[1].start - 18) <= 1
    assert hit >= 95


def test_segments_carry_level_and_change() -> None:
    first, second = segments([100.0, 100.4, 99.8, 100.1, 95.0, 95.2, 94.9, 95.1])
    assert (first.start, first.stop, second.start, second.stop) == (0, 4, 4, 8)
    assert first.change is None
    assert second.change == pytest.approx(second.value / first.value - 1)


def test_a_passing_dip_is_three_segments() -> None:
    values = [100.0] * 8 + [90.0] * 4 + [100.0] * 8
    assert [s.start for s in segments(values)] == [0, 8, 12]


def test_one_outlier_is_no_change() -> None:
    assert len(segments([100.0] * 8 + [80.0] + [100.0] * 8)) == 1


@given(st.lists(st.floats(50, 150), min_size=1, max_size=40))
@settings(deadline=None)
def test_segments_tile_the_history(values: list[float]) -> None:
    found = segments(values)
    assert found[0].start == 0
    assert found[-1].stop == len(values)
    assert all(a.stop == b.start for a, b in pairwise(found))
    assert len(found) == 1 or all(s.stop - s.start >= SHORTEST for s in found)
