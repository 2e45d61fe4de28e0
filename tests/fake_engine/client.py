"""The plainest possible client, for tests that ask the stand-in something without this project's own client."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Streamed:
    """A streamed answer: events as parsed JSON, whether [DONE] came and the body ended well, number of comments."""

    status: int
    events: tuple[dict[str, Any], ...]
    done: bool
    whole: bool
    comments: int

    @property
    def texts(self) -> list[str]:
        """The content of each event that has a choice (None where a delta has no content)."""
        choices = [e["choices"][0] for e in self.events if e.get("choices")]
        return [c["text"] if "text" in c else c["delta"].get("content") for c in choices]

    @property
    def finish(self) -> list[str]:
        """Every finish reason that was sent."""
        reasons = [e["choices"][0]["finish_reason"] for e in self.events if e.get("choices")]
        return [reason for reason in reasons if reason]

    @property
    def usage(self) -> dict[str, Any] | None:
        """The last usage that was sent."""
        return next((e["usage"] for e in reversed(self.events) if e.get("usage")), None)


def _send(port: int, method: str, path: str, body: Any, key: str | None) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    return connection


def call(port: int, path: str, body: Any = None, *, method: str = "", key: str | None = None) -> tuple[int, Any]:
    """(status, body) of one request; the body is parsed when it is JSON."""
    connection = _send(port, method or ("GET" if body is None else "POST"), path, body, key)
    answer = connection.getresponse()
    text = answer.read().decode()
    is_json = (answer.getheader("content-type") or "").startswith("application/json")
    connection.close()
    return answer.status, json.loads(text) if is_json else text


def _ask(port: int, body: Mapping[str, Any] | None, chat: bool, key: str | None) -> http.client.HTTPConnection:
    asked: dict[str, Any] = {"max_tokens": 8, "stream": True, "stream_options": {"include_usage": True}}
    asked |= {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": [7, 8, 9]}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    return _send(port, "POST", path, asked | dict(body or {}), key)


def _read(connection: http.client.HTTPConnection) -> Streamed:
    answer = connection.getresponse()
    whole = True
    try:
        raw = answer.read()
    except http.client.IncompleteRead as error:
        raw, whole = error.partial, False
    connection.close()
    data = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]
    events = tuple(json.loads(d) for d in data if d != b"[DONE]")
    return Streamed(answer.status, events, b"[DONE]" in data, whole, raw.count(b": keep-alive\n"))


def stream(port: int, body: Mapping[str, Any] | None = None, *, chat: bool = False, key: str | None = None) -> Streamed:
    """Stream one generation with usage asked for: 8 tokens for a three-token prompt, unless ``body`` says otherwise."""
    return _read(_ask(port, body, chat, key))


def together(port: int, bodies: Sequence[Mapping[str, Any]]) -> list[Streamed]:
    """Send all requests, then read all answers."""
    connections = [_ask(port, body, False, None) for body in bodies]
    return [_read(connection) for connection in connections]
