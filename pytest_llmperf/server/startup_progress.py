"""How far a starting engine is, as its log and its compilers tell: what keeps a start alive, and what a person sees."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import psutil

from pytest_llmperf.server.masking import printable

#: Signs that hold for any engine, after the engine's own. A bare progress bar belongs to the stage before it.
GENERIC: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"(?i)captur\w+ .*(?:graph|batches)|graph captur"), "capturing graphs"),
    (re.compile(r"(?i)load\w*.*(?:weight|shard|checkpoint|safetensors|tensors|model)"), "loading weights"),
    (re.compile(r"(?i)download|fetching \d+ files"), "downloading"),
    (re.compile(r"(?i)compil|autotun|warm(?:ing)?[ -]?up|torch\.compile|inductor|\bjit\b"), "compiling kernels"),
    (re.compile(r"\d+%\|"), ""),
)
#: What engines repeat while nothing happens, though it names work: vLLM's heartbeat, each of its lines.
WAITING = re.compile(
    r"shared memory broadcast block|some processes are hanging|time-consuming work|/kv cache quantization"
)
LONGEST = 250
#: Characters kept of a line that has not ended yet.
REST = 1 << 14
_PERCENT = re.compile(r"(\d{1,3})(?:\.\d+)?\s?%")
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d|\d\d-\d\d(?= \d\d:)|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?|\bpid=\d+")
_COMPILERS = re.compile(r"^(?:nvcc|cicc|ptxas|cudafe\+\+|fatbinary|ninja|cc1plus|clang\S*|hipcc|ld\.lld|nvlink|lld)$")


class StartupProgress:
    """Reads a log piece by piece. A line that only repeats an earlier one, but for its time, is no progress."""

    def __init__(self, patterns: Iterable[tuple[re.Pattern[str], str]], now: float) -> None:
        self._own = tuple(patterns)
        self._patterns = (*self._own, *GENERIC)
        self._seen: set[str] = set()
        self._rest = ""
        self._cpu: dict[int, float] = {}
        self.at = now
        """When the last sign was seen, on the caller's clock."""
        self.stage = "starting"

    def feed(self, text: str, now: float) -> None:
        """Take in what the log gained."""
        *lines, self._rest = printable(self._rest + text).split("\n")
        self._rest = self._rest[-REST:]
        for line in lines:
            self._line(line, now)

    def _line(self, line: str, now: float) -> None:
        if WAITING.search(line):
            return
        # Long lines are dumps of arguments, full of words that mean nothing there.
        for pattern, what in self._patterns if len(line) <= LONGEST else self._own:
            if found := pattern.search(line):
                shape = _CLOCK.sub("", line)
                if shape in self._seen:
                    return
                self._seen.add(shape)
                percent = _PERCENT.search(line)
                words = (found.expand(what) if "\\" in what else what) or _PERCENT.sub("", self.stage).rstrip()
                self.stage = words if percent is None or "%" in words else f"{words} {percent.group(1)} %"
                self.at = now
                return

    def compilers(self, processes: Iterable[psutil.Process], now: float) -> None:
        """Compilers that gained CPU time are progress too: kernels may compile for half an hour without a log line."""
        for p in processes:
            try:
                if not _COMPILERS.match(p.name()):
                    continue
                times = p.cpu_times()
            except psutil.Error:
                continue
            used = times.user + times.system
            if used > self._cpu.get(p.pid, -1.0):
                self._cpu[p.pid] = used
                self.at = now
                self.stage = f"compiling kernels ({p.name()})"
