"""Every way the stand-in can misbehave, once."""

from __future__ import annotations

import http.client
import json

import pytest

from tests.conftest import FakeServer, StartFake
from tests.fake_engine.client import stream

# shape of a stream


def sent(server: FakeServer) -> list[list[float]]:
    chunks: list[list[float]] = server.truth[-1]["chunks"]
    return chunks


def test_tokens_per_chunk(fake_server: StartFake) -> None:
    server = fake_server(env={"FAKE_TOKENS_PER_CHUNK": "1,4,2"})
    answer = stream(server.port, {"max_tokens": 10})
    assert [len((text or "").split()) for text in answer.texts] == [1, 4, 2, 1, 2]
    assert [row[3] for row in sent(server)] == [1, 4, 2, 1, 2]


def test_several_events_in_one_write(fake_server: StartFake) -> None:
    server = fake_server(env={"FAKE_EVENTS_PER_SEGMENT": 4})
    stream(server.port, {"max_tokens": 10})
    writes = [row[1] for row in sent(server)]
    assert len(set(writes)) == 3
    assert writes[0] == writes[3] == sent(server)[3][0]
    assert writes[9] == sent(server)[9][0]


def test_one_event_over_several_writes(fake_server: StartFake) -> None:
    server = fake_server(env={"FAKE_SPLIT_EVENTS": 3, "FAKE_SPLIT_GAP_MS": 0.2, "FAKE_LATE_HEADERS": 1})
    answer = stream(server.port)
    assert len(answer.texts) == 8
    assert answer.done
    for due, intended, _, _ in sent(server):
        assert intended == pytest.approx(due + 0.0004, abs=1e-6)


def test_chat_role_first_chunk_early_or_not(fake_server: StartFake) -> None:
    for place, deltas in (("none", 8), ("with_first", 9)):
        server = fake_server("vllm", env={"FAKE_ROLE_CHUNK": place})
        answer = stream(server.port, chat=True)
        assert len(answer.texts) == deltas
        assert ("role" in answer.events[0]["choices"][0]["delta"]) == (place != "none")


@pytest.mark.parametrize("env", [{"FAKE_EMPTY_FIRST": 1, "FAKE_LATE_HEADERS": 1}, {"FAKE_ROLE_CHUNK": "early"}])
def test_an_early_chunk_comes_before_the_first_token(fake_server: StartFake, env: dict[str, object]) -> None:
    server = fake_server("vllm", env={**env, "FAKE_TTFT_MS": 60_000})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    body = '{"messages":[{"role":"user","content":"a"}],"stream":true,"max_tokens":2}'
    connection.request("POST", "/v1/chat/completions", body)
    assert b'"content":""' in connection.getresponse().readline()
    connection.close()


@pytest.mark.parametrize(("usage", "in_chunks", "at_end"), [("none", 0, 0), ("in_last", 1, 0)])
def test_where_usage_stands(fake_server: StartFake, usage: str, in_chunks: int, at_end: int) -> None:
    server = fake_server("vllm", env={"FAKE_USAGE": usage, "FAKE_USAGE_NULL": 1})
    answer = stream(server.port, chat=True)
    assert sum(1 for e in answer.events if e["choices"] and e["usage"]) == in_chunks
    assert sum(1 for e in answer.events if not e["choices"]) == at_end


def test_a_chunk_after_finish_reason(fake_server: StartFake) -> None:
    server = fake_server(env={"FAKE_AFTER_FINISH_MS": 5, "FAKE_COMMENTS": 1})
    answer = stream(server.port)
    assert answer.comments == 8
    assert [e["choices"][0]["finish_reason"] for e in answer.events[-3:-1]] == ["length", None]
    assert answer.done


def test_reasoning_then_content_then_a_tool_call(fake_server: StartFake) -> None:
    server = fake_server("vllm", env={"FAKE_REASONING_TOKENS": 3, "FAKE_TOOL_CALL_TOKENS": 2})
    answer = stream(server.port, chat=True)
    deltas = [e["choices"][0]["delta"] for e in answer.events if e["choices"]][1:]
    assert ["reasoning_content" in d for d in deltas] == [True] * 3 + [False] * 5
    assert ["content" in d for d in deltas] == [False] * 3 + [True] * 3 + [False] * 2
    assert deltas[6]["tool_calls"][0]["function"]["name"] == "look_up"
    assert deltas[7]["tool_calls"][0]["function"]["arguments"].strip().startswith("t")
    assert answer.finish == ["tool_calls"]


def test_text_that_says_less_than_usage(fake_server: StartFake) -> None:
    server = fake_server(env={"FAKE_TOKEN_TEXT": "a", "FAKE_BLANK_EVERY": 4, "FAKE_USAGE_OFF_BY": 1})
    answer = stream(server.port)
    assert answer.texts == ["a", "a", "a", "", "a", "a", "a", ""]
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == 9


# speed


