"""The baselines of this repository still belong to the servers that its examples declare."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_llmperf.baselines import fingerprint, store
from pytest_llmperf.baselines.series import Series
from pytest_llmperf.engines.declaration import merged, server_config
from pytest_llmperf.engines.registry import builtin

from .conftest import machine

ROOT = Path(__file__).parents[2]
ENGINES = builtin()
COMMITTED = [store.read(path) for path in store.files(ROOT / "baselines")]


def declared(test: str) -> dict[str, Any]:
    """What the ``llm_server`` markers of a test come to, from the module's to its own."""
    path, *names = test.split("::")
    held: Any = SimpleNamespace(**runpy.run_path(str(ROOT / path)))
    said: dict[str, Any] = {}
    for name in (None, *names):
        held = getattr(held, name) if name else held
        for mark in marks(held):
            said = merged(said, mark.kwargs) if mark.name == "llm_server" else said
    return said


def marks(held: Any) -> list[pytest.Mark]:
    found = getattr(held, "pytestmark", [])
    return [getattr(m, "mark", m) for m in (found if isinstance(found, list) else [found])]


@pytest.mark.parametrize("series", COMMITTED, ids=lambda s: f"{s.engine}-{s.test}")
def test_it_is_found_again(series: Series) -> None:
    config = server_config(declared(series.test), ENGINES[series.engine], frozenset(ENGINES))
    fields = fingerprint.of(machine(()), config, 0, {}).fields
    assert {k: v for k, v in fields.items() if k.startswith(fingerprint.SERVER)} == {
        k: v for k, v in series.fingerprint.fields.items() if k.startswith(fingerprint.SERVER)
    }
