"""What an answer says, from events alone."""

from __future__ import annotations

import json
from typing import Any

from pytest_llmperf.measure.answer import Answer, read_answer
from pytest_llmperf.measure.body import Event, split_events
from pytest_llmperf.measure.timing import timing
from pytest_llmperf.measure.wire import Stamped

MS = 1_000_000


def events(*bodies: Any, step_ms: int = 10) -> list[Event]:
    """One event every ``step_ms``."""
    return [
        Event((i + 1) * step_ms * MS, body if isinstance(body, str) else json.dumps(body))
        for i, body in enumerate(bodies)
    ]


def text(value: str, finish: str | None = None, usage: Any = None) -> dict[str, Any]:
    return {"model": "m", "choices": [{"text": value, "finish_reason": finish}], "usage": usage}


def delta(finish: str | None = None, **parts: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"delta": parts, "finish_reason": finish}]}


def usage(tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}}


def at_ms(answer: Answer) -> list[int]:
    return [chunk.at_ns // MS for chunk in answer.chunks]


def test_every_kind_of_content_is_a_token() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}
    answer = read_answer(
        events(
            delta(role="assistant", content=""),
            delta(reasoning_content="hm"),
            delta(reasoning="hm"),
            delta(content="yes"),
            delta(refusal="no"),
            delta(tool_calls=[call]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}]),
            delta("tool_calls"),
            usage(6),
            "[DONE]",
        )
    )
    assert at_ms(answer) == [20, 30, 40, 50, 60, 70]
    assert (answer.finish_reason, answer.completion_tokens, answer.prompt_tokens) == ("tool_calls", 6, 3)


def test_a_role_only_chunk_and_a_null_usage_are_nothing() -> None:
    answer = read_answer(events(delta(role="assistant"), delta(content="a"), {"choices": [], "usage": None}, usage(1)))
    assert at_ms(answer) == [20]


def test_usage_in_every_chunk_counts_its_tokens() -> None:
    def told(value: str, tokens: int, finish: str | None = None) -> dict[str, Any]:
        return text(value, finish, {"prompt_tokens": 3, "completion_tokens": tokens})

    answer = read_answer(events(told("", 0), told("ab", 2), told("", 3), told("c", 4, "length"), told("", 4), usage(4)))
    assert [(c.at_ns // MS, c.tokens) for c in answer.chunks] == [(20, 2), (30, 1), (40, 1)]
    assert timing(answer, 0).exact


def test_usage_in_every_chunk_that_does_not_add_up_is_not_believed() -> None:
    answer = read_answer(events(text("a", usage={"completion_tokens": 1}), text("b", "length"), usage(2)))
    assert [c.tokens for c in answer.chunks] == [None, None]


def test_tokens_without_text_are_arrivals_while_tokens_are_missing() -> None:
    answer = read_answer(events(text(""), text("a"), text(""), text("b"), text("", "length"), usage(4)))
    assert at_ms(answer) == [20, 30, 40, 50]  # the last one carries the finish and makes four of four


def test_an_empty_finish_is_no_token_when_chunks_hold_several() -> None:
    answer = read_answer(events(text("abcd"), text("efgh"), text("", "length"), usage(8)))
    assert at_ms(answer) == [10, 20]


def test_chunks_after_the_finish_are_nothing() -> None:
    answer = read_answer(events(text("a"), text("b", "length"), text(""), usage(3)))
    assert at_ms(answer) == [10, 20]


def test_errors_and_rubbish_are_problems() -> None:
    assert "not JSON" in str(read_answer(events("{")).problem)
    assert "not an object" in str(read_answer(events("[1]")).problem)
    assert "out of memory" in str(read_answer(events({"error": {"message": "out of memory"}})).problem)
    assert "boom" in str(read_answer([Event(0, '{"message": "boom"}', "error")]).problem)


def test_events_are_stamped_by_the_read_that_completed_them() -> None:
    pieces = [Stamped(1, b": ping\n\ndata: a\r\n\r\nda"), Stamped(2, b"ta: b1\ndata:b2\n"), Stamped(3, b"\ndata: c")]
    assert [(e.at_ns, e.data) for e in split_events(pieces)] == [(1, "a"), (3, "b1\nb2"), (3, "c")]


def test_a_line_separator_inside_json_does_not_split_an_event() -> None:
    assert split_events([Stamped(1, "data: x\u2028y\n\n".encode())])[0].data == "x\u2028y"
