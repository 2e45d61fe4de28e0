"""One request over one socket: send, stamp every read, keep the raw bytes. Nothing is parsed while the clock runs.

On Linux the kernel stamps each segment as it arrives (``SO_TIMESTAMPNS``), so that a reader that wakes up late still
knows when the bytes came. Stamps are nanoseconds on CLOCK_MONOTONIC; kernel stamps are wall clock and are moved over
by the offset sampled before and after the request.
"""

from __future__ import annotations

import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

#: A chunked body ends like this, in a read of its own or not; no event of JSON does.
LAST_CHUNK = b"0\r\n\r\n"
READ_SIZE = 1 << 16
#: Seconds between two looks at whether a silent server still lives.
TICK_S = 1.0
#: SO_TIMESTAMPNS of asm-generic/socket.h; Python does not name it.
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@ll")
_TIMEVAL = struct.Struct("@ll")
ANCILLARY_SIZE = socket.CMSG_SPACE(_TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0
#: A wall clock that was stepped or slewed by more than this inside a request spoils its kernel stamps.
_CLOCK_STEP_NS = 50_000

Ancillary = list[tuple[int, int, bytes]]
Read = tuple[int, Ancillary, bytes]
"""User stamp (ns), ancillary data, bytes; empty bytes are the end of the stream."""


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


@dataclass(frozen=True)
class Stamped:
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


def connect(target: Target, timeout: float) -> socket.socket:
    """A connected socket (TLS done) whose reads block for at most ``TICK_S``. Raises ``OSError``."""
    sock = socket.create_connection((target.host, target.port), timeout)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target.tls is not None:
            sock = target.tls.wrap_socket(sock, server_hostname=target.host)
            sock.settimeout(TICK_S)
        else:
            kernel_stamps(sock)
            # a blocking socket with a kernel timeout: Python's own would cost a poll() for every read
            sock.settimeout(None)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(int(TICK_S), 0))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(timeout), 0))
    except BaseException:
        sock.close()
        raise
    return sock


def exchange(sock: socket.socket, payload: bytes, *, silent: Callable[[float, list[Read]], str | None]) -> Recording:
    """Send ``payload`` and read until the server closes or the body ends.

    ``silent`` is called when nothing came for ``TICK_S`` with the seconds since the last byte and the reads so far; a
    text that it returns ends the recording (``""``: the answer was complete). The socket stays open: closing it is the
    caller's, who also closes it when this raises (``KeyboardInterrupt``, what ``silent`` raises).
    """
    clock = time.monotonic_ns
    reads: list[Read] = []
    append = reads.append
    error: str | None = None
    receive = _tls_reader(sock) if isinstance(sock, ssl.SSLSocket) else sock.recvmsg
    before = clock_offset()
    sent = last = clock()
    try:
        sock.sendall(payload)
        while True:
            try:
                data, ancillary, _, _ = receive(READ_SIZE, ANCILLARY_SIZE)
            except (BlockingIOError, TimeoutError):
                verdict = silent((clock() - last) / 1e9, reads)
                if verdict is None:
                    continue
                error = verdict or None
                break
            last = clock()
            append((last, ancillary, data))
            if not data or data.endswith(LAST_CHUNK):
                break
    except OSError as failure:
        error = failure.strerror or str(failure)
    return Recording(sent, tuple(reads), (before, clock_offset()), error)


def _tls_reader(sock: ssl.SSLSocket) -> Callable[[int, int], tuple[bytes, Ancillary, int, object]]:
    def receive(size: int, _ancillary: int) -> tuple[bytes, Ancillary, int, object]:
        return sock.recv(size), [], 0, None

    return receive


def stamped(recording: Recording) -> tuple[Stamped, ...]:
    """Each read with the best stamp there is. A request whose wall clock was stepped falls back on user stamps."""
    before, after = recording.offsets
    steady = abs(after - before) <= _CLOCK_STEP_NS
    offset = (before + after) // 2
    out: list[Stamped] = []
    for user, ancillary, data in recording.reads:
        kernel = _kernel_ns(ancillary) if steady else None
        if kernel is None:
            out.append(Stamped(user, data))
        else:
            at = min(max(kernel - offset, recording.sent_ns), user)
            out.append(Stamped(at, data, user - at))
    return tuple(out)


def _kernel_ns(ancillary: Ancillary) -> int | None:
    for level, kind, value in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(value) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(value)
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return None
