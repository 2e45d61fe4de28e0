"""The JSON bodies of completions and chat completions, as each dialect writes them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .schedule import Chunk
from .settings import Settings


@dataclass(frozen=True)
class Ask:
    """What a generation request asked for, already checked. ``tokens`` is the exact length that it will get."""

    number: int
    id: str
    path: str
    chat: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    finish: str
    max_tokens: int


def dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


class Shapes:
    """Builds the events and the body that answer one request."""

    def __init__(self, ask: Ask, settings: Settings, dialect: str, model: str, cached: int | None) -> None:
        self.ask, self.settings, self.dialect, self.cached = ask, settings, dialect, cached
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        common = {"id": ask.id, "object": kind, "created": int(time.time()), "model": settings.response_model or model}
        self._common = common
        self._head = "data: " + dumps(common)[:-1]
        before, after = self._chunk_event({"content": "\t"}, None, 0).split(b"\\t")
        self._before, self._after = before, after
        think, tool = (settings.reasoning_tokens, settings.tool_call_tokens) if ask.chat else (0, 0)
        self._simple = not (think or tool or settings.token_text or ask.continuous_usage)

    def usage(self, done: int) -> dict[str, Any]:
        """Usage after ``done`` output tokens."""
        prompt, done = len(self.ask.prompt), done + self.settings.usage_off_by
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + done,
            "completion_tokens": done,
            "prompt_tokens_details": None if self.cached is None else {"cached_tokens": self.cached},
        }
        if self.dialect == "sglang":
            usage["reasoning_tokens"] = self.settings.reasoning_tokens if self.ask.chat else 0
        return usage

    def text(self, first: int, tokens: int) -> str:
        """The text of some output tokens."""
        blank, own = self.settings.blank_every, self.settings.token_text
        return "".join(
            "" if blank and (i + 1) % blank == 0 else own or f" t{self.ask.output[i]}"
            for i in range(first, first + tokens)
        )

    def _event(self, choice: Mapping[str, Any] | None, usage: Mapping[str, Any] | None, key: bool) -> bytes:
        choices = "[]" if choice is None else f"[{dumps(choice)}]"
        tail = f',"usage":{dumps(usage)}' if key else ""
        return f'{self._head},"choices":{choices}{tail}}}\n\n'.encode()

    def _choice(self, delta: Mapping[str, Any], finish: str | None) -> dict[str, Any]:
        stop = "matched_stop" if self.dialect == "sglang" else "stop_reason"
        body = {"delta": delta} if self.ask.chat else {"text": delta.get("content", "")}
        return {"index": 0, **body, "logprobs": None, "finish_reason": finish, stop: None}

    def _chunk_event(self, delta: Mapping[str, Any], finish: str | None, done: int) -> bytes:
        mode = self.settings.usage
        continuous = (self.ask.continuous_usage and mode != "none") or (mode == "in_last" and finish is not None)
        null = self.settings.usage_null or not self.ask.chat
        return self._event(self._choice(delta, finish), self.usage(done) if continuous else None, continuous or null)

    def role(self) -> bytes:
        return self._chunk_event({"role": "assistant", "content": ""}, None, 0)

    def empty(self, done: int) -> bytes:
        return self._chunk_event({"content": ""}, None, done)

    def delta(self, first: int, tokens: int) -> dict[str, Any]:
        """Reasoning, content and tool-call parts of some output tokens."""
        think = min(self.settings.reasoning_tokens, len(self.ask.output)) if self.ask.chat else 0
        tool = len(self.ask.output) - (self.settings.tool_call_tokens if self.ask.chat else 0)
        end = first + tokens
        out: dict[str, Any] = {}
        if first < think:
            out[self.settings.reasoning_field] = self.text(first, min(end, think) - first)
        a, b = max(first, think), min(end, tool)
        if a < b:
            out["content"] = self.text(a, b - a)
        a = max(first, think, tool)
        if a < end:
            call: dict[str, Any] = {"index": 0, "function": {"arguments": self.text(a, end - a)}}
            if a == max(think, tool):
                call |= {"id": f"call_{self.ask.id}", "type": "function"}
                call["function"]["name"] = "look_up"
            out["tool_calls"] = [call]
        return out

    @property
    def finish_reason(self) -> str:
        return "tool_calls" if self.ask.chat and self.settings.tool_call_tokens else self.ask.finish

    def chunk(self, chunk: Chunk, last: bool) -> bytes:
        """The event (or events, in one write) of one chunk of tokens."""
        if self._simple and chunk.first and not last:  # by far the most common one: not worth a JSON encoder
            return self._before + self.text(chunk.first, chunk.tokens).encode() + self._after
        apart = self.ask.chat and self.dialect == "sglang"
        done = chunk.first + chunk.tokens
        finish = self.finish_reason if last else None
        data = self._chunk_event(self.delta(chunk.first, chunk.tokens), None if apart else finish, done)
        if last and apart:
            data += self._chunk_event({}, finish, done)
        if chunk.first == 0 and self.ask.chat and self.settings.role_chunk == "with_first":
            data = self.role() + data
        return data

    def ending(self, done: int) -> bytes:
        """Usage, when asked for, and the end mark."""
        mode = self.settings.usage
        wanted = mode == "always" or (mode == "as_asked" and self.ask.include_usage)
        return (self._event(None, self.usage(done), True) if wanted else b"") + b"data: [DONE]\n\n"

    def error(self, message: str) -> bytes:
        return (
            f"data: {dumps({'error': {'message': message, 'type': 'InternalServerError', 'code': 500}})}\n\n".encode()
        )

    def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        delta = self.delta(0, len(self.ask.output))
        choice = self._choice(delta, self.finish_reason)
        if self.ask.chat:
            del choice["delta"]
            choice["message"] = {"role": "assistant", "content": None, **delta}
        body = {**self._common, "choices": [choice]}
        body["object"] = "chat.completion" if self.ask.chat else "text_completion"
        return body if self.settings.usage == "none" else {**body, "usage": self.usage(len(self.ask.output))}
