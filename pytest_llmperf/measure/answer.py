"""What one streamed answer says: which chunks carried tokens and when, usage, finish reason, model, errors.

Tokens are counted by the server's usage, never by chunks. A chunk carries a token when it has content: text, a
message's content, reasoning, a refusal or a part of a tool call. A first chunk with only a role is none, and neither
are chunks with only usage. Two refinements where chunks and tokens part:

- *usage in every chunk* (``continuous_usage_stats``) says exactly which chunks carried how many tokens;
- a special token shows as an empty text. An empty chunk between the first content and the finish is taken for a
  token's arrival as long as usage counts more tokens than there are chunks; an empty chunk that carries the finish
  only when that makes chunks and tokens equal (elsewhere the finish has a chunk of its own).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pytest_llmperf.measure.body import Event


class Chunk(NamedTuple):
    """``tokens``: how many it carried when usage came with every chunk, else None."""

    at_ns: int
    tokens: int | None = None
    delay_ns: int | None = None


@dataclass(frozen=True)
class Answer:
    """``usage`` is the last one sent. ``problem`` is an error that the server put into the stream."""

    chunks: tuple[Chunk, ...]
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    model: str | None = None
    id: str | None = None
    events: int = 0
    problem: str | None = None


class _Part(NamedTuple):
    """One event, reduced: ``content`` says that it shows a token; ``blank`` that it may stand for an unseen one, and
    ``last`` that it also carries the finish."""

    event: Event
    content: bool
    blank: bool
    last: bool
    completion_tokens: int | None


def read_answer(events: Sequence[Event]) -> Answer:
    """Reduce the events of one completion or chat completion."""
    parts: list[_Part] = []
    usage: dict[str, Any] = {}
    finish: str | None = None
    model: str | None = None
    id_: str | None = None
    for event in events:
        if event.data.strip() == "[DONE]":
            continue
        try:
            body = json.loads(event.data)
        except ValueError:
            return Answer((), problem=f"an event is not JSON: {event.data[:120]!r}", events=len(events))
        if not isinstance(body, dict):
            return Answer((), problem=f"an event is not an object: {event.data[:120]!r}", events=len(events))
        if event.kind == "error" or body.get("error"):
            return Answer((), problem=f"the server sent an error: {_message(body)}", events=len(events))
        choices = body.get("choices")
        choice = _object(choices[0]) if isinstance(choices, list) and choices else {}
        content = _has_content(choice)
        this_usage = _object(body.get("usage"))
        usage = this_usage or usage
        model, id_ = _text(body.get("model")) or model, _text(body.get("id")) or id_
        blank = bool(choice) and not content and finish is None
        finish = finish or _text(choice.get("finish_reason"))
        parts.append(_Part(event, content, blank, finish is not None, _count(this_usage.get("completion_tokens"))))
    completion = _count(usage.get("completion_tokens"))
    details = _object(usage.get("prompt_tokens_details"))
    return Answer(
        chunks=_chunks(parts, completion),
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=completion,
        cached_tokens=_count(details.get("cached_tokens")),
        finish_reason=finish,
        model=model,
        id=id_,
        events=len(events),
    )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _message(body: dict[str, Any]) -> str:
    error = body.get("error") or body
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]


def _has_content(choice: dict[str, Any]) -> bool:
    if choice.get("text"):
        return True
    delta = _object(choice.get("delta"))
    if any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "refusal", "function_call")):
        return True
    calls = delta.get("tool_calls")
    calls = [_object(_object(call).get("function")) for call in calls] if isinstance(calls, list) else []
    return any(call.get("name") or call.get("arguments") for call in calls)


def _chunks(parts: Sequence[_Part], total: int | None) -> tuple[Chunk, ...]:
    counted = _by_usage(parts, total)
    if counted is not None:
        return counted
    carriers = [i for i, part in enumerate(parts) if part.content]
    if carriers:
        missing = max((total or 0) - len(carriers), 0)
        blanks = [i for i, part in enumerate(parts) if part.blank and i > carriers[0]]
        if blanks and parts[blanks[-1]].last and len(blanks) != missing:
            blanks.pop()
        carriers = sorted(carriers + blanks[:missing])
    return tuple(Chunk(parts[i].event.at_ns, None, parts[i].event.delay_ns) for i in carriers)


def _by_usage(parts: Sequence[_Part], total: int | None) -> tuple[Chunk, ...] | None:
    """Chunks by the growth of usage, or None unless every content chunk said its usage and the sum is right."""
    if any(part.content and part.completion_tokens is None for part in parts):
        return None
    chunks: list[Chunk] = []
    before = 0
    for part in parts:
        grown = (part.completion_tokens or before) - before
        if grown > 0 and (part.content or part.blank):
            chunks.append(Chunk(part.event.at_ns, grown, part.event.delay_ns))
            before += grown
    return tuple(chunks) if chunks and before == total else None
