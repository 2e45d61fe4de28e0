"""Which sessions measure, and which tests are theirs. Light to import: every pytest session of the environment does."""

from __future__ import annotations

import re
from typing import Any

import pytest

#: Name of the plugin object that holds an opted-in session's state (``session.hooks.SessionHooks``).
PLUGIN = "llmperf-session"
SERVER_FIXTURES = frozenset({"llm_server", "llm_servers"})
_NEGATED = re.compile(r"\bnot\s+(?:\([^()]*\)|[\w.:+-]+)")
_PERF = re.compile(r"(?<![\w.:+-])perf(?![\w.:+-])")


def opted_in(config: pytest.Config) -> bool:
    """Whether this session measures: ``--engine`` was given, or ``-m`` asks for ``perf`` (``not perf`` does not)."""
    expression: str = config.getoption("markexpr", "") or ""
    return bool(config.getoption("llmperf_engine") or _PERF.search(_NEGATED.sub("", expression)))


def needs_server(item: Any) -> bool:
    """Whether a test (an item, or a function's definition) is ours to run."""
    return not SERVER_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())) or compares(item)


def compares(item: Any) -> bool:
    """Whether it is an A/B. By its marker too: ``ab`` may be anybody's fixture."""
    return "ab" in getattr(item, "fixturenames", ()) and item.get_closest_marker("llm_ab") is not None
