"""What the two dialects have in common: how they log, and the questions that the server asks them."""

from __future__ import annotations

import abc
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from .engine import Engine, Job
from .settings import hit

Reply = tuple[int, Any]
"""HTTP status and body: ``str`` is sent as plain text, anything else as JSON."""

NCCL_VERSION = "2.28.9"
ALL_REDUCE_OFF = (
    "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. "
    "To silence this warning, specify disable_custom_all_reduce=True explicitly."
)


class Dialect(abc.ABC):
    """One engine's endpoints, metrics and log lines. ``descriptor`` is where it logs."""

    descriptor: ClassVar[int]
    default_version: ClassVar[str]

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.settings = engine.settings
        self.born = time.time()
        self._window = (time.monotonic(), 0)

    @property
    def version(self) -> str:
        return self.settings.version or self.default_version

    def write(self, line: str | bytes) -> None:
        """One raw line to the log. A log that nobody reads any more is not an engine's problem."""
        data = line.encode("utf-8", "surrogateescape") if isinstance(line, str) else line
        try:
            os.write(self.descriptor, data + b"\n")
        except OSError:
            return

    def log(self, message: str, level: str = "INFO", source: str = "") -> None:
        """One line in the engine's own format."""
        self.write(self.line(message, level, source))

    @abc.abstractmethod
    def line(self, message: str, level: str = "INFO", source: str = "") -> str:
        """A message in the engine's own format."""

    @abc.abstractmethod
    def access(self, peer: str, method: str, path: str, status: int) -> None:
        """The line that uvicorn writes for a request."""

    @abc.abstractmethod
    def banner(self) -> None:
        """Lines before anything is loaded."""

    @abc.abstractmethod
    def loading(self, shards: int) -> Iterator[str]:
        """Whole lines while so many shards load, kernels compile and graphs are captured; the caller spreads them."""

    @abc.abstractmethod
    def loaded(self) -> None:
        """Lines when the port opens."""

    @abc.abstractmethod
    def fired_up(self) -> None:
        """Lines when the server is ready."""

    @abc.abstractmethod
    def goodbye(self) -> None:
        """Lines of an orderly end."""

    @abc.abstractmethod
    def aftermath(self) -> Iterator[str]:
        """Whole lines that the outer process adds after the inner one has crashed: never the cause."""

    @abc.abstractmethod
    def needs_key(self, path: str) -> bool:
        """True when this path is refused without the API key."""

    @abc.abstractmethod
    def get(self, path: str, query: Mapping[str, str]) -> Reply | None:
        """Answer a GET; None when there is no such path."""

    @abc.abstractmethod
    def post(self, path: str, body: Mapping[str, Any]) -> Reply | None:
        """Answer a POST other than generation; None when there is no such path."""

    @abc.abstractmethod
    def error(self, status: int, message: str, kind: str) -> dict[str, Any]:
        """The body of an error."""

    @abc.abstractmethod
    def metrics(self) -> str:
        """Prometheus exposition text."""

    @abc.abstractmethod
    def on_start(self, job: Job) -> None:
        """Log that a request was taken up."""

    @abc.abstractmethod
    def on_step(self, job: Job) -> None:
        """Log, now and then, that a chunk was given."""

    def nccl_lines(self) -> Iterator[str]:
        """What NCCL itself prints: its version, and with NCCL_DEBUG=INFO every variable it was given, once a rank."""
        debug = os.environ.get("NCCL_DEBUG", "").upper()
        if self.engine.options.tp < 2 or debug not in ("INFO", "VERSION"):
            return
        for rank in range(self.engine.options.tp):
            yield f"node:{os.getpid()}:{os.getpid()} [{rank}] NCCL INFO NCCL version {NCCL_VERSION}+cuda13.0"
            for name, value in sorted(os.environ.items()) if debug == "INFO" else ():
                if name.startswith("NCCL_") and name != "NCCL_DEBUG":
                    yield f"node:{os.getpid()}:{os.getpid()} [{rank}] NCCL INFO {name} set by environment to {value}."

    def bar(self, what: str, done: int, total: int) -> str:
        """A progress bar as tqdm draws it, starting with a carriage return."""
        share = 100 * done // total
        left = total - done
        return (
            f"\r{what}: {share:3d}%|{'█' * (share // 10):<10}| {done}/{total} [00:{done:02d}<00:{left:02d},  1.01s/it]"
        )

    def weights(self, done: int, total: int) -> str:
        """The bar of weights that load."""
        share = 100 * done // total
        return f"\rLoading safetensors checkpoint shards: {share:3d}% Completed | {done}/{total} [00:01<00:01]"

    def waiting(self) -> int:
        """Requests in the queue, or as many as FAKE_QUEUE pretends."""
        pretended = [int(hit(self.settings.queue, job.number) or 0) for job in self.engine.running]
        return max([len(self.engine.waiting), *pretended])

    def accept_length(self) -> float:
        counters = self.engine.counters
        return 1 + counters.accepted / counters.drafts if counters.drafts else 0.0

    def accept_rate(self) -> float:
        counters = self.engine.counters
        return counters.accepted / counters.draft_tokens if counters.draft_tokens else 0.0

    def rate(self) -> float:
        """Tokens per second since the last call."""
        then, before = self._window
        now, after = self._window = (time.monotonic(), self.engine.counters.given)
        return (after - before) / max(now - then, 1e-6)


def exposition(rows: Sequence[tuple[str, str, str, float]]) -> str:
    """Prometheus text from (name, type, labels, value) rows; rows of one name must be neighbours."""
    lines: list[str] = []
    last = ""
    for name, kind, labels, value in rows:
        if name != last:
            lines += [f"# HELP {name} {name.partition(':')[2]}", f"# TYPE {name} {kind}"]
        last = name
        lines.append(f"{name}{{{labels}}} {float(value)}")
    return "\n".join(lines) + "\n"
