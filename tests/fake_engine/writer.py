"""How events become TCP writes: one each, several in one write, or one over several writes."""

from __future__ import annotations

from functools import partial
from time import monotonic

from . import wire
from .loop import Channel, Loop


class Sent:
    """Truth about one chunk: when its last token was due, when its write was intended and when it was made."""

    def __init__(self, due: float, tokens: int) -> None:
        self.due, self.tokens = due, tokens
        self.intended = self.actual = 0.0

    def row(self) -> list[float]:
        return [round(self.due, 7), round(self.intended, 7), round(self.actual, 7), self.tokens]


class EventWriter:
    """Writes the events of one stream.

    ``per_segment`` events go in one write, when the last of them is due. ``pieces`` writes make one event, the first
    when it is due and the others ``gap`` seconds apart. With ``planned_from`` everything is written at once, each event
    with the seconds from then to its time.
    """

    def __init__(
        self,
        loop: Loop,
        channel: Channel,
        *,
        per_segment: int,
        pieces: int,
        gap: float,
        planned_from: float | None = None,
    ) -> None:
        self._loop, self._channel = loop, channel
        self._per_segment, self._pieces, self._gap = per_segment, pieces, gap
        self._direct = per_segment == pieces == 1
        self._prefix = b""
        self._planned_from = planned_from
        self._held: list[tuple[bytes, Sent | None]] = []

    @property
    def lag(self) -> float:
        """Seconds from an event's time to its last write."""
        return self._gap * (self._pieces - 1)

    def prefix(self, data: bytes) -> None:
        """Bytes (late headers) that go in the same write as the first event."""
        self._prefix = data
        self._direct = False

    def event(self, data: bytes, due: float, sent: Sent | None = None) -> None:
        """Write one event (several, when ``data`` holds several), or hold it until its segment is full."""
        if self._direct and sent is not None:
            self._channel.send(self._frame(data, due))
            sent.intended, sent.actual = due, monotonic()
            return
        self._held.append((data, sent))
        if sent is None or len(self._held) >= self._per_segment:
            self.flush(due)

    def flush(self, due: float) -> None:
        if not self._held:
            return
        data = self._prefix + b"".join(self._frame(data, due) for data, _ in self._held)
        group = [sent for _, sent in self._held if sent is not None]
        self._prefix, self._held = b"", []
        if self._pieces == 1 or self._planned_from is not None:
            self._write(data, group, due)
            return
        size = max(1, -(-len(data) // self._pieces))
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        for i, part in enumerate(parts):
            at = due + i * self._gap
            whose = group if i == len(parts) - 1 else []
            if i == 0:
                self._write(part, whose, at)
            else:
                self._loop.at(at, partial(self._write, part, whose, at))

    def _frame(self, data: bytes, due: float) -> bytes:
        return wire.frame(data, None if self._planned_from is None else due - self._planned_from)

    def _write(self, data: bytes, group: list[Sent], intended: float) -> None:
        self._channel.send(data)
        now = monotonic()
        for sent in group:
            sent.intended, sent.actual = intended, now
