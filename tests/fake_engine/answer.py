"""One generation request, from admission to its last byte, with its faults and its truth."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic
from typing import Any

from . import faults, truth, wire
from .engine import Engine, moment
from .loop import Channel
from .schedule import Plan
from .settings import Settings, hit
from .shapes import Ask, Shapes
from .writer import EventWriter, Sent

#: Faults that end a stream at a token, by the setting that asks for them.
ENDINGS = ("truncate_at", "reset_at", "error_event_at", "garbage_at", "silent_at")


def breaking_point(settings: Settings, number: int) -> tuple[str, int] | None:
    """(fault, tokens that still go out) of request ``number``."""
    for name in ENDINGS:
        at = hit(getattr(settings, name), number)
        if at is not None:
            return name, int(at)
    at = hit(settings.die, number)
    return None if at is None else ("die", int(at or 0))


class Answer:
    """A job of the engine that writes to one channel."""

    plan: Plan
    _shapes: Shapes

    def __init__(
        self,
        ask: Ask,
        engine: Engine,
        channel: Channel,
        *,
        keep_alive: bool,
        arrived: float,
        planned: bool,
        on_done: Callable[[], None],
    ) -> None:
        self.ask, self.engine, self.channel = ask, engine, channel
        self.number, self.prompt, self.tokens = ask.number, ask.prompt, len(ask.output)
        self.arrived, self.planned, self.cached, self.done, self.start = arrived, planned, 0, 0, 0.0
        self._keep_alive, self._on_done = keep_alive, on_done
        self._settings = engine.settings
        self._break = breaking_point(self._settings, self.number)
        self._sent: list[Sent] = []
        self._ended = False
        s = self._settings
        self._writer = EventWriter(
            engine.loop,
            channel,
            per_segment=s.events_per_segment,
            pieces=s.split_events,
            gap=s.split_gap_ms / 1e3,
            planned_from=arrived if planned else None,
        )
        channel.on_close = self._gone

    # what the engine calls

    def on_start(self, start: float) -> None:
        self.start = start
        options = self.engine.options
        shown = self.cached if options.cached_in_usage else None
        self._shapes = Shapes(self.ask, self._settings, options.dialect, options.served, shown)
        if not self.ask.stream:
            return
        head = wire.stream_head(self._keep_alive)
        if self._settings.late_headers:
            self._writer.prefix(head)
        else:
            self.channel.send(head)
        early = b""
        if self.ask.chat and self._settings.role_chunk == "early":
            early += self._shapes.role()
        if self._settings.empty_first:
            early += self._shapes.empty(0)
        if early:
            self._writer.event(early, start if self.planned else monotonic())

    def on_chunk(self, index: int, due: float) -> bool:
        chunk = self.plan.chunks[index]
        if self._break and chunk.first + chunk.tokens > self._break[1]:
            self._break_now(self._break[0], due)
            return False
        sent = Sent(due, chunk.tokens)
        self._sent.append(sent)
        self.done += chunk.tokens
        if self.ask.stream:
            last = index + 1 == len(self.plan.chunks)
            comment = b": keep-alive\n\n" if self._settings.comments else b""
            self._writer.event(comment + self._shapes.chunk(chunk, last), due, sent)
            if last:
                self._writer.flush(due)
        return True

    def on_end(self, due: float) -> None:
        if not self.ask.stream:
            self._record("ok")
            self.channel.send(wire.json_response(200, self._shapes.whole(), self._keep_alive))
            self._leave()
            return
        late = self._settings.after_finish_ms / 1e3
        if late:
            after = due + late
            self.engine.loop.at(moment(self, after), lambda: self._writer.event(self._shapes.empty(self.done), after))
        self.engine.loop.at(moment(self, due + late + self._writer.lag), self._finish)

    def _finish(self) -> None:
        if self._ended:
            return
        self._record("ok")
        self.channel.send(wire.frame(self._shapes.ending(self.done)) + wire.LAST_FRAME)
        self._leave()

    # faults and ends

    def _break_now(self, fault: str, due: float) -> None:
        self._writer.flush(due)
        self._record(fault)
        if fault == "die":
            if self._settings.die_text:
                os.write(2, faults.error_text(self._settings.die_text).encode() + b"\n")
            faults.end_by(self._settings.die_code)
        self._ended = True
        self.channel.on_close = None
        if fault == "reset_at":
            self.channel.reset()
        elif fault == "error_event_at":
            data = wire.frame(self._shapes.error("EngineCore encountered an issue") + b"data: [DONE]\n\n")
            self.channel.send(data + wire.LAST_FRAME)
            self.channel.finish()
        elif fault == "garbage_at":
            self.channel.send(wire.frame(b'data: {"id": "cmpl-\n\ndata: [DONE]\n\n') + wire.LAST_FRAME)
            self.channel.finish()
        elif fault == "truncate_at":
            if self._settings.truncate_clean:
                self.channel.send(wire.LAST_FRAME)
            self.channel.finish()

    def _record(self, end: str) -> None:
        if not self._settings.truth:
            return
        record: dict[str, Any] = {
            "request": self.ask.id,
            "number": self.number,
            "launch": self.engine.launch,
            "pid": os.getpid(),
            "path": self.ask.path,
            "stream": self.ask.stream,
            "prompt_tokens": len(self.prompt),
            "cached_tokens": self.cached,
            "max_tokens": self.ask.max_tokens,
            "tokens": self.done,
            "end": end,
            "finish": self._shapes.finish_reason if end == "ok" else None,
            "t0": self.arrived,
            "start": self.start,
            "ttft_s": self.plan.ttft,
            "step_s": self.plan.step_s,
            "chunks": [sent.row() for sent in self._sent],
        }
        truth.append(self._settings.truth, record)

    def _leave(self) -> None:
        self._ended = True
        self.channel.on_close = None
        if not self._keep_alive:
            self.channel.finish()
        self._on_done()

    def _gone(self) -> None:
        """The client hung up."""
        if not self._ended:
            self._ended = True
            self.engine.cancel(self)
            if self.start:
                self._record("client gone")
            self._on_done()
