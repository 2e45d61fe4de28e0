"""A/B: interleaved, no more than the budget, right when it stops early."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pytest_llmperf.stats import Trial
from pytest_llmperf.tuning.ab_trial import Step, step, stopped

WITHIN = 0.004


def run(launch: Callable[[str], list[float]], budget: int) -> tuple[str, Step]:
    """Follow the steps to the end; returns the order and the last step."""
    made: dict[str, list[list[float]]] = {"a": [], "b": []}
    order = ""
    now = step(made["a"], made["b"], budget=budget)
    while now.side is not None:
        order += now.side
        made[now.side].append(launch(now.side))
        now = step(made["a"], made["b"], budget=budget)
        assert len(order) <= 2 * budget
    return order, now


def launcher(seed: int, effect: float, between: float = 0.01) -> Callable[[str], list[float]]:
    """Launches of 5 repetitions; b's are ``effect`` times a's."""
    rng = np.random.default_rng(seed)

    def launch(side: str) -> list[float]:
        level = 80 * (effect if side == "b" else 1) * np.exp(rng.normal(0, between))
        return [float(v) for v in level * np.exp(rng.normal(0, WITHIN, 5))]

    return launch


def test_it_alternates_so_that_drift_cancels_and_stops_at_the_budget() -> None:
    order, last = run(launcher(1, 1.0, 0.05), 6)
    assert order == "abbaabbaabba"[: len(order)]
    assert len(order) == 12
    assert last.trial.verdict == "undecided"


def test_a_clear_answer_stops_early() -> None:
    order, last = run(launcher(2, 1.30), 10)
    assert order == "abba"
    assert last.trial.verdict == "faster"
    assert last.trial.ratio is not None
    assert last.trial.ratio.low < 1.30 < last.trial.ratio.high


def test_a_planted_effect_is_found_and_named_the_right_way() -> None:
    for effect, verdict in ((1.10, "faster"), (0.90, "slower")):
        found = [run(launcher(seed, effect), 8)[1].trial.verdict for seed in range(60)]
        assert found.count(verdict) >= 57
        assert not [f for f in found if f in {"faster", "slower"} - {verdict}]


def test_no_effect_is_seldom_called_one_however_often_one_looks() -> None:
    found = [run(launcher(seed, 1.0), 8)[1].trial.verdict for seed in range(200)]
    wrong = sum(f in ("faster", "slower") for f in found)
    assert wrong <= 20  # 5 % of 200 are 10; above 20 would be a chance of 1 in 500


def test_the_interval_covers_the_truth_at_its_level() -> None:
    hits = 0
    for seed in range(200):
        ratio = run(launcher(seed, 1.03), 6)[1].trial.ratio
        assert ratio is not None
        hits += ratio.low <= 1.03 <= ratio.high
    assert hits >= 180


def test_one_pair_is_a_budget_too() -> None:
    order, last = run(launcher(3, 1.0), 1)
    assert order == "ab"
    assert last.trial.pairs == 1


def test_launches_in_another_order_are_refused() -> None:
    with pytest.raises(ValueError, match="are not the start of ABBA"):
        step([[1.0]] * 2, [], budget=2)


@pytest.mark.parametrize("values", [[[0.0]], [[float("nan")]], [[-1.0]]])
def test_unusable_launches_are_refused(values: list[list[float]]) -> None:
    with pytest.raises(ValueError, match=r"."):
        step(values, [[1.0]], budget=1)


def test_launches_that_spread_far_more_than_usual_are_said() -> None:
    calm, wild = Trial("undecided", None, 3, 3, 0.004), Trial("undecided", None, 3, 3, 0.08, unsteady=True)
    assert "spread" not in stopped(calm)
    assert "launches of a side spread by 8.0%, more than is usual" in stopped(wild)
