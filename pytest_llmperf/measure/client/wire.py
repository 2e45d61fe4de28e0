"""One request over one socket: send, stamp every read, keep the raw bytes. Nothing is parsed while the clock runs.

On Linux the kernel stamps each segment as it arrives (``SO_TIMESTAMPNS``), so that a reader that wakes up late still
knows when the bytes came. A read that spans segments gets the stamp of its last one only, so reads are cut at the
boundaries of HTTP chunks: a server writes one for each event. (The kernel may itself join segments that wait for a
reader more than a gap late; the guard on the client's delay watches for that.)

Stamps are nanoseconds on CLOCK_MONOTONIC; kernel stamps are wall clock, which somebody may set in the midst of a
request, and are moved over by the offset of the two clocks that was sampled with the read.
"""

from __future__ import annotations

import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from pytest_llmperf.measure.client.tls import Tls, shake_hands

#: A chunked body ends like this, in a read of its own or not; no event of JSON does.
LAST_CHUNK = b"0\r\n\r\n"
_SHORTEST = len(LAST_CHUNK)
READ_SIZE = 1 << 16
#: Seconds between two looks at whether a silent server still lives.
TICK_S = 1.0
#: SO_TIMESTAMPNS of asm-generic/socket.h; Python does not name it.
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@ll")
_TIMEVAL = struct.Struct("@ll")
ANCILLARY_SIZE = socket.CMSG_SPACE(_TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0
#: Offsets of the two clocks closer than this are one and the same: what came together keeps one stamp.
_CLOCK_STEP_NS = 50_000

Ancillary = list[tuple[int, int, bytes]]
Read = tuple[int, Ancillary, bytes, int]
"""User stamp (ns), ancillary data, bytes (decrypted), wall clock right after the user stamp (ns). The bytes of the last
one are empty when the server hung up."""


@dataclass(frozen=True)
class Target:
    """Where to connect. ``tls`` is the context to wrap the socket with, None for plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True)
class Recording:
    """What came back for one request, raw.

    ``offsets``: wall clock minus monotonic clock before and after (ns). ``error``: how the connection failed, None
    when the server closed it or the body was seen to end.
    """

    sent_ns: int
    reads: tuple[Read, ...]
    offsets: tuple[int, int]
    error: str | None = None


class Stamped(NamedTuple):
    """Bytes and when they arrived: kernel stamp where there is one, else the user's. ``delay_ns``: user - kernel."""

    at_ns: int
    data: bytes
    delay_ns: int | None = None


def clock_offset() -> int:
    """Wall clock minus monotonic clock in ns: the tightest of five bracketed samples."""
    best = (1 << 62, 0)
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        best = min(best, (after - before, wall - (before + after) // 2))
    return best[1]


def kernel_stamps(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what arrives; False where it cannot."""
    if not sys.platform.startswith("linux") or not hasattr(sock, "recvmsg"):
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class Line:
    """A connected socket, whose reads block for at most ``TICK_S``; ``kernel``: what arrives is stamped there."""

    sock: socket.socket
    tls: Tls | None
    kernel: bool

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *exception: object) -> None:
        self.sock.close()


def connect(target: Target, timeout: float) -> Line:
    """Connect, TLS included. Raises ``OSError``."""
    with ExitStack() as unless_ready:
        sock = unless_ready.enter_context(socket.create_connection((target.host, target.port), timeout))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = Tls(target.tls, target.host) if target.tls is not None else None
        if tls is not None:
            shake_hands(sock, tls)
        # a blocking socket with a kernel timeout: Python's own would cost a poll() for every read
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(int(TICK_S), 0))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(timeout), 0))
        line = Line(sock, tls, kernel_stamps(sock))
        unless_ready.pop_all()
        return line


def hold_stamps() -> socket.socket:
    """Keep kernel stamps switched on until this is closed: the kernel needs milliseconds to switch them on, and with
    the last socket that wants them it switches them off."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    kernel_stamps(sock)
    return sock


#: Told the seconds since the last byte and the reads so far, once a second of silence. None: wait on; "": the answer
#: was complete; a text: why the request is given up. May raise.
Silent = Callable[[float, list[Read]], "str | None"]


def chunk_size(line: bytes) -> int:
    """Size of an HTTP chunk by its first line, which may name extensions; negative when it is no such line."""
    try:
        return int(line, 16)
    except ValueError:
        size, extended, _ = line.partition(b";")
        return chunk_size(size) if extended else -1


class _GaveUpError(Exception):
    """The silence handler ended the request; the message is its text."""


class _Tape:
    """The reads of one response as they come."""

    def __init__(self, line: Line, silent: Silent) -> None:
        self._sock, self._tls, self._kernel, self._silent = line.sock, line.tls, line.kernel, silent
        self._start = time.monotonic_ns()
        self.reads: list[Read] = []

    def play(self) -> None:
        """Read to the end of the body (chunked) or of the connection.

        Reads are cut only where the kernel does stamp: events that came together must keep one stamp.
        """
        if self._kernel and self._tls is None and self._head() and self.reads[0][1]:
            self._chunks()
        elif not (self.reads and not self.reads[-1][2]):
            while self._keep(READ_SIZE) and not (self.reads and self.reads[-1][2].endswith(LAST_CHUNK)):
                pass

    def _head(self) -> bool:
        """Take the response's head and nothing after it; True when the body is chunked."""
        head = b""
        while (end := head.find(b"\r\n\r\n")) < 0:
            more = self._take(READ_SIZE, socket.MSG_PEEK)
            if not more:
                return False
            whole = (head + more).find(b"\r\n\r\n")
            self._keep(len(more) if whole < 0 else whole + 4 - len(head))
            head += self.reads[-1][2]
        return b"chunked" in head[:end].lower()

    def _chunks(self) -> None:
        """Take one HTTP chunk after another, each in a read of its own, to the last or to the end of the connection.

        This loop is what a token costs: the caches are cold after every sleep, so it makes no call that it can spare.
        Five bytes are the shortest chunk (``0 CR LF CR LF``), so they never reach into the next one.
        """
        recv, recvmsg, keep = self._sock.recv, self._sock.recvmsg, self.reads.append
        clock, wall = time.monotonic_ns, time.time_ns
        while True:
            try:
                head = recv(_SHORTEST)
            except (BlockingIOError, TimeoutError):
                self._wait_on()
                continue
            line = head.find(b"\r\n")
            if line < 0 or len(head) < _SHORTEST:
                head = self._complete(head)
                line = head.find(b"\r\n")
            try:
                size = int(head[:line], 16)
            except ValueError:
                size = chunk_size(head[:line])
            if size < 1:  # the last one, no HTTP or no more: the verdict is the parser's
                keep((clock(), [], head, wall()))
                return
            rest = line + 2 + size + 2 - len(head)
            while rest > 0:
                try:
                    data, ancillary, _, _ = recvmsg(rest if rest < READ_SIZE else READ_SIZE, ANCILLARY_SIZE)
                except (BlockingIOError, TimeoutError):
                    self._wait_on()
                    continue
                keep((clock(), ancillary, head + data, wall()))
                if not data:
                    return
                rest, head = rest - len(data), b""

    def _complete(self, head: bytes) -> bytes:
        """``head`` and what follows it, to the end of the chunk's first line or of the connection."""
        while (len(head) < _SHORTEST or b"\r\n" not in head) and (more := self._take(max(_SHORTEST - len(head), 1))):
            head += more
        return head

    def _take(self, size: int, flags: int = 0) -> bytes:
        while True:
            try:
                return self._sock.recv(size, flags)
            except (BlockingIOError, TimeoutError):
                self._wait_on()

    def _keep(self, size: int) -> int:
        """Read with a stamp. Returns the bytes read."""
        while True:
            try:
                received, ancillary, _, _ = self._sock.recvmsg(size, ANCILLARY_SIZE)
            except (BlockingIOError, TimeoutError):
                self._wait_on()
                continue
            now, wall = time.monotonic_ns(), time.time_ns()
            data = received if self._tls is None or not received else self._tls.decrypt(received)
            if data or not received:  # a part of a record gives nothing yet
                self.reads.append((now, ancillary, data, wall))
            return len(received)

    def _wait_on(self) -> None:
        last = self.reads[-1][0] if self.reads else self._start
        verdict = self._silent((time.monotonic_ns() - last) / 1e9, self.reads)
        if verdict is not None:
            raise _GaveUpError(verdict)


def exchange(line: Line, payload: bytes, silent: Silent) -> Recording:
    """Send ``payload`` and read one response.

    The line stays open: closing it is the caller's, who also closes it when this raises (``KeyboardInterrupt``, or
    what ``silent`` raises).
    """
    error: str | None = None
    tape = _Tape(line, silent)
    if line.tls is not None:
        payload = line.tls.encrypt(payload)
    before = clock_offset()
    sent = time.monotonic_ns()
    try:
        line.sock.sendall(payload)
        tape.play()
    except _GaveUpError as gave_up:
        error = str(gave_up) or None
    except OSError as failure:
        error = failure.strerror or str(failure)
    return Recording(sent, tuple(tape.reads), (before, clock_offset()), error)


def stamped(recording: Recording) -> tuple[Stamped, ...]:
    """Each read with the best stamp there is.

    A read's offset is the lowest of its own and its neighbours': a process that is put aside between the two clocks
    sees too high a one, never too low. Where the wall clock was set between neighbours, the lowest is the right one or
    makes the stamp late, and no stamp is later than the user's.
    """
    before, after = recording.offsets
    offset, sent = before, recording.sent_ns
    offsets = [before, *(wall - user for user, _, _, wall in recording.reads), after]
    out: list[Stamped] = []
    for i, (user, ancillary, data, _) in enumerate(recording.reads):
        lowest = min(offsets[i : i + 3])
        if abs(lowest - offset) > _CLOCK_STEP_NS:
            offset = lowest
        kernel = _kernel_ns(ancillary)
        if kernel is None:
            out.append(Stamped(user, data))
        else:
            at = kernel - offset
            if at < sent:
                at = sent
            if at > user:
                at = user
            out.append(Stamped(at, data, user - at))
    return tuple(out)


def _kernel_ns(ancillary: Ancillary) -> int | None:
    for level, kind, value in ancillary:
        if kind == _SO_TIMESTAMPNS and level == socket.SOL_SOCKET and len(value) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(value)
            wall: int = seconds * 1_000_000_000 + nanoseconds
            return wall
    return None
