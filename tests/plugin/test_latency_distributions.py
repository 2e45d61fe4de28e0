"""Waits of requests and tokens as percentiles and histograms: weighted by token, pooled over launches."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_llmperf.measure.latencies import Latencies
from pytest_llmperf.session.latency_distributions import distributions


def waits(ttft: list[float], itl: list[float], tokens: list[float]) -> Latencies:
    return Latencies(np.array(ttft), np.array(itl), np.array(tokens))


def test_a_chunk_counts_once_for_each_of_its_tokens() -> None:
    """As ``numpy.percentile`` of the repeated gaps, over both launches."""
    launches = [waits([10.0, 12.0], [1.0, 2.0], [3.0, 1.0]), waits([11.0], [4.0], [2.0])]
    ttft, itl = distributions(launches)
    assert (ttft.metric, ttft.count, ttft.percentiles["p50"]) == ("ttft_ms", 3, 11.0)
    repeated = [1.0, 1.0, 1.0, 2.0, 4.0, 4.0]
    assert (itl.metric, itl.count, sum(itl.counts)) == ("itl_ms", 6, 6)
    assert itl.percentiles == pytest.approx({f"p{p}": np.percentile(repeated, p) for p in (0, 50, 90, 95, 99, 100)})


def test_few_tokens_far_out_do_not_flatten_the_rest() -> None:
    [itl] = distributions([waits([], [*np.linspace(9, 11, 999), 900.0], [1.0] * 1000)])
    assert itl.edges[0] == 9
    assert itl.edges[-1] < 12
    assert (itl.count - sum(itl.counts), itl.percentiles["p100"]) == (5, 900.0)


def test_a_maximum_that_is_near_ends_the_axis() -> None:
    [ttft] = distributions([waits([10.0, 11.0, 12.0], [], [])])
    assert (ttft.edges[0], ttft.edges[-1], sum(ttft.counts)) == (10.0, 12.0, 3)


def test_equal_waits_and_none() -> None:
    [itl] = distributions([waits([], [5.0, 5.0], [4.0, 4.0])])
    assert (itl.count, sum(itl.counts), itl.percentiles["p99"]) == (8, 8, 5.0)
    assert distributions([]) == ()


def test_the_file_stays_small() -> None:
    [itl] = distributions([waits([], list(np.random.default_rng(1).gamma(9, 1, 100_000)), [1.0] * 100_000)])
    assert len(itl.counts) == 40
    assert all(len(repr(edge)) <= 7 for edge in itl.edges)
