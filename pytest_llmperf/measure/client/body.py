"""From raw reads to server-sent events, each stamped by the read that completed it.

The framing is undone here rather than by a library: a general parser costs twelve microseconds a chunk, half of what
this client spends in all, and needs only what an answer to one request can look like.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_llmperf.measure.client.wire import Stamped, chunk_size

_EVENT_END = re.compile(rb"\r?\n\r?\n|\r\r")
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |\r|$)")


@dataclass(frozen=True)
class Response:
    """An HTTP response. ``pieces``: body bytes as they arrived. ``complete``: the body ended as HTTP says it must."""

    status: int | None
    content_type: str
    pieces: tuple[Stamped, ...]
    complete: bool
    error: str | None = None

    @property
    def text(self) -> str:
        return b"".join(p.data for p in self.pieces).decode("utf-8", "replace")


class Event(NamedTuple):
    """The data of one server-sent event, UTF-8 if the server keeps to the standard."""

    at_ns: int
    data: bytes
    kind: str = "message"
    delay_ns: int | None = None


def parse_http(reads: Iterable[Stamped]) -> Response:
    """Undo HTTP/1.1 framing of one response (RFC 9112, 6 and 7)."""
    reads = list(reads)
    hung_up = bool(reads) and not reads[-1].data
    status, headers, body = _head(reads)
    if status is None:
        error = "the server hung up before it answered" if not any(r.data for r in reads) else "the answer is not HTTP"
        return Response(None, "", (), False, error)
    pieces: Sequence[Stamped]
    if b"chunked" in headers.get(b"transfer-encoding", b"").lower():
        pieces, complete, error = _dechunk(body)
    else:
        pieces = body
        length = headers.get(b"content-length", b"")
        have = sum(len(p.data) for p in body)
        complete = have == int(length) if length.isdigit() else hung_up
        error = f"{have} of {length.decode('latin-1')} bytes" if length else "no end of the body"
    kind = headers.get(b"content-type", b"").decode("latin-1")
    return Response(status, kind, tuple(pieces), complete, None if complete else error)


def _head(reads: Sequence[Stamped]) -> tuple[int | None, Mapping[bytes, bytes], list[Stamped]]:
    """(status, headers by lower-case name, reads of the body); interim responses are passed over."""
    head = b""
    for i, read in enumerate(reads):
        head += read.data
        while (end := head.find(b"\r\n\r\n")) >= 0:
            status = _STATUS.match(head)
            if status is None:
                return None, {}, []
            head, lines = head[end + 4 :], head[:end].split(b"\r\n")[1:]
            if not status[1].startswith(b"1"):
                fields = (line.partition(b":") for line in lines)
                headers = {name.strip().lower(): value.strip() for name, _, value in fields}
                return int(status[1]), headers, [read._replace(data=head), *reads[i + 1 :]]
    return None, {}, []


def _dechunk(body: Iterable[Stamped]) -> tuple[list[Stamped], bool, str]:
    """(pieces, whether the last chunk came, what was wrong)."""
    pieces: list[Stamped] = []
    rest = b""
    for at_ns, data, delay_ns in body:
        rest = rest + data if rest else data
        start = 0
        while (line := rest.find(b"\r\n", start)) >= 0:
            size = chunk_size(rest[start:line])
            if size < 0:
                return pieces, False, f"not an HTTP chunk: {rest[start:line][:20]!r}"
            if size == 0:
                return pieces, True, ""
            end = line + 2 + size
            if len(rest) < end + 2:
                break
            pieces.append(Stamped(at_ns, rest[line + 2 : end], delay_ns))
            start = end + 2
        rest = rest[start:]
    return pieces, False, "the connection ended inside the response"


def split_events(pieces: Sequence[Stamped]) -> tuple[Event, ...]:
    """Server-sent events of a body (WHATWG HTML, 9.2), however their bytes were cut up."""
    events: list[Event] = []
    rest = b""
    for at_ns, read, delay_ns in pieces:
        rest = rest + read if rest else read
        if rest.startswith(b"data: ") and rest.endswith(b"\n\n") and rest.count(b"\n") == 2 and b"\r" not in rest:
            # one event of one line, as nearly all are: no need to take it apart
            events.append(Event(at_ns, rest[6:-2], "message", delay_ns))
            rest = b""
            continue
        *done, rest = _EVENT_END.split(rest) if b"\r" in rest else rest.split(b"\n\n")
        for block in done:
            data, kind = _fields(block)
            if data is not None:
                events.append(Event(at_ns, data, kind, delay_ns))
    if rest.strip() and pieces:
        data, kind = _fields(rest)  # the last event of a server that closes without a blank line
        if data is not None:
            events.append(Event(pieces[-1].at_ns, data, kind, pieces[-1].delay_ns))
    return tuple(events)


def _fields(block: bytes) -> tuple[bytes | None, str]:
    data: list[bytes] = []
    kind = "message"
    for line in block.splitlines():  # as bytes: text would also split at U+2028, which JSON may hold
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value.decode("utf-8", "replace")
    return (b"\n".join(data) if data else None), kind
