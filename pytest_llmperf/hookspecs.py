"""What other plugins and conftest files may add."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_llmperf.engines.base import Engine
    from pytest_llmperf.server_config import ServerConfig


@pytest.hookspec
def pytest_llmperf_engines(config: pytest.Config) -> Iterable[Engine]:
    """Return engine adapters to add; one with the name of a built-in engine replaces it."""
    raise NotImplementedError  # a specification: nobody calls it


@pytest.hookspec
def pytest_llmperf_fingerprint(config: pytest.Config, server: ServerConfig) -> Mapping[str, str]:
    """Return fields to add to the fingerprint of every baseline of ``server`` (name to text)."""
    raise NotImplementedError
