"""A launch order in which a linear drift cancels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.stats import effects
from pytest_llmperf.tuning.order import launch_order


def names(count: int) -> list[str]:
    return [f"v{i}" for i in range(count)]


@given(st.integers(1, 30), st.integers(1, 6))
def test_every_variation_is_launched_as_often_as_asked_and_starts_at_the_base(count: int, launches: int) -> None:
    order = launch_order(names(count), launches)
    for name in names(count):
        assert [s.repeat for s in order if s.name == name] == list(range(1, launches + 1))
    assert order[0].name == "base"
    assert order[-1].name == "base"


@given(st.integers(1, 30), st.integers(1, 3))
def test_every_config_has_the_same_mean_position(count: int, rounds: int) -> None:
    order = launch_order(names(count), 2 * rounds)
    middle = (len(order) - 1) / 2
    for name in ["base", *names(count)]:
        assert np.mean([i for i, s in enumerate(order) if s.name == name]) == middle


@given(st.integers(2, 40))
def test_the_base_comes_back_about_as_often_as_the_root_of_the_variations(count: int) -> None:
    order = launch_order(names(count), 2)
    base = [i for i, s in enumerate(order) if s.name == "base"]
    assert len(base) == 2 * max(1, round(count**0.5))
    between = np.diff(base)
    assert between.max() <= 2 * (count // max(1, round(count**0.5)) + 1) + 1


def test_a_drift_does_not_look_like_an_effect() -> None:
    """Speed falls 1 % from launch to launch: in the order written, the last config would look percents slow."""
    order = launch_order(names(6), 2)
    speeds: dict[str, list[float]] = {}
    for i, slot in enumerate(order):
        speeds.setdefault(slot.name, []).append(100 * float(np.exp(-0.01 * i)))
    base = speeds.pop("base")
    assert [e.ratio for e in effects(base, speeds)] == pytest.approx([1.0] * 6, abs=1e-12)


def test_wrong_requests() -> None:
    for variations, launches in (([], 2), (["a"], 0), (["a", "a"], 2), (["base"], 2)):
        with pytest.raises(ValueError, match="distinct names"):
            launch_order(variations, launches)
