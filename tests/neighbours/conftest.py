"""The plugin beside popular others, which ``tox -e neighbours`` installs; a test whose neighbour is missing skips."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project, _store, project, recorded, wobbly

__all__ = ["Project", "_store", "project", "recorded", "wobbly"]


@pytest.fixture(autouse=True)
def alone(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the neighbours but the one that a test names."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p pytest_llmperf.plugin -p xdist.plugin")
