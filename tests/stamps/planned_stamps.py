"""A pytest plugin for the sessions that the tests run: single streams take the times that the stand-in had planned.

The stand-in answers such a request at once and writes into each HTTP chunk when it is due. What is judged then is what
was planted, however busy this machine is, and nobody waits for tokens. The bytes, the sockets and everything else are
real; loads keep real time, since their streams compete for it. ``LLMPERF_TEST_REAL_TIME=1`` switches it off.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from typing import Any

import pytest

from pytest_llmperf.measure.client import wire

_CHUNK = re.compile(rb"(?<=\r\n)[0-9a-f]+;at=(\d+)\r\n")


def planned(recording: wire.Recording) -> wire.Recording:
    """The same bytes, each chunk read at the time that it names."""
    whole = b"".join(data for _, _, data, _ in recording.reads)
    marks = [(0, 0), *((mark.start(), int(mark[1])) for mark in _CHUNK.finditer(whole))]
    ends = [start for start, _ in marks[1:]] + [len(whole)]
    reads: list[wire.Read] = [
        (recording.sent_ns + at, [], whole[start:end], 0) for (start, at), end in zip(marks, ends, strict=True)
    ]
    if recording.reads and not recording.reads[-1][2]:
        reads.append((reads[-1][0], [], b"", 0))
    return replace(recording, reads=tuple(reads) if recording.reads else ())


class Planned:
    """Stands in for ``wire.exchange``, also where that was imported already."""

    def __init__(self) -> None:
        self._real = wire.exchange
        self._patch = pytest.MonkeyPatch()

    def exchange(self, line: wire.Line, payload: bytes, silent: wire.Silent) -> wire.Recording:
        head, end, body = payload.partition(b"\r\n\r\n")
        return planned(self._real(line, head + b"\r\nx-planned: 1" + end + body, silent))

    def pytest_configure(self) -> None:
        self._patch.setattr(wire, "exchange", self.exchange)
        if asker := sys.modules.get("pytest_llmperf.measure.client.asker"):
            self._patch.setattr(asker, "exchange", self.exchange)

    def pytest_unconfigure(self) -> None:
        self._patch.undo()


def pytest_configure(config: Any) -> None:
    if not os.environ.get("LLMPERF_TEST_REAL_TIME"):
        config.pluginmanager.register(Planned())
