"""Text that is safe to show: secrets replaced, control bytes gone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from pytest_llmperf.server_config import MASK, is_secret, without_login

#: Escape sequences (colours, cursor moves, titles), then every other control character but newline and tab.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
#: Shorter values of secret-looking names are words (``AUTH=basic``), not secrets: replacing them would ruin a text.
_SHORTEST = 5


class Masker:
    """Replaces known secrets in text. Its ``repr`` tells only how many it knows."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = tuple(sorted({s for s in secrets if len(s) >= _SHORTEST}, key=len, reverse=True))

    def __repr__(self) -> str:
        return f"Masker({len(self._secrets)} secrets)"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Longest first, so that a secret which contains another is replaced whole."""
        return self._secrets

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return str(without_login(text))


class Environment(dict[str, str]):
    """A process environment whose ``repr`` (in a traceback that shows locals) tells only names."""

    def __repr__(self) -> str:
        return f"Environment({len(self)} variables)"


def secrets_of(*mappings: Mapping[str, object]) -> set[str]:
    """Values of secret names (``HF_TOKEN``), and passwords inside URLs, in environments and flags."""
    found: set[str] = set()
    for mapping in mappings:
        for name, value in mapping.items():
            if isinstance(value, Mapping):
                found |= secrets_of(value)
            elif isinstance(value, str):
                if is_secret(name):
                    found.add(value)
                found |= _url_password(value)
    return found


def _url_password(text: str) -> set[str]:
    if "://" not in text or "@" not in text:
        return set()
    try:
        password = urlsplit(text).password
    except ValueError:
        return set()
    return {password} if password else set()


def printable(text: str) -> str:
    """``text`` without escape sequences and control characters; a carriage return starts a new line."""
    text = re.sub(r"\r+\n?", "\n", text)
    return _CONTROLS.sub("", _ESCAPES.sub("", text))
