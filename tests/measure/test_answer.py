"""What an answer says, from events alone."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.measure.client.answer import Answer, read_answer
from pytest_llmperf.measure.client.body import Event, parse_http, split_events
from pytest_llmperf.measure.client.timing import timing
from pytest_llmperf.measure.client.wire import Stamped

MS = 1_000_000


def events(*bodies: Any, step_ms: int = 10) -> list[Event]:
    """One event every ``step_ms``."""
    return [
        Event((i + 1) * step_ms * MS, (body if isinstance(body, str) else json.dumps(body)).encode())
        for i, body in enumerate(bodies)
    ]


def text(value: str, finish: str | None = None, usage: Any = None) -> dict[str, Any]:
    return {"model": "m", "choices": [{"text": value, "finish_reason": finish}], "usage": usage}


def delta(finish: str | None = None, **parts: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"delta": parts, "finish_reason": finish}]}


def usage(tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}}


def at_ms(answer: Answer) -> list[int]:
    return [at // MS for at in answer.at_ns]


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
    assert (at_ms(answer), answer.tokens) == ([20, 30, 40], (2, 1, 1))
    assert not timing(answer, 0).slack


def test_usage_in_every_chunk_that_does_not_add_up_is_not_believed() -> None:
    answer = read_answer(events(text("a", usage={"completion_tokens": 1}), text("b", "length"), usage(2)))
    assert (at_ms(answer), answer.tokens) == ([10, 20], None)


def test_tokens_without_text_are_arrivals_while_tokens_are_missing() -> None:
    answer = read_answer(events(text("a"), text(""), text("b"), text("", "length"), usage(4)))
    assert at_ms(answer) == [10, 20, 30, 40]  # the last one carries the finish and makes four of four


def test_a_blank_first_token_is_not_taken_for_the_finish() -> None:
    """One of them carried the fourth token: read as the finish, TTFT was 20 ms for 10, and said to be exact."""
    answer = read_answer(events(text(""), text("a"), text(""), text("b"), text("", "length"), usage(4)))
    assert at_ms(answer) == [20, 30, 40]
    assert timing(answer, 0).slack == 0.5


def test_llama_cpp_counts_with_every_chunk() -> None:
    said = [{**text(word), "timings": {"predicted_n": n}} for word, n in (("ab", 2), ("c", 3), ("", 4), ("d", 5))]
    answer = read_answer(events(*said, {**text("", "length"), "timings": {"predicted_n": 5}}, usage(5)))
    assert (at_ms(answer), answer.tokens) == ([10, 20, 30, 40], (2, 1, 1, 1))


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
    assert "boom" in str(read_answer([Event(0, b'{"message": "boom"}', "error")]).problem)


def test_text_that_is_no_unicode_is_content_all_the_same() -> None:
    broken = Event(10 * MS, b'{"model": "m", "choices": [{"text": "\xff"}]}')
    half_a_pair = Event(20 * MS, b'{"model": "m", "choices": [{"text": "\\ud83d"}]}')
    answer = read_answer([broken, half_a_pair])
    assert (at_ms(answer), answer.model, answer.problem) == ([10, 20], "m", None)


def test_endless_nesting_is_a_problem() -> None:
    assert "not JSON" in str(read_answer(events("[" * 100_000)).problem)


def test_the_last_model_counts() -> None:
    answer = read_answer(events(text("a"), {**text("b"), "model": "n", "id": "x"}, usage(2)))
    assert (answer.model, answer.id) == ("n", "x")


def test_events_are_stamped_by_the_read_that_completed_them() -> None:
    pieces = [Stamped(1, b": ping\n\ndata: a\r\n\r\nda"), Stamped(2, b"ta: b1\ndata:b2\n"), Stamped(3, b"\ndata: c")]
    assert [(e.at_ns, e.data) for e in split_events(pieces)] == [(1, b"a"), (3, b"b1\nb2"), (3, b"c")]


def test_events_of_one_read_share_its_stamp_and_one_of_three_reads_has_the_last() -> None:
    pieces = [
        Stamped(1, b"data: a\n\ndata: b\n\n", 5),
        *(Stamped(i, b"data: c\n\n"[3 * i - 6 : 3 * i - 3]) for i in (2, 3, 4)),
    ]
    assert [(e.at_ns, e.data, e.delay_ns) for e in split_events(pieces)] == [
        (1, b"a", 5),
        (1, b"b", 5),
        (4, b"c", None),
    ]


@pytest.mark.parametrize(
    ("body", "data"),
    [
        (b"data: a\rdata: b\n\n", b"a\nb"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"data:a\n\n", b"a"),
        (b"data: a\r\n\r\n", b"a"),
    ],
)
def test_an_event_in_other_clothes(body: bytes, data: bytes) -> None:
    assert [e.data for e in split_events([Stamped(1, body)])] == [data]


def test_a_line_separator_inside_json_does_not_split_an_event() -> None:
    assert split_events([Stamped(1, "data: x\u2028y\n\n".encode())])[0].data.decode() == "x\u2028y"


KEYS = (
    *("choices", "delta", "text", "content", "tool_calls", "function", "usage", "completion_tokens", "model"),
    *("finish_reason", "prompt_tokens_details", "cached_tokens", "error", "id"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=4))
def test_whatever_a_server_says_is_read_without_an_error(bodies: list[Any]) -> None:
    answer = read_answer(events(*bodies))
    if answer.completion_tokens and answer.at_ns:
        timing(answer, 0)


@given(st.lists(st.binary(max_size=40), max_size=6), st.booleans())
def test_whatever_bytes_come_are_parsed_without_an_error(parts: list[bytes], chunked: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + (b"transfer-encoding: chunked\r\n" if chunked else b"") + b"\r\n"
    for start in (b"", head):
        response = parse_http([Stamped(i, part) for i, part in enumerate([start, *parts])])
        split_events(response.pieces)


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_framing_does_not_depend_on_where_reads_are_cut(values: list[str], rng: random.Random) -> None:
    body = b"".join(f"data: {json.dumps(v)}\n\n".encode() for v in values)
    wire = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    cuts = sorted(rng.randrange(len(body) + 1) for _ in range(3))
    for a, b in itertools.pairwise([0, *cuts, len(body)]):
        if b > a:
            wire += b"%x\r\n%b\r\n" % (b - a, body[a:b])
    wire += b"0\r\n\r\n"
    cuts = sorted(rng.randrange(len(wire) + 1) for _ in range(6))
    reads = [Stamped(b, wire[a:b]) for a, b in itertools.pairwise([0, *cuts, len(wire)])]
    response = parse_http(reads)
    assert response.complete
    assert [json.loads(e.data) for e in split_events(response.pieces)] == values


@pytest.mark.parametrize(
    ("wire", "status", "complete", "error"),
    [
        (b"", None, False, "hung up before it answered"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", None, False, "not HTTP"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n", 204, True, None),
        (b"HTTP/1.0 200\r\n\r\nhi", 200, False, "no end of the body"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhi", 200, False, "2 of 5 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n-5\r\nhello", 200, False, "not an HTTP chunk"),
    ],
)
def test_heads_and_lengths(wire: bytes, status: int | None, complete: bool, error: str | None) -> None:
    response = parse_http([Stamped(1, wire)])
    assert (response.status, response.complete) == (status, complete)
    assert (error or "") in (response.error or "")
