"""A server of the past: bodies and log that a real one left behind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).with_name("samples")


@dataclass(frozen=True)
class Recorded:
    """What ``Engine.effective`` is shown."""

    log: str = ""
    bodies: Mapping[str, Any] = field(default_factory=dict)

    def json(self, path: str) -> Any | None:
        return self.bodies.get(path)

    def text(self, path: str) -> str | None:
        body = self.bodies.get(path)
        return None if body is None else json.dumps(body)


def sample(name: str) -> str:
    return (SAMPLES / name).read_text(encoding="utf-8")


def sample_json(name: str) -> Any:
    return json.loads(sample(name))
