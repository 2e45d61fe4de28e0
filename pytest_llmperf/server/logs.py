"""One launch's log file as text: masked, bounded, read forward while a server starts."""

from __future__ import annotations

from pathlib import Path

from pytest_llmperf.server.masking import Masker

#: Bytes kept of a log's beginning and of its end: an engine that writes gigabytes must not fill this process.
HEAD = 8 << 20
TAIL = 8 << 20
CHUNK = 1 << 20


class Log:
    """A log file that an engine writes. A missing file reads as empty."""

    def __init__(self, path: Path | None, masker: Masker) -> None:
        self.path = path
        self.masker = masker
        self._read = 0

    def text(self) -> str:
        """All of it, secrets masked; the middle of a very long log is left out, and that is said."""
        if self.path is None:
            return ""
        try:
            with self.path.open("rb") as f:
                size = f.seek(0, 2)
                f.seek(0)
                data = f.read(min(size, HEAD + TAIL))
                if size > HEAD + TAIL:
                    f.seek(size - TAIL)
                    # Whole lines alone: a secret that is cut in two is not known as one.
                    head, tail = data[:HEAD].rpartition(b"\n")[0], f.read(TAIL).partition(b"\n")[2]
                    data = head + b"\n[... %d bytes left out ...]\n" % (size - len(head) - len(tail)) + tail
        except OSError:
            return ""
        return self.masker(data.decode("utf-8", "replace"))

    def news(self) -> str:
        """What was added since the last call (at most ``CHUNK`` of it at a time)."""
        if self.path is None:
            return ""
        try:
            with self.path.open("rb") as f:
                f.seek(self._read)
                data = f.read(CHUNK)
        except OSError:
            return ""
        if len(data) == CHUNK:
            data = data[: data.rfind(b"\n") + 1] or data  # no secret is cut in two, as above
        self._read += len(data)
        return self.masker(data.decode("utf-8", "replace"))
