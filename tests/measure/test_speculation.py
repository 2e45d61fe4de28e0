"""Acceptance over a window is what two counters say, not a gauge of the last steps of some request."""

from __future__ import annotations

import pytest

from pytest_llmperf.engines.base import Counters
from pytest_llmperf.engines.sglang.sglang_adapter import SGLang
from pytest_llmperf.measure.checks.traffic import difference, speculation


def counters(gauges: list[float], steps: int, tokens: int) -> Counters:
    """What SGLang publishes; a gauge for each data-parallel rank."""
    lines = ["# TYPE sglang:spec_accept_length gauge"]
    lines += [f'sglang:spec_accept_length{{dp_rank="{i}",tp_rank="{i}"}} {v}' for i, v in enumerate(gauges)]
    lines += [f'sglang:spec_verify_calls_total{{model_name="m"}} {steps}']
    lines += [f'sglang:generation_tokens_total{{is_streaming="true",model_name="m"}} {tokens}']
    return SGLang().counters("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    "gauges", [[3.1], [2.0] + [0.0] * 7, [2.0, 3.67, 4.64]], ids=["of an earlier request", "idle ranks", "stale ranks"]
)
def test_tokens_by_verify_steps(gauges: list[float]) -> None:
    """sglang#3152, sglang#34743"""
    delta = difference(counters(gauges, 1000, 3100), counters(gauges, 1050, 3201))
    assert speculation(delta, 100.0, requests=1) == {"acceptance_length": 2.0, "steps_s": 50.0}


def test_without_verify_steps_there_is_none() -> None:
    assert speculation(difference(counters([3.1], 50, 100), counters([3.1], 50, 200)), 100.0) == {}
    assert speculation(Counters(drafts=5), 100.0) == {}
