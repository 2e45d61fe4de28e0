"""Why an engine ended: the cause out of its log and exit code, in words, with what to do about it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_llmperf.server.crash_signs import PORT_IN_USE, SIGNALS, SIGNS, STALLED_RANKS, Sign
from pytest_llmperf.server.masking import printable

#: Lines of the log that a message shows, and characters of each.
TAIL_LINES = 15
LINE_WIDTH = 240


@dataclass(frozen=True)
class Cause:
    """``what`` in words, the log's ``line`` that says so, and ``advice``; empty strings where unknown."""

    what: str
    line: str = ""
    advice: str = ""

    def __str__(self) -> str:
        return self.what + (f"\n  its log says: {self.line}" if self.line else "")


#: ``SomethingError: message`` behind the prefixes that engines put before a traceback's lines.
_EXCEPTION = re.compile(r"(?:^|[\s\]|)])((?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit)): (.+)$")
#: Lines that healthy starts print too: by their level, or because what they tell was survived.
_HARMLESS = re.compile(
    r"^(?:\([^)]*\) ?)?(?:\[[^\]]*\] ?)?(?:INFO|DEBUG|WARNING|WARN)\b|\w+Warning:"
    r"|\bignor(?:e|ed|ing)\b|\bfall(?:ing|s)? back\b",
    re.IGNORECASE,
)
#: Lines at the end in which a cause is looked for first, and characters of a line that are looked at.
_END = 400
_LONGEST = 4000
#: Exceptions that only pass on that something else went wrong.
_CASCADE = re.compile(
    r"root cause above|engine core initialization failed|see (?:stack )?trace above|scheduler died during init",
    re.IGNORECASE,
)
#: What a process raises because another one has gone: a cause only where there is no better one.
_PEER_LOST = re.compile(
    r"EOFError|BrokenPipe|Connection(?:Reset|Closed|Refused)|TCPStore|remote process exited"
    r"|NCCL communicator was aborted"
)
#: Python's own word on a signal: native code failed in its midst, and no exception led to it.
_NATIVE = re.compile(r"^Fatal Python error: ")
#: The end of a process that the one we started had started.
_CHILD = re.compile(r"scheduler died during initialization \(exit code: (-?\d+)\)")
#: What an engine says while its ranks wait for each other (vLLM).
_WAITING = re.compile(r"No available shared memory broadcast block found")


def exit_text(code: int) -> str:
    """``exit code 1`` or the signal in words."""
    number = _signal(code)
    if number in SIGNALS:
        return SIGNALS[number][0] + (f" (exit code {code})" if code > 0 else "")
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _signal(code: int | None) -> int:
    """The signal that a process ended by, as itself or as a shell or a container passes it on (128 + number); or 0."""
    if code is None:
        return 0
    return -code if code < 0 else code - 128 if code - 128 in SIGNALS else 0


def find_cause(
    log: str,
    code: int | None,
    crash_patterns: Iterable[tuple[re.Pattern[str], str]] = (),
    fatal_patterns: Sequence[re.Pattern[str]] = (),
) -> Cause:
    """The cause of an end: the engine's own signs, those of any engine, the exception, and only then how it ended.

    An exception comes before the signal that it led to: SGLang kills itself with SIGKILL when a process of it fails. A
    line that matches one of ``fatal_patterns`` is looked at whatever its level says.
    """
    shortened = (line[:_LONGEST] for line in printable(log).splitlines())
    lines = [x for x in shortened if not _HARMLESS.search(x) or any(p.search(x) for p in fatal_patterns)]
    signs = (*(Sign(pattern, what) for pattern, what in crash_patterns), *SIGNS)
    text = "\n".join(lines)
    for part in ("\n".join(lines[-_END:]), text):
        for sign in signs:
            if found := sign.pattern.search(part):
                line = _line_at(part, found.start())
                said = f"{line}\n{found.group()}"
                advice = sign.advice or next((s.advice for s in SIGNS if s.pattern.search(said)), "")
                return Cause(_expand(found, sign.what), _shown(line, found.start(), part), advice)
    if child := _CHILD.search(text):
        code = int(child.group(1))
    return _exception(lines, code) or _failed_within(lines, code, fatal_patterns) or _ending(code)


def _exception(lines: Sequence[str], code: int | None) -> Cause | None:
    """The exception that ended it. Before a signal only one near the end counts: the others were survived."""
    near = lines[-_END:] if _signal(code) else lines
    if _signal(code) and any(map(_NATIVE.search, near)):
        return None
    errors = [m for m in map(_EXCEPTION.search, near) if m and not _CASCADE.search(m.group())]
    own = [m for m in errors if not _PEER_LOST.search(m.group())] or errors
    return Cause(_cut(f"{own[-1].group(1)}: {own[-1].group(2)}")) if own else None


def _failed_within(lines: Sequence[str], code: int | None, fatal: Sequence[re.Pattern[str]]) -> Cause | None:
    """It said that one of its processes failed, and killed itself for that."""
    if code is not None and _signal(code) != signal.SIGKILL:
        return None
    said = [line for line in lines if any(p.search(line) for p in fatal)]
    if not said:
        return None
    advice = "its log's last lines are all there is: raise the engine's log level, or start the config by hand"
    return Cause("one of its processes failed without saying why", _cut(said[-1].strip()), advice)


def _ending(code: int | None) -> Cause:
    if code is None:
        return Cause("no known cause in its log")
    return Cause(exit_text(code), advice=SIGNALS.get(_signal(code), ("", ""))[1])


def stall_advice(stage: str, log: str) -> str:
    """What to do about a start that showed no more progress at ``stage``, where its log tells what it waits for."""
    waiting = any(map(_WAITING.search, printable(log).splitlines()[-TAIL_LINES:]))
    return STALLED_RANKS if stage.startswith("joining ranks") or waiting else ""


def port_lost(log: str) -> bool:
    """True when the log says that somebody else has the port."""
    return any(PORT_IN_USE.pattern.search(line[:_LONGEST]) for line in printable(log).splitlines())


def tail(log: str, lines: int = TAIL_LINES) -> str:
    """The last lines, fit for a terminal, each behind a bar."""
    kept = [line.rstrip() for line in printable(log).splitlines() if line.strip()][-lines:]
    return "\n".join(f"  | {_cut(line)}" for line in kept) or "  | (it wrote nothing)"


def _expand(found: re.Match[str], what: str) -> str:
    return _cut(found.expand(what) if "\\" in what else what)


def _line_at(text: str, position: int) -> str:
    end = text.find("\n", position)
    return text[text.rfind("\n", 0, position) + 1 : end if end >= 0 else None]


def _shown(line: str, position: int, text: str) -> str:
    """``line`` of ``text``, cut to the part that ``position`` is in."""
    if len(line.strip()) <= LINE_WIDTH:
        return line.strip()
    begin = max(0, position - text.rfind("\n", 0, position) - 1 - LINE_WIDTH // 2)
    return ("..." if begin else "") + _cut(line[begin:].strip())


def _cut(text: str) -> str:
    return text if len(text) <= LINE_WIDTH else text[: LINE_WIDTH - 3] + "..."
