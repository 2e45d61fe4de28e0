"""The bend of a load curve: found where it is, not where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_llmperf.tuning.knee import find_knee

STREAMS = [1, 2, 4, 8, 16, 32, 64, 128]


def curve(
    knee: float, *, noise: float = 0.0, seed: int = 0, after: float = 0.0, peak: float = 2370
) -> list[tuple[int, float]]:
    """Throughput that rises with the streams up to ``knee``, then with slope ``after``."""
    rng = np.random.default_rng(seed)
    return [
        (c, float(peak * min(c / knee, (c / knee) ** after) * np.exp(rng.normal(0, noise) if noise else 0.0)))
        for c in STREAMS
    ]


@pytest.mark.parametrize("knee", [4, 8, 16, 32])
def test_a_sharp_knee(knee: int) -> None:
    found = find_knee(curve(knee))
    assert found is not None
    assert found.concurrency == knee
    assert (found.before, found.after) == pytest.approx((1, 0), abs=1e-9)


@pytest.mark.parametrize("knee", [8, 16, 32])
def test_a_planted_knee_is_found_in_noise(knee: int) -> None:
    found = [find_knee(curve(knee, noise=0.03, seed=seed)) for seed in range(100)]
    assert sum(k is not None and k.concurrency == knee for k in found) >= 90


def test_repeated_launches_sharpen_it() -> None:
    points = [p for seed in range(4) for p in curve(16, noise=0.15, seed=seed)]
    found = find_knee(points)
    assert found is not None
    assert found.concurrency in (8, 16, 32)


def test_a_curve_that_still_rises_has_no_knee() -> None:
    for slope in (1.0, 0.8):
        assert find_knee([(c, 60.0 * c**slope) for c in STREAMS]) is None
        rng = np.random.default_rng(7)
        noisy = [[(c, float(60 * c**slope * np.exp(rng.normal(0, 0.05)))) for c in STREAMS] for _ in range(200)]
        assert sum(find_knee(points) is not None for points in noisy) <= 6


def test_noise_alone_has_no_knee() -> None:
    rng = np.random.default_rng(3)
    flat = [[(c, float(1000 * np.exp(rng.normal(0, 0.1)))) for c in STREAMS] for _ in range(200)]
    assert sum(find_knee(points) is not None for points in flat) <= 6


def test_throughput_that_falls_after_the_peak() -> None:
    found = find_knee(curve(16, after=-0.3))
    assert found is not None
    assert found.concurrency == 16
    assert found.after == pytest.approx(-0.3)


def test_a_mild_bend_is_no_knee() -> None:
    assert find_knee(curve(16, after=0.7)) is None


def test_too_few_points() -> None:
    assert find_knee([(1, 10.0), (2, 20.0), (4, 20.0)]) is None
    assert find_knee([]) is None


@pytest.mark.parametrize("point", [(0, 1.0), (1, 0.0), (1, float("nan")), (1, -3.0)])
def test_points_that_are_none(point: tuple[int, float]) -> None:
    with pytest.raises(ValueError, match="load curve needs"):
        find_knee([point])
