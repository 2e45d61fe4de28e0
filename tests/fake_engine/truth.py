"""What really happened to each request, one JSON line each, for tests to assert against."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def append(path: str, record: Mapping[str, Any]) -> None:
    """Append one line in one write, so that lines of several processes do not mix."""
    line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Every record of a truth log or launch log; empty when there is none."""
    file = Path(path)
    if not file.exists():
        return []
    whole, _, _ = file.read_text().rpartition("\n")  # the engine may be writing a line just now
    return [json.loads(line) for line in whole.splitlines()]
