"""The server's own tokenizer, reached through its endpoint: which ids are ordinary, how long a text is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openai

from pytest_llmperf.engines.base import Endpoint
from pytest_llmperf.errors import MeasurementError
from pytest_llmperf.measure.client.compiler import ordinary_client
from pytest_llmperf.measure.prompts import FALLBACK_IDS, WORDS


class Tokenizer:
    """``path`` is the engine's tokenize endpoint (``RequestTraits.tokenize_path``). Close it when done."""

    def __init__(self, endpoint: Endpoint, path: str, model: str) -> None:
        self._url = endpoint.root_url + path
        self._model = model
        self._client = ordinary_client(endpoint)

    def close(self) -> None:
        self._client.close()

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` without special tokens. Raises ``MeasurementError`` when the endpoint does not answer.

        vLLM and SGLang read ``prompt`` and ``add_special_tokens``, llama.cpp ``content`` and ``add_special``; each
        ignores the other's fields.
        """
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": text,
            "content": text,
            "add_special_tokens": False,
            "add_special": False,
        }
        try:
            answer = self._client.post(self._url, body=body, cast_to=object)
        except openai.OpenAIError as error:
            cause = error.__cause__ or error  # openai says no more than "Connection error"
            raise MeasurementError(f"the tokenizer endpoint {self._url} did not answer: {cause}") from error
        tokens = answer.get("tokens") if isinstance(answer, dict) else None
        if not isinstance(tokens, list) or not all(isinstance(t, int) for t in tokens):
            raise MeasurementError(f"the tokenizer endpoint {self._url} sent no list of token ids")
        return tokens

    def count(self, text: str) -> int:
        return len(self.encode(text))


def ordinary_ids(tokenizer: Tokenizer | None) -> Sequence[int]:
    """Ids that are surely in the vocabulary and surely not special: those of ordinary words."""
    if tokenizer is None:
        return FALLBACK_IDS
    ids = sorted(set(tokenizer.encode(" " + " ".join(WORDS))))
    return ids or FALLBACK_IDS
