"""Who lost a speculative speed: planted losses of acceptance and of steps/s, alone and together."""

from __future__ import annotations

import pytest

from pytest_llmperf.baselines.series import StoredLaunch
from pytest_llmperf.baselines.speculative_loss import blame


def launch(length: float | None, steps: float, metric: str = "decode_tok_s") -> StoredLaunch:
    metrics = {metric: (steps * (length or 1),) * 3}
    if length is not None:
        metrics["acceptance_length"] = (length,) * 3
    return StoredLaunch(f"{length}-{steps}", "2026-01-01T00:00:00Z", "host", None, metrics)


def who(stored: list[StoredLaunch], fresh: list[StoredLaunch], metric: str = "decode_tok_s") -> str | None:
    said = blame(metric, stored, fresh)
    return said.partition(" lost")[0] if said else None


@pytest.mark.parametrize(
    ("length", "steps", "expected"),
    [
        (2.0, 100.0, "the drafter"),
        (3.0, 80.0, "the kernels"),
        (2.0, 120.0, "the drafter"),
        (3.5, 70.0, "the kernels"),
        (2.7, 90.0, "drafter and kernels both"),
        (2.0, 95.0, "the drafter"),
        (2.9, 70.0, "the kernels"),
    ],
)
def test_the_part_that_bears_most_of_the_loss_is_named(length: float, steps: float, expected: str) -> None:
    assert who([launch(3.0, 100.0)], [launch(length, steps)]) == expected


def test_numbers_of_both_parts_are_given() -> None:
    stored, fresh = [launch(3.0, 100.0), launch(3.0, 100.0)], [launch(1.5, 98.0)]
    assert blame("decode_tok_s", stored, fresh) == (
        "the drafter lost it: 1.500 tokens/step (-50.0%), 98.00 steps/s (-2.0%)"
    )


def test_a_stream_of_a_load_too() -> None:
    stored, fresh = (launch(x, 100.0, "stream_tok_s") for x in (3.0, 2.0))
    assert who([stored], [fresh], "stream_tok_s") == "the drafter"


def test_without_a_loss_or_speculation_nothing_is_said() -> None:
    assert blame("decode_tok_s", [launch(3.0, 100.0)], [launch(3.1, 100.0)]) is None
    assert blame("decode_tok_s", [launch(None, 100.0)], [launch(None, 50.0)]) is None
    assert blame("ttft_ms", [launch(3.0, 100.0)], [launch(2.0, 100.0)]) is None


def test_a_baseline_without_acceptance_says_so() -> None:
    said = blame("decode_tok_s", [launch(None, 300.0)], [launch(2.0, 100.0)])
    assert said == "the baseline holds no acceptance_length, so nothing tells the drafter from the kernels"
