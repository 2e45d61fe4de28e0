"""Collects what a running server tells about itself, remembering for each field where it was read."""

from __future__ import annotations

import re
from typing import Any

from pytest_llmperf.engines.base import EffectiveConfig
from pytest_llmperf.server_config import is_secret

_NCCL_SET = re.compile(r"\b(NCCL_[A-Z0-9_]+) set by environment to (\S+)")
_NCCL_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+\S*)")


class Reading:
    """The first source that knows a field wins: take from the most reliable one first."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._sources: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.other: dict[str, str] = {}
        self._nccl: dict[str, str] = {}

    def take(self, source: str, **fields: Any) -> None:
        """Fields of EffectiveConfig as ``source`` tells them; ``None`` is unknown and leaves the field open."""
        for name, value in fields.items():
            if value is not None and name not in self._values:
                self._values[name] = value
                self._sources[name] = source

    def version(self, package: str, value: Any) -> None:
        """A package's version, when ``value`` is one."""
        if value and package not in self.versions:
            self.versions[package] = str(value).strip()

    def note(self, name: str, value: Any) -> None:
        """Something without a field of its own, kept as text, unless its name says that it is a secret.

        ``auto`` is what was asked, no answer.
        """
        if value not in (None, "auto") and name not in self.other and not is_secret(name):
            self.other[name] = str(value)

    def nccl(self, log: str) -> None:
        """What NCCL itself says with ``NCCL_DEBUG=INFO``: the variables it obeys, and its version."""
        self._nccl |= {found[1]: found[2].rstrip(".,") for found in _NCCL_SET.finditer(log)}
        if found := _NCCL_VERSION.search(log):
            self.version("nccl", found[1])

    def result(self) -> EffectiveConfig:
        """All that was taken; the rest is unknown."""
        sources = self._sources | ({"nccl_env": "log"} if self._nccl else {})
        return EffectiveConfig(
            **self._values, versions=self.versions, nccl_env=self._nccl, other=self.other, sources=sources
        )


def search(pattern: str, text: str) -> str | None:
    """First group of the first match, or None."""
    found = re.search(pattern, text)
    return found[1] if found else None


def number(pattern: str, text: str) -> int | None:
    """The first group as a whole number, thousands separators removed."""
    found = search(pattern, text)
    return int(found.replace(",", "")) if found else None
