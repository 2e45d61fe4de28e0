"""The status line while servers start and measurements run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from rich.cells import set_cell_size

from pytest_llmperf.records.text import clean, number, seconds
from pytest_llmperf.report.layout import shorten

_LEAST_NAME = 8


class LiveLine:
    """One line that is rewritten in place on a terminal; a plain line now and then in CI; nothing elsewhere.

    ``stream`` must be the real terminal (pytest captures ``sys.stdout`` while a test runs). Call ``clear`` before
    anything else is printed there. Used from one thread.
    """

    def __init__(
        self, stream: TextIO, *, mode: str, width: int = 80, every: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """``mode``: ``tty``, ``plain`` or ``silent``. ``every``: seconds between two plain lines of one subject."""
        if mode not in ("tty", "plain", "silent"):
            raise ValueError(f"mode {mode!r} is not tty, plain or silent")
        self._stream, self._mode, self._width, self._clock = stream, mode, width, clock
        self._every = every if mode == "plain" else 0.1
        self._subject, self._next, self._shown = "", 0.0, False

    @classmethod
    def on(cls, stream: TextIO, environ: Mapping[str, str], *, width: int | None = None) -> LiveLine:
        """The mode that suits ``stream``: rewritten on a terminal, plain where ``CI`` is set, else silent. Without
        ``width`` the terminal is asked for it once."""
        in_ci = environ.get("CI", "").lower() not in ("", "0", "false")
        dumb = environ.get("TERM") == "dumb"
        mode = "plain" if in_ci else "tty" if stream.isatty() and not dumb else "silent"
        return cls(stream, mode=mode, width=width or (_width(stream) if mode == "tty" else 80))

    def update(
        self, test: str, at: int, of: int | None = None, tok_s: float | None = None, left_s: float | None = None,
        stage: str = "repetition",
    ) -> None:  # fmt: skip
        """``test`` is ``at`` a repetition (or another stage) of ``of`` at most, at ``tok_s`` so far, with ``left_s``
        seconds to go at most. On a terminal too narrow for it all, the test's name gives way."""
        said = [f"{stage} {at}" + (f"/{of}" if of else "")]
        if tok_s is not None:
            said.append(f"{number(tok_s)} tok/s")
        if left_s is not None:
            said.append(f"{seconds(max(left_s, 0.0))} left")
        news = ", ".join(said)
        room = self._width - len(f"llmperf: : {news}") - 1 if self._mode == "tty" else len(test)
        self._show(test, f"{shorten(clean(test), max(room, _LEAST_NAME), '..')}: {news}")

    def say(self, text: str) -> None:
        """Anything else in progress; what stands before the first colon is its subject, whose news may replace each
        other (``sglang Kimi-K2.5: loading weights 43 %, 212 s``)."""
        self._show(text.partition(": ")[0], clean(text))

    def clear(self) -> None:
        """Take the line off the screen; what is printed next begins on a clean line."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._shown = False

    def _show(self, subject: str, text: str) -> None:
        now = self._clock()
        if self._mode == "silent" or (subject == self._subject and now < self._next):
            return
        self._subject, self._next = subject, now + self._every
        encoding = getattr(self._stream, "encoding", None) or "ascii"
        line = f"llmperf: {text}".encode(encoding, "backslashreplace").decode(encoding)
        if self._mode == "plain":
            self._stream.write(f"{line}\n")
        else:
            self._stream.write(f"\r{set_cell_size(line, self._width - 1).rstrip()}\x1b[K")
            self._shown = True
        self._stream.flush()


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):  # no descriptor, or none that knows a size
        return 80
