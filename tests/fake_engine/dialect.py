"""What the two dialects have in common: how they log, and the questions that the server asks them."""

from __future__ import annotations

import abc
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from .answer import Answer
from .engine import Engine

Reply = tuple[int, Any]
"""HTTP status and body: ``str`` is sent as plain text, anything else as JSON."""


class Dialect(abc.ABC):
    """One engine's endpoints, metrics and log lines. ``descriptor`` is where it logs."""

    descriptor: ClassVar[int] = 1

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.options, self.settings = engine.options, engine.settings
        self.started = time.time()
        self._steps = 0
        self._window = (time.monotonic(), 0)

    def write(self, line: str | bytes) -> None:
        """One raw line to the log. A log that nobody reads any more is not an engine's problem."""
        data = line.encode("utf-8", "surrogateescape") if isinstance(line, str) else line
        try:
            os.write(self.descriptor, data + b"\n")
        except OSError:
            return

    @abc.abstractmethod
    def log(self, message: str, level: str = "INFO", source: str = "") -> None:
        """One line in the engine's own format."""

    @abc.abstractmethod
    def access(self, peer: str, method: str, path: str, status: int) -> None:
        """The line that uvicorn writes for a request."""

    @abc.abstractmethod
    def banner(self) -> None:
        """Lines before anything is loaded."""

    @abc.abstractmethod
    def loading(self) -> Iterator[str]:
        """Progress lines while weights load, kernels compile and graphs are captured; the caller spreads them in time."""

    @abc.abstractmethod
    def loaded(self) -> None:
        """Lines between the end of loading and the open port."""

    @abc.abstractmethod
    def fired_up(self) -> None:
        """Lines when the server answers its first request."""

    @abc.abstractmethod
    def goodbye(self) -> None:
        """Lines of an orderly end."""

    @abc.abstractmethod
    def needs_key(self, path: str) -> bool:
        """True when this path is refused without the API key."""

    @abc.abstractmethod
    def get(self, path: str, query: Mapping[str, str]) -> Reply | None:
        """Answer a GET; None when there is no such path."""

    @abc.abstractmethod
    def post(self, path: str, query: Mapping[str, str], body: Mapping[str, Any]) -> Reply | None:
        """Answer a POST other than generation; None when there is no such path."""

    @abc.abstractmethod
    def error(self, status: int, message: str, kind: str) -> dict[str, Any]:
        """The body of an error."""

    @abc.abstractmethod
    def metrics(self) -> str:
        """Prometheus exposition text."""

    def answer_log(self, event: str, answer: Answer) -> None:
        """``start``, ``end`` or ``die`` of a request."""

    def step_log(self, answer: Answer) -> None:
        """A chunk was given."""

    def rate(self) -> float:
        """Tokens per second since the last call."""
        (then, before), self._window = self._window, (time.monotonic(), self.engine.counters.generation)
        now, after = self._window
        return (after - before) / max(now - then, 1e-6)


def exposition(rows: Sequence[tuple[str, str, str, float]]) -> str:
    """Prometheus text from (name, type, labels, value) rows; rows of one name must be neighbours."""
    lines: list[str] = []
    last = ""
    for name, kind, labels, value in rows:
        family = name[: -len("_total")] if kind == "counter" and name.endswith("_total") else name
        if name != last:
            lines += [f"# HELP {name} {family.partition(':')[2]}", f"# TYPE {name} {kind}"]
        last = name
        lines.append(f"{name}{{{labels}}} {value}")
    return "\n".join(lines) + "\n"
