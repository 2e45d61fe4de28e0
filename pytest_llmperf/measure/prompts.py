"""Prompts of an exact token length that share no prefix and never come twice in the life of one server.

A prompt is drawn from (nonce, seed, call, role, index): the same test sends the same prompts to every fresh launch,
so prompts add no variance between launches (what a model makes of them decides expert routing and acceptance). A
server that outlives the session (kept, or attached to) gets a nonce of its own for every session.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pytest_llmperf.errors import MeasurementError

T = TypeVar("T")

#: Ids that every vocabulary of more than a thousand has, above the special and byte tokens at its start.
FALLBACK_IDS = range(300, 1000)
#: How many leading tokens must be new, and how often a new beginning is tried before settling for more of them.
_LADDER = ((1, 64), (2, 256), (4, 256))
_FITS = 16
_CUTS = 12

#: Common words: most are one token with a leading space in most vocabularies.
_TEXT = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city community name president team minute idea body information
back parent face others level office door health person art war history party result change morning reason
research girl guy moment air teacher force education foot boy age policy music market sense nation plan college
interest death experience effect use class control field development role effort rate heart drug show leader
light voice wife police mind price report decision son view relationship town road arm difference value building
action model season society tax director position player record paper space ground form event official matter
center couple site project activity star table need court oil situation cost industry figure street image phone
"""
WORDS = tuple(_TEXT.split())


def session_nonce() -> str:
    """A nonce for a server whose earlier prompts this session cannot know."""
    return f"{time.time_ns():x}-{secrets.token_hex(4)}"


@dataclass
class PromptLedger:
    """What one server life has been sent. Make one per launch; give a reused or attached server ``session_nonce()``.

    Safe to share between threads.
    """

    nonce: str = ""
    _calls: Counter[str] = field(default_factory=Counter, repr=False)
    _heads: set[tuple[object, ...]] = field(default_factory=set, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def open(self, seed: str) -> str:
        """The key of one measurement: the same seed gets another key each time it measures on this server."""
        with self._lock:
            self._calls[seed] += 1
            return f"{self.nonce}/{seed}/{self._calls[seed]}"

    def fresh(self, rng: random.Random, drawn: list[T], choices: Sequence[T]) -> list[T]:
        """``drawn`` with as few of its leading elements replaced as makes a beginning that no earlier prompt had: its
        first element if one is left, else the first two, then four. Raises ``MeasurementError`` when none is left."""
        for width, tries in _LADDER:
            for _ in range(tries):
                with self._lock:
                    if tuple(drawn[:width]) not in self._heads:
                        self._heads.update(tuple(drawn[:n]) for n, _ in _LADDER)
                        return drawn
                head = [rng.choice(choices) for _ in range(min(width, len(drawn)))]
                drawn = head + drawn[len(head) :]
        raise MeasurementError(
            f"no prompt of {len(drawn)} tokens is left that begins as none before it ({len(choices)} tokens to draw "
            "from): restart the server or ask for longer prompts"
        )


@dataclass(frozen=True)
class TokenPrompts:
    """Prompts as lists of token ids, drawn from ``ids``."""

    ids: Sequence[int]
    ledger: PromptLedger
    key: str

    def draw(self, role: str, index: int, tokens: int) -> list[int]:
        """A prompt of exactly ``tokens`` ids. Raises ``MeasurementError`` when no fresh beginning is left."""
        rng = random.Random(f"{self.key}/{role}/{index}")
        return self.ledger.fresh(rng, [rng.choice(self.ids) for _ in range(tokens)], self.ids)


@dataclass(frozen=True)
class TextPrompts:
    """Prompts as text of an exact length. ``count`` gives a text's tokens, or None where the server has no tokenizer
    endpoint: a word is then taken for a token, which usage confirms or makes the measurement invalid."""

    ledger: PromptLedger
    key: str
    count: Callable[[str], int] | None = None
    overhead: int = 0
    """Tokens that the server adds (BOS, chat template), found by a warm-up request."""

    def draw(self, role: str, index: int, tokens: int) -> str:
        """A text that makes a prompt of exactly ``tokens`` tokens, the overhead included."""
        wanted = tokens - self.overhead
        if wanted < 1:
            raise MeasurementError(
                f"a prompt of {tokens} tokens leaves no room for text: the server's template alone takes "
                f"{self.overhead}; ask for prompt_tokens={self.overhead + 16} or more"
            )
        rng = random.Random(f"{self.key}/{role}/{index}")
        for _ in range(_FITS):
            words = self.ledger.fresh(rng, [rng.choice(WORDS) for _ in range(wanted)], WORDS)
            text = " ".join(words) if self.count is None else self._fit(words, wanted)
            if text is not None:
                return text
        raise MeasurementError(
            f"no text of exactly {wanted} tokens was found in {_FITS} tries: the server's tokenizer splits words "
            "oddly; ask for another prompt_tokens"
        )

    def _fit(self, words: list[str], wanted: int) -> str | None:
        """A cut of the text that has ``wanted`` tokens, found by cutting in proportion; None when it is jumped over."""
        assert self.count is not None
        text = " ".join(words)
        size = len(text)
        for _ in range(_CUTS):
            cut = text[:size].rstrip()
            away = self.count(cut) - wanted
            if away == 0:
                return cut
            step = round(away * size / (wanted + away))
            size = min(max(size - (step or (1 if away > 0 else -1)), 1), len(text))
        return None
