"""What pytest and the two processes tell each other, one line each."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any


def say(event: str, **facts: Any) -> None:
    # Nobody may be listening any more: pytest was killed, or has ended and left the server up.
    with contextlib.suppress(OSError):
        os.write(1, (json.dumps({"event": event, **facts}) + "\n").encode())


class Lifeline:
    """The spec and the commands from pytest, one a line."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._buffer = b""

    def spec(self) -> Any:
        while b"\n" not in self._buffer:
            chunk = os.read(self.fd, 1 << 16)
            if not chunk:
                sys.exit(0)
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def commands(self) -> Iterator[str]:
        """Commands that have arrived, ``eof`` once it has closed. Call when there is something to read."""
        chunk = os.read(self.fd, 1 << 12)
        self._buffer += chunk
        yield from self.buffered()
        if not chunk:
            yield "eof"

    def buffered(self) -> Iterator[str]:
        """Commands that came in one read with what was before them."""
        while b"\n" in self._buffer:
            line, self._buffer = self._buffer.split(b"\n", 1)
            yield line.decode()
