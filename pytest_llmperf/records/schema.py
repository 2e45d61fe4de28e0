"""The published JSON Schema (2020-12) of ``--llmperf-json``."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def load() -> dict[str, Any]:
    """``schema.json`` as shipped with the package."""
    text = resources.files("pytest_llmperf.records").joinpath("schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
