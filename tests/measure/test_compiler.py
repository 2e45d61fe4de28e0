"""The bytes that are sent are those that openai would send, on whatever openai is installed."""

from __future__ import annotations

import json
import time
from typing import Any

import openai
import pytest

from pytest_llmperf.engines.base import Endpoint
from pytest_llmperf.errors import MeasurementError
from pytest_llmperf.measure.client.compiler import Compiler, http_library

ENDPOINT = Endpoint("127.0.0.1", 8000, "s3cret", path="/prefix")
COMMON: dict[str, Any] = {
    "model": "m",
    "max_tokens": 7,
    "temperature": 0.0,
    "stream_options": {"include_usage": True},
    "extra_body": {"ignore_eos": True, "min_tokens": 7},
}
KINDS: dict[str, list[dict[str, Any]]] = {
    "token ids": [{"prompt": [1, 2, 3]}, {"prompt": [4, 5, 6, 7]}],
    "text": [{"prompt": "one two"}, {"prompt": "drei vier fünf \u2028"}],
    "chat": [{"messages": [{"role": "user", "content": text}]} for text in ("hi", 'sag "ü"')],
}


def parts(payload: bytes) -> tuple[str, dict[str, str], Any]:
    """(request line, headers by lower-case name, body)."""
    head, _, body = payload.partition(b"\r\n\r\n")
    line, *headers = head.decode().split("\r\n")
    fields = dict(header.split(": ", 1) for header in headers)
    return line, {name.lower(): value for name, value in fields.items()}, json.loads(body)


def as_openai_sends(arguments: dict[str, Any]) -> tuple[str, dict[str, str], Any]:
    library, seen = http_library(), []

    def keep(request: Any) -> Any:
        seen.append(request)
        return library.Response(200, headers={"content-type": "text/event-stream"}, content=b"data: [DONE]\n\n")

    client = openai.OpenAI(
        api_key="s3cret", base_url=ENDPOINT.base_url, http_client=library.Client(transport=library.MockTransport(keep))
    )
    api: Any = client.chat.completions if "messages" in arguments else client.completions
    list(api.create(**arguments, stream=True))
    [request] = seen
    headers = {name.decode().lower(): value.decode() for name, value in request.headers.raw}
    return f"POST {request.url.raw_path.decode()} HTTP/1.1", headers, json.loads(request.read())


@pytest.mark.parametrize("kind", KINDS)
def test_every_request_is_as_openai_builds_it(kind: str) -> None:
    compiler = Compiler(ENDPOINT)
    for number, prompt in enumerate(KINDS[kind]):
        arguments = {**COMMON, **prompt}
        call = compiler.compile(f"r-{number}", arguments, prompt_tokens=3, output_tokens=7)
        line, headers, body = parts(call.payload)
        wanted_line, wanted_headers, wanted_body = as_openai_sends(arguments)
        assert (line, body) == (wanted_line, wanted_body)
        assert headers["x-request-id"] == f"r-{number}"
        assert (headers["connection"], headers["accept-encoding"]) == ("close", "identity")
        assert int(headers["content-length"]) == len(call.payload.partition(b"\r\n\r\n")[2])
        ours = {"x-request-id", "connection", "accept-encoding", "content-length", "x-stainless-raw-response"}
        assert {k: v for k, v in headers.items() if k not in ours} == {
            k: v for k, v in wanted_headers.items() if k not in ours
        }
        assert headers["authorization"] == "Bearer s3cret"
    compiler.close()


def test_another_kind_of_request_is_built_anew() -> None:
    compiler = Compiler(ENDPOINT)
    for usage in ({"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}):
        arguments = {**COMMON, "prompt": [1], "stream_options": usage}
        call = compiler.compile("r", arguments, prompt_tokens=1, output_tokens=7)
        assert parts(call.payload)[2]["stream_options"] == usage
    chat = compiler.compile("r", {**COMMON, **KINDS["chat"][0]}, prompt_tokens=1, output_tokens=7)
    assert parts(chat.payload)[0] == "POST /prefix/v1/chat/completions HTTP/1.1"
    compiler.close()


def test_a_thousand_requests_cost_less_than_a_hundred_of_openais() -> None:
    compiler = Compiler(ENDPOINT)
    arguments = {**COMMON, "prompt": list(range(128))}
    compiler.compile("r", arguments, prompt_tokens=128, output_tokens=7)
    start = time.process_time()
    for _ in range(100):
        as_openai_sends(arguments)
    openais = time.process_time() - start
    start = time.process_time()
    for number in range(1000):
        compiler.compile(f"r-{number}", arguments, prompt_tokens=128, output_tokens=7)
    assert time.process_time() - start < openais
    compiler.close()


def test_what_openai_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise openai.OpenAIError("no such thing")

    monkeypatch.setattr(openai.resources.Completions, "create", refuse)
    with pytest.raises(MeasurementError, match=r"could not build the request r: no such thing"):
        Compiler(ENDPOINT).compile("r", {**COMMON, "prompt": [1]}, prompt_tokens=1, output_tokens=7)
