"""From raw reads to server-sent events, each stamped by the read that completed it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import h11

from pytest_llmperf.measure.wire import Stamped

_EVENT_END = re.compile(rb"\r?\n\r?\n|\r\r")


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


@dataclass(frozen=True)
class Event:
    """The data of one server-sent event."""

    at_ns: int
    data: str
    kind: str = "message"
    delay_ns: int | None = None


def parse_http(reads: Iterable[Stamped], method: str = "POST") -> Response:
    """Undo HTTP/1.1 framing (h11)."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    status: int | None = None
    content_type = ""
    pieces: list[Stamped] = []
    try:
        for read in reads:
            connection.receive_data(read.data)
            while True:
                event = connection.next_event()
                if isinstance(event, h11.Response):
                    status = event.status_code
                    content_type = dict(event.headers).get(b"content-type", b"").decode("latin-1")
                elif isinstance(event, h11.Data):
                    pieces.append(Stamped(read.at_ns, bytes(event.data), read.delay_ns))
                elif isinstance(event, h11.EndOfMessage):
                    return Response(status, content_type, tuple(pieces), True)
                elif not isinstance(event, h11.InformationalResponse):
                    break  # NEED_DATA, PAUSED, ConnectionClosed
    except h11.RemoteProtocolError as error:
        return Response(status, content_type, tuple(pieces), False, str(error))
    return Response(status, content_type, tuple(pieces), False, "the connection ended inside the response")


def split_events(pieces: Sequence[Stamped]) -> tuple[Event, ...]:
    """Server-sent events of a body (WHATWG HTML, 9.2), however their bytes were cut up."""
    events: list[Event] = []
    rest = b""
    for piece in pieces:
        rest += piece.data
        done: list[bytes] = []
        at = 0
        while end := _EVENT_END.search(rest, at):
            done.append(rest[at : end.start()])
            at = end.end()
        rest = rest[at:]
        for block in done:
            data, kind = _fields(block)
            if data is not None:
                events.append(Event(piece.at_ns, data, kind, piece.delay_ns))
    if rest.strip() and pieces:
        data, kind = _fields(rest)  # the last event of a server that closes without a blank line
        if data is not None:
            events.append(Event(pieces[-1].at_ns, data, kind, pieces[-1].delay_ns))
    return tuple(events)


def _fields(block: bytes) -> tuple[str | None, str]:
    data: list[str] = []
    kind = "message"
    for raw in block.splitlines():  # as bytes: text would also split at U+2028, which JSON may hold
        name, _, value = raw.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            kind = value
    return ("\n".join(data) if data else None), kind
