"""HTTP/1.1 as far as an inference server needs it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    422: "Unprocessable Entity", 429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    keep_alive: bool


class BadRequestError(ValueError):
    """Bytes that are no HTTP request."""


def take_request(inbox: bytearray) -> Request | None:
    """Cut one whole request off the front of ``inbox``; None when more bytes are needed. Raises ``BadRequestError``."""
    end = inbox.find(b"\r\n\r\n")
    if end < 0:
        if len(inbox) > 1 << 16:
            raise BadRequestError("headers too long")
        return None
    try:
        first, *lines = bytes(inbox[:end]).decode("latin-1").split("\r\n")
        method, target, version = first.split(" ")
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
    except ValueError as error:
        raise BadRequestError(str(error)) from error
    start = end + 4
    if len(inbox) < start + length:
        return None
    body = bytes(inbox[start : start + length])
    del inbox[: start + length]
    path, _, query = target.partition("?")
    pairs = (pair.partition("=") for pair in query.split("&") if pair)
    keep = headers.get("connection", "").lower() != "close" and version == "HTTP/1.1"
    return Request(method, path, {k: v for k, _, v in pairs}, headers, body, keep)


def response(status: int, body: bytes, kind: str = "application/json", keep_alive: bool = True) -> bytes:
    """A whole response with its length."""
    tail = "" if keep_alive else "connection: close\r\n"
    head = (
        f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}\r\nserver: uvicorn\r\ncontent-length: {len(body)}\r\n"
        f"content-type: {kind}\r\n{tail}\r\n"
    )
    return head.encode() + body


def json_response(status: int, value: Any, keep_alive: bool = True) -> bytes:
    return response(status, json.dumps(value, separators=(",", ":")).encode(), keep_alive=keep_alive)


def stream_head(keep_alive: bool = True) -> bytes:
    """The head of a chunked event stream."""
    tail = "" if keep_alive else "connection: close\r\n"
    return (
        "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        f"{tail}transfer-encoding: chunked\r\n\r\n"
    ).encode()


def frame(data: bytes, at: float | None = None) -> bytes:
    """One HTTP chunk; ``at``: seconds after the request's arrival, in ns in a chunk extension (RFC 9112, 7.1.1)."""
    planned = b"" if at is None else b";at=%d" % round(at * 1e9)
    return b"%x%b\r\n%b\r\n" % (len(data), planned, data)


LAST_FRAME = b"0\r\n\r\n"