def test_a_stall_delays_one_request_once(fake_server: StartFake) -> None:
    server = fake_server(env={"FAKE_STALL": "30:4@2"})
    for _ in range(3):
        stream(server.port)
    gaps = [
        [round((b[0] - a[0]) * 1e3) for a, b in zip(r["chunks"], r["chunks"][1:], strict=False)] for r in server.truth
    ]
    assert gaps == [[2] * 7, [2, 2, 32, 2, 2, 2, 2], [2] * 7]


def test_planted_effects_follow_flags_and_environment(fake_server: StartFake) -> None:
    effects = "attention_backend=triton:0.5;NCCL_PROTO=Simple:0.5;disable_custom_all_reduce:0.5"
    for flags, proto, step in (
        (("--attention-backend", "fa3"), "LL", 2),
        (("--attention-backend=triton", "--disable-custom-all-reduce"), "Simple", 16),
    ):
        server = fake_server("sglang", *flags, env={"FAKE_EFFECTS": effects, "NCCL_PROTO": proto})
        stream(server.port)
        assert server.truth[0]["step_s"] == pytest.approx(step / 1e3)


# broken requests


def test_each_broken_request_breaks_in_its_own_way(fake_server: StartFake) -> None:
    faults = {
        "EOS_AT": "0@1;5@2",
        "TRUNCATE_AT": "5@3",
        "RESET_AT": "5@4",
        "ERROR_EVENT_AT": "5@5",
        "HTTP_ERROR": "500@6;429@7,8",
        "GARBAGE_AT": "5@10",
    }
    server = fake_server("vllm", env={f"FAKE_{name}": value for name, value in faults.items()})
    empty, short, truncated = (stream(server.port, {"ignore_eos": True}) for _ in range(3))
    with pytest.raises(ConnectionResetError):
        stream(server.port)
    error_event = stream(server.port)
    statuses = [stream(server.port).status for _ in range(4)]
    with pytest.raises(json.JSONDecodeError):
        stream(server.port)

    assert (empty.texts, empty.done, len(short.texts), short.done) == ([], True, 5, True)
    assert short.finish == ["stop"]
    assert [answer.usage["completion_tokens"] for answer in (empty, short) if answer.usage] == [0, 5]
    assert (len(truncated.texts), truncated.done) == (5, False)
    assert error_event.events[5]["error"]["code"] == 500
    assert statuses == [500, 429, 429, 200]
    assert [(r["number"], r["end"], r["tokens"]) for r in server.truth] == [
        (1, "ok", 0),
        (2, "ok", 5),
        (3, "truncate_at", 5),
        (4, "reset_at", 5),
        (5, "error_event_at", 5),
        (9, "ok", 8),
        (10, "garbage_at", 5),
    ]


def test_a_truncated_stream_may_end_its_body_well(fake_server: StartFake) -> None:
    server = fake_server(env={"FAKE_TRUNCATE_AT": "5", "FAKE_TRUNCATE_CLEAN": 1})
    answer = stream(server.port)
    assert (len(answer.texts), answer.done, answer.whole) == (5, False, True)


def test_a_stream_that_falls_silent(fake_server: StartFake) -> None:
    server = fake_server(env={"FAKE_SILENT_AT": "5@1"})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=0.3)
    connection.request("POST", "/v1/completions", '{"prompt":"a","stream":true,"max_tokens":8}')
    with pytest.raises(TimeoutError):
        connection.getresponse().read()
    assert server.truth[0]["end"] == "silent_at"
    assert stream(server.port).done


def test_short_requests_may_be_left_out_of_the_count(fake_server: StartFake) -> None:
    server = fake_server(env={"FAKE_HTTP_ERROR": "500@1", "FAKE_NUMBER_FROM_TOKENS": 4})
    assert [stream(server.port, {"max_tokens": n}).status for n in (1, 1, 4)] == [200, 200, 500]


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_healthy_but_unable_to_generate(fake_server: StartFake, dialect: str) -> None:
    server = fake_server(dialect, env={"FAKE_GENERATION_BROKEN": 1})
    assert server.get("/health")[0] == 200
    assert stream(server.port).status == 500


def test_the_model_named_in_responses(fake_server: StartFake) -> None:
    server = fake_server(env={"FAKE_RESPONSE_MODEL": "other"})
    assert {e["model"] for e in stream(server.port).events} == {"other"}


def test_a_client_that_hangs_up_frees_its_place(fake_server: StartFake) -> None:
    server = fake_server("vllm", "--max-num-seqs", "1", env={"FAKE_ITL_MS": 50})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("POST", "/v1/completions", '{"prompt":"a","stream":true,"max_tokens":400}')
    answer = connection.getresponse()
    answer.read(50)
    answer.close()
    connection.close()
    assert stream(server.port, {"max_tokens": 2}).done
    assert [record["end"] for record in server.truth] == ["client gone", "ok"]
