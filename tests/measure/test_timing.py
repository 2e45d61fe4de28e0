"""Metric definitions on hand-made answers, against the wrong readings that they must not give."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.measure.client.answer import Answer
from pytest_llmperf.measure.client.timing import timing, weighted_percentiles
from pytest_llmperf.measure.workloads import Workload

MS = 1_000_000


def answer(at_ms: list[float], total: int, tokens: list[int] | None = None) -> Answer:
    at_ns = tuple(int(at * MS) for at in at_ms)
    return Answer(at_ns, tuple(tokens) if tokens else None, completion_tokens=total)


def test_one_token_a_chunk() -> None:
    times = timing(answer([100, 110, 120, 130], 4), 50 * MS)
    assert (times.ttft_ms, times.e2e_ms, times.decode_tok_s, times.slack) == (50, 80, 100, 0)
    assert times.itl_ms(50, 99) == (10, 10)


def test_several_tokens_a_chunk_spread_their_gap() -> None:
    times = timing(answer([40, 80, 120], 12, [4, 4, 4]), 0)
    assert times.decode_tok_s == pytest.approx(100)  # not 11 / 80 ms
    assert times.itl_ms(50) == (10,)  # not 40


def test_known_tokens_are_used_as_they_are() -> None:
    times = timing(answer([10, 50, 60], 6, [1, 4, 1]), 0)
    assert times.decode_tok_s == pytest.approx(100)
    assert not times.slack


def test_an_unknown_first_chunk_is_the_middle_of_its_bounds() -> None:
    """Of 10 tokens in 4 chunks the first holds 1 to 7: 9 or 3 tokens in 30 ms."""
    times = timing(answer([0, 10, 20, 30], 10), 0)
    assert times.tokens[0] == 4
    assert times.decode_tok_s == pytest.approx((9 + 3) / 2 / 0.030)
    assert times.slack == pytest.approx(9 / 3 - 1)


def test_sixty_tokens_in_the_first_chunk_or_in_a_swallowed_tail_are_not_guessed() -> None:
    """60 tokens buffered into the first chunk, or never sent: both read as 85 % too fast when n_1 is taken for one."""
    for at in (np.arange(68) * 10.0, np.arange(68) * 10.0 + 600):
        assert timing(answer(list(at), 127), 0).slack == pytest.approx(126 / 67 - 1)


def test_what_arrives_with_the_first_chunk_is_in_no_gap() -> None:
    times = timing(answer([0, 0, 10, 20, 30], 8), 0)
    assert times.slack == pytest.approx((8 - 2) / (5 - 2) - 1)


def test_events_of_one_segment_are_one_arrival() -> None:
    times = timing(answer([80] * 8 + [160] * 8 + [240] * 8, 24), 0)
    assert times.decode_tok_s == pytest.approx(100)  # not 23 / 160 ms
    assert times.itl_ms(50) == (10,)  # not 0


def test_a_stall_shows_in_the_99th_percentile() -> None:
    at = np.cumsum(([10.0] * 49 + [205.0]) * 2)
    assert timing(answer(list(at), 100), 0).itl_ms(99)[0] > 100


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt_tokens": 0},
        {"output_tokens": "many"},
        {"repetitions": 2.5},
        {"concurrency": True},
        {"requests": 0},
        {"rate": 0},
        {"rate": math.nan},
        {"seconds": -1},
        {"precision": -0.1},
        {"chat": "yes"},
        {"max_repetitions": None},
    ],
)
def test_a_workload_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    [(name, value)] = wrong.items()
    with pytest.raises(ConfigError, match=f"^{name}={value!r} must be "):
        Workload(**wrong)


def test_a_workload_is_known_by_what_is_said() -> None:
    assert Workload(precision=0, rate=5, requests=None).identity()["rate"] == 5
    assert "seconds" not in Workload().identity()


@given(
    st.lists(st.tuples(st.floats(0.1, 1e3), st.integers(1, 5)), min_size=1, max_size=30),
    st.floats(0, 100),
)
def test_weighted_percentiles_are_those_of_the_repeated_values(pairs: list[tuple[float, int]], percent: float) -> None:
    values = np.array([v for v, _ in pairs])
    weights = np.array([w for _, w in pairs])
    expected = np.percentile(np.repeat(values, weights), percent)
    assert weighted_percentiles(values, weights.astype(float), [percent])[0] == pytest.approx(expected)
