"""What one streamed answer says: which chunks carried tokens and when, usage, finish reason, model, errors.

Tokens are counted by the server's usage, never by chunks. A chunk carries a token when it has content: text, a
message's content, reasoning, a refusal or a part of a tool call. A first chunk with only a role is none, and neither
are chunks with only usage. Two refinements where chunks and tokens part:

- *usage in every chunk* (``continuous_usage_stats``; llama.cpp's ``timings_per_token``) says exactly which chunks
  carried how many tokens;
- a special token shows as an empty text. An empty chunk between the first content and the finish is taken for a
  token's arrival as long as usage counts more tokens than there are chunks; an empty chunk that carries the finish
  only when that makes chunks and tokens equal (elsewhere the finish has a chunk of its own) and no empty chunk came
  before the first content, which may have been the missing token as well.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jiter import from_json

from pytest_llmperf.measure.client.body import Event

_CONTENT = ("content", "reasoning_content", "reasoning", "refusal", "function_call")


@dataclass(frozen=True)
class Answer:
    """``at_ns`` (m,): arrivals of the chunks that carried tokens; ``tokens`` (m,): how many each carried, None when
    usage did not come with every chunk; ``delays_ns``: user minus kernel stamps of those that have one.
    Usage is the last one sent. ``problem`` is an error that the server put into the stream."""

    at_ns: tuple[int, ...] = ()
    tokens: tuple[int, ...] | None = None
    delays_ns: tuple[int, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    model: str | None = None
    id: str | None = None
    events: int = 0
    problem: str | None = None


@dataclass
class _Seen:
    """Events by their index: those that show a token; those that may stand for an unseen one, and whether the last of
    them carries the finish; what usage had come to with each that said it."""

    content: list[int] = field(default_factory=list)
    blank: list[int] = field(default_factory=list)
    last_finishes: bool = False
    counts: dict[int, int] = field(default_factory=dict)


def read_answer(events: Sequence[Event]) -> Answer:
    """Reduce the events of one completion or chat completion."""
    seen = _Seen()
    usage: dict[str, Any] = {}
    completion: int | None = None
    finish: str | None = None
    model: str | None = None
    id_: str | None = None
    for i, event in enumerate(events):
        try:
            body = _value(event.data)
        except (ValueError, RecursionError):
            text = event.data.decode("utf-8", "replace")
            if text.strip() == "[DONE]":
                continue
            return Answer(problem=f"an event is not JSON: {text[:120]!r}", events=len(events))
        if not isinstance(body, dict):
            text = event.data.decode("utf-8", "replace")
            return Answer(problem=f"an event is not an object: {text[:120]!r}", events=len(events))
        if event.kind == "error" or body.get("error"):
            return Answer(problem=f"the server sent an error: {_message(body)}", events=len(events))
        choices = body.get("choices")
        choice = _object(choices[0]) if isinstance(choices, list) and choices else {}
        finished = finish is not None
        finish = finish or _text(choice.get("finish_reason"))
        if _has_content(choice):
            seen.content.append(i)
        elif choice and not finished:
            seen.blank.append(i)
            seen.last_finishes = finish is not None
        if this_usage := _object(body.get("usage")):
            usage, completion = this_usage, _count(this_usage.get("completion_tokens"))
        so_far = _count(this_usage.get("completion_tokens", _object(body.get("timings")).get("predicted_n")))
        if so_far is not None:
            seen.counts[i] = so_far
        model, id_ = _text(body.get("model")) or model, _text(body.get("id")) or id_
    details = _object(usage.get("prompt_tokens_details"))
    tokens = _by_usage(seen, completion)
    carriers = [*tokens] if tokens else _carriers(seen, completion)
    delays = [events[i].delay_ns for i in carriers]
    return Answer(
        at_ns=tuple(events[i].at_ns for i in carriers),
        tokens=tuple(tokens.values()) if tokens else None,
        delays_ns=tuple(d for d in delays if d is not None),
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=completion,
        cached_tokens=_count(details.get("cached_tokens")),
        finish_reason=finish,
        model=model,
        id=id_,
        events=len(events),
    )


def _value(data: bytes) -> Any:
    """jiter is quicker than Python's own parser, which is asked again about what jiter refuses: bytes that are not
    UTF-8 and half a surrogate pair say nothing about tokens. Raises ``ValueError`` and ``RecursionError``."""
    try:
        return from_json(data)
    except ValueError:
        return json.loads(data.decode("utf-8", "replace"))


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
    for name in _CONTENT:
        if delta.get(name):
            return True
    calls = delta.get("tool_calls")
    calls = [_object(_object(call).get("function")) for call in calls] if isinstance(calls, list) else []
    return any(call.get("name") or call.get("arguments") for call in calls)


def _carriers(seen: _Seen, total: int | None) -> list[int]:
    """Events that carried tokens, by content and, while tokens are missing, by blanks."""
    if not seen.content:
        return []
    missing = max((total or 0) - len(seen.content), 0)
    blanks = [i for i in seen.blank if i > seen.content[0]]
    leading = len(blanks) < len(seen.blank)
    if blanks and seen.last_finishes and (leading or len(blanks) != missing):
        blanks.pop()
    return sorted(seen.content + blanks[:missing])


def _by_usage(seen: _Seen, total: int | None) -> dict[int, int]:
    """Events that carried tokens and how many, by the growth of usage; empty unless every event with content said its
    usage and the sum is right."""
    if any(i not in seen.counts for i in seen.content):
        return {}
    grown: dict[int, int] = {}
    before = 0
    for i in sorted(seen.content + seen.blank):
        now = seen.counts.get(i, before)
        if now > before:
            grown[i] = now - before
            before = now
    return grown if before == total else {}
