"""Routes: what each path answers, and the faults that hit whole requests."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from . import asking, wire
from .answer import Answer
from .dialect import Dialect, Reply
from .engine import Engine
from .loop import Channel
from .settings import hit

GENERATION = ("/v1/completions", "/v1/chat/completions")

#: A request with this header is answered at once, with the time at which each chunk is due written in it.
PLANNED = "x-planned"


class Server:
    """Takes whole requests off channels and answers each before it takes the next of the same channel."""

    def __init__(self, engine: Engine, dialect: Dialect) -> None:
        self.engine, self.dialect = engine, dialect
        self._busy: set[Channel] = set()
        self._generations = 0

    def on_data(self, channel: Channel) -> None:
        while channel.open and channel not in self._busy:
            try:
                request = wire.take_request(channel.inbox)
            except wire.BadRequestError:
                channel.send(wire.response(400, b"Invalid HTTP request received.", "text/plain", False))
                channel.finish()
                return
            if request is None:
                return
            self._busy.add(channel)
            self._answer(channel, request, channel.received)

    def _next(self, channel: Channel) -> None:
        self._busy.discard(channel)
        if channel.open and channel.inbox:
            self.on_data(channel)

    def _reply(self, channel: Channel, request: wire.Request, reply: Reply) -> None:
        status, body = reply
        if isinstance(body, str):
            data = wire.response(status, body.encode(), "text/plain; charset=utf-8", request.keep_alive)
        else:
            data = wire.json_response(status, body, request.keep_alive)
        self.dialect.access(channel.peer, request.method, request.path, status)
        channel.send(data)
        if not request.keep_alive:
            channel.finish()
        self._next(channel)

    def _error(self, channel: Channel, request: wire.Request, error: asking.AskError) -> None:
        body = self.dialect.error(error.status, str(error), error.kind)
        self._reply(channel, request, (error.status, body))

    def _answer(self, channel: Channel, request: wire.Request, arrived: float) -> None:
        key = self.engine.options.api_key
        if key and self.dialect.needs_key(request.path) and request.headers.get("authorization") != f"Bearer {key}":
            self._reply(channel, request, (401, {"error": "Unauthorized"}))
            return
        if request.path in ("/health", "/health_generate"):
            self._health(channel, request, arrived)
            return
        try:
            if request.method == "POST" and request.path in GENERATION:
                self._generate(channel, request, arrived)
                return
            reply = self._plain(request)
        except asking.AskError as error:
            self._error(channel, request, error)
            return
        self._reply(channel, request, reply or (404, {"detail": "Not Found"}))

    def _plain(self, request: wire.Request) -> Reply | None:
        options = self.engine.options
        if request.method == "GET":
            if request.path == "/v1/models":
                return 200, {"object": "list", "data": [self._model()]}
            if request.path == "/metrics" and options.metrics:
                return 200, self.dialect.metrics()
            return self.dialect.get(request.path, request.query)
        body = asking.body_of(request.body) if request.body else {}
        if request.path == "/tokenize":
            ids = asking.prompt_ids(body, "messages" in body)
            return 200, {"tokens": list(ids), "count": len(ids), "max_model_len": options.context}
        return self.dialect.post(request.path, body)

    def _model(self) -> dict[str, Any]:
        o = self.engine.options
        model = {"id": o.served, "object": "model", "created": int(time.time()), "owned_by": o.dialect}
        return {**model, "root": o.model, "max_model_len": o.context}

    def _health(self, channel: Channel, request: wire.Request, arrived: float) -> None:
        """vLLM says that it lives; SGLang generates one token to know."""
        engine = self.engine
        if not engine.ready:
            self._reply(channel, request, (503, ""))
        elif engine.options.dialect == "vllm" or engine.settings.generation_broken:
            self._reply(channel, request, (200, ""))
        else:
            engine.counters.given += 1
            engine.counters.generation += 1
            engine.counters.prompt += 1
            engine.loop.at(arrived + engine.settings.ttft_ms / 1e3, lambda: self._reply(channel, request, (200, "")))

    def _number(self, body: Mapping[str, Any]) -> int:
        """The ordinal of a generation request; short ones may be left out of the count (they get ordinal 0)."""
        length = body.get("max_completion_tokens") or body.get("max_tokens") or 0
        if isinstance(length, int) and length < self.engine.settings.number_from_tokens:
            return 0
        self._generations += 1
        return self._generations

    def _generate(self, channel: Channel, request: wire.Request, arrived: float) -> None:
        settings, options = self.engine.settings, self.engine.options
        body = asking.body_of(request.body)
        number = self._number(body)
        if settings.generation_broken:
            raise asking.AskError(
                500, "EngineCore encountered an issue. See stack trace for the root cause.", "Internal"
            )
        status = hit(settings.http_error, number)
        if status is not None:
            raise asking.AskError(int(status), "injected failure", "InternalServerError")
        prefix = "chatcmpl-" if "chat" in request.path else "cmpl-"
        ask = asking.read(body, request.path, options, settings, number, prefix + os.urandom(16).hex())
        answer = Answer(
            ask,
            self.engine,
            channel,
            keep_alive=request.keep_alive,
            arrived=arrived,
            planned=PLANNED in request.headers,
            on_done=lambda: self._next(channel),
        )
        self.dialect.access(channel.peer, request.method, request.path, 200)
        self.engine.submit(answer)
