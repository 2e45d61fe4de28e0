"""Secrets taken out of an engine's log once it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .channel import say


def clean_up(spec: dict[str, Any]) -> None:
    try:
        clean_log(Path(spec["log"]), spec["secrets"])
    except FileNotFoundError:
        pass
    except OSError as e:
        say("unclean", error=str(e))


def clean_log(path: Path, secrets: Sequence[str]) -> None:
    """Replace secrets that an engine printed (CI may upload its log). In place, each by something shorter: a full disk
    has no room for a copy. Raises OSError."""
    words = [s.encode("utf-8", "surrogateescape") for s in secrets]
    keep = max(map(len, words), default=1) - 1
    with path.open("r+b") as log:
        rest = b""
        read = write = 0
        moved = False
        while chunk := log.read(1 << 20) if words else b"":
            read += len(chunk)
            rest += chunk
            before = len(rest)
            for word in words:
                rest = rest.replace(word, b"***")
            moved = moved or len(rest) != before
            cut = max(0, len(rest) - keep)
            if moved:
                log.seek(write)
                log.write(rest[:cut])
                log.seek(read)
            write += cut
            rest = rest[cut:]
        if moved:
            log.seek(write)
            log.write(rest)
            log.truncate()
