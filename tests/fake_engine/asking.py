"""Reading a generation request: what is asked, how long the output will be, and what is wrong with it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any
from zlib import crc32

from .commandline import Options
from .settings import Settings, hit
from .shapes import Ask
from .tokens import VOCABULARY, encode


class AskError(ValueError):
    """A request that is answered with an error. ``status`` is its HTTP status."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


def body_of(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except ValueError as error:
        raise AskError(400, f"There was an error parsing the body: {error}") from error
    if not isinstance(body, dict):
        raise AskError(422, "Input should be a valid dictionary")
    return body


def prompt_ids(body: Mapping[str, Any], chat: bool) -> tuple[int, ...]:
    """Token ids of a prompt: ids as they are, text by word, a chat with four tokens of template a message."""
    if chat:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise AskError(400, "messages: at least one is required")
        ids = encode("")
        for message in messages:
            ids += [2, 3, *encode(str(message.get("content", "")), bos=False), 4, 5]
        return tuple(ids)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return tuple(encode(prompt, bos=body.get("add_special_tokens", True)))
    if isinstance(prompt, list) and prompt and all(isinstance(i, int) and 0 <= i < VOCABULARY for i in prompt):
        return tuple(prompt)
    raise AskError(400, "prompt: either a text or a list of token ids in the vocabulary is required")


def output_length(body: Mapping[str, Any], most: int, settings: Settings, number: int) -> tuple[int, str]:
    """(tokens, finish reason). Without ``ignore_eos`` the model stops by itself after FAKE_NATURAL_EOS tokens."""
    stop = hit(settings.eos_at, number)
    if stop is not None and int(stop) < most:
        return int(stop), "stop"
    natural = max(settings.natural_eos, int(body.get("min_tokens") or 0))
    if settings.natural_eos and not body.get("ignore_eos") and natural < most:
        return natural, "stop"
    return most, "length"


def output_ids(prompt: tuple[int, ...], tokens: int, temperature: float) -> tuple[int, ...]:
    """The same answer to the same prompt at temperature 0."""
    seed = crc32(repr(prompt).encode()) if not temperature else int.from_bytes(os.urandom(4), "big")
    return tuple((seed + i * 7919) % VOCABULARY for i in range(tokens))


def read(body: Mapping[str, Any], path: str, options: Options, settings: Settings, number: int, identity: str) -> Ask:
    """Raises ``AskError`` with the engine's own words."""
    chat = "chat" in path
    if options.dialect == "vllm" and body.get("model") not in (None, options.served):
        raise AskError(404, f"The model `{body.get('model')}` does not exist.", "NotFoundError")
    prompt = prompt_ids(body, chat)
    asked = body.get("max_completion_tokens") or body.get("max_tokens")
    if asked is not None and (not isinstance(asked, int) or asked < 1):
        raise AskError(400, f"max_tokens must be at least 1, got {asked}.")
    most = asked or (64 if chat else 16)
    if len(prompt) + most > options.context:
        raise AskError(
            400,
            f"This model's maximum context length is {options.context} tokens. However, you requested "
            f"{len(prompt) + most} tokens ({len(prompt)} in the messages, {most} in the completion). "
            "Please reduce the length of the messages or completion.",
        )
    tokens, finish = output_length(body, most, settings, number)
    stream_options = body.get("stream_options") or {}
    if stream_options and not body.get("stream"):
        raise AskError(400, "Stream options can only be defined when `stream=True`.")
    return Ask(
        number=number,
        id=identity,
        path=path,
        chat=chat,
        stream=bool(body.get("stream")),
        include_usage=bool(stream_options.get("include_usage")),
        continuous_usage=bool(stream_options.get("continuous_usage_stats")),
        prompt=prompt,
        output=output_ids(prompt, tokens, float(body.get("temperature") or 0)),
        finish=finish,
        max_tokens=most,
    )
