"""Streams that other clients misread, each against what the stand-in truly sent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import StartFake
from tests.measure.conftest import Measure, assert_true

#: Slow enough for a busy machine to stay below one gap, quick enough for a test.
PACE = {"FAKE_ITL_MS": 10, "FAKE_TTFT_MS": 40}

SHAPES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("vllm", {}, {}),
    "plain chat": ("vllm", {}, {"chat": True}),
    "chat, finish in a chunk of its own": ("sglang", {}, {"chat": True}),
    "four tokens a chunk": ("vllm", {"TOKENS_PER_CHUNK": 4}, {}),
    "mixed tokens a chunk": ("sglang", {"TOKENS_PER_CHUNK": "1,4,2"}, {}),
    "role-only chunk early": ("vllm", {"ROLE_CHUNK": "early"}, {"chat": True}),
    "role-only chunk with the first": ("sglang", {"ROLE_CHUNK": "with_first"}, {"chat": True}),
    "reasoning first": ("sglang", {"REASONING_TOKENS": 10}, {"chat": True}),
    "reasoning under its other name": (
        "vllm",
        {"REASONING_TOKENS": 10, "REASONING_FIELD": "reasoning"},
        {"chat": True},
    ),
    "text that retokenises shorter": ("vllm", {"TOKEN_TEXT": "a"}, {}),
    "eight events in a segment": ("vllm", {"EVENTS_PER_SEGMENT": 8}, {}),
    "tokens without text": ("vllm", {"BLANK_EVERY": 3}, {}),
    "stalls": ("vllm", {"STALL": "60:10"}, {}),
    "one event over several reads": ("vllm", {"SPLIT_EVENTS": 3}, {}),
    "a null usage": ("sglang", {"USAGE_NULL": 1}, {"chat": True}),
    "usage in the last chunk": ("vllm", {"USAGE": "in_last"}, {}),
    "usage without being asked": ("vllm", {"USAGE": "always"}, {}),
    "an empty first chunk": ("vllm", {"EMPTY_FIRST": 1}, {}),
    "late headers": ("vllm", {"LATE_HEADERS": 1}, {}),
    "a chunk after finish_reason": ("vllm", {"AFTER_FINISH_MS": 30}, {}),
    "a chunk after finish_reason in chat": ("sglang", {"AFTER_FINISH_MS": 30}, {"chat": True}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_metric_is_true(fake_server: StartFake, measure: Measure, shape: str) -> None:
    dialect, settings, workload = SHAPES[shape]
    server = fake_server(dialect, env={**PACE, **{f"FAKE_{k}": v for k, v in settings.items()}})
    run = measure(server, **workload)
    assert_true(server, run)
    assert {r.output_tokens for r in run.requests} == {24}
    tokens_in_a_chunk = sum(r.output_tokens for r in run.requests) / sum(r.chunks for r in run.requests)
    several = [f"{tokens_in_a_chunk:.2f} tokens in a chunk"] if tokens_in_a_chunk >= 1.05 else []
    assert [note for note in run.measurement.notes if "steady" not in note] == several
