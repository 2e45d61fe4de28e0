"""A small select loop with timers at absolute times, finer than epoll's milliseconds."""

from __future__ import annotations

import contextlib
import gc
import heapq
import select
import socket
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

MAX_WAIT = 1.0


class Channel:
    """One client's socket: what came in, what could not be written yet, and whether it still lives."""

    def __init__(self, loop: Loop, sock: socket.socket, on_data: Callable[[Channel], None]) -> None:
        self.loop, self.sock, self.on_data = loop, sock, on_data
        host, port, *_ = sock.getpeername()
        self.peer = f"{host}:{port}"
        self.inbox = bytearray()
        self.received = 0.0
        self.outbox = bytearray()
        self.open = True
        self.closing = False
        self.on_close: Callable[[], None] | None = None

    def send(self, data: bytes) -> None:
        """Write now; what the socket does not take waits for it in order."""
        if not self.open:
            return
        if self.outbox:
            self.outbox += data
            return
        try:
            sent = self.sock.send(data)
        except self.loop.not_yet:
            sent = 0
        except OSError:
            self.close()
            return
        if sent < len(data):
            self.outbox += data[sent:]
            self.loop.want_write(self.sock.fileno(), True)

    def flush(self) -> None:
        try:
            del self.outbox[: self.sock.send(self.outbox)]
        except self.loop.not_yet:
            return
        except OSError:
            self.close()
            return
        if not self.outbox:
            self.loop.want_write(self.sock.fileno(), False)
            if self.closing:
                self.close()

    def receive(self) -> bool:
        """Take in and stamp what has come; False when that is nothing, or the peer's goodbye."""
        try:
            data = self.sock.recv(1 << 18)
            while isinstance(self.sock, self.loop.encrypted) and self.sock.pending():
                data += self.sock.recv(1 << 18)
        except self.loop.not_yet:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        self.received = monotonic()
        self.inbox += data
        return True

    def finish(self) -> None:
        """Close once everything is written."""
        self.closing = True
        if not self.outbox:
            self.close()

    def reset(self) -> None:
        """Close so that the peer sees a connection reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.close()

    def close(self) -> None:
        if not self.open:
            return
        self.open = False
        self.loop.forget(self.sock.fileno())
        self.sock.close()
        if self.on_close is not None:
            self.on_close()


class Loop:
    """Runs timers at their times and sockets when they are ready, timers first."""

    def __init__(self) -> None:
        self.channels: dict[int, Channel] = {}
        self.writers: list[int] = []
        self._watched: list[int] = []
        self._listeners: dict[int, tuple[socket.socket, Callable[[Channel], None]]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._stopped = False
        self._tls: ssl.SSLContext | None = None
        self.not_yet: tuple[type[OSError], ...] = (BlockingIOError,)
        self.encrypted: tuple[type[ssl.SSLSocket], ...] = ()

    def at(self, when: float, call: Callable[[], None]) -> None:
        """``call`` at ``when`` on the monotonic clock; calls due at the same time run in the order they were asked."""
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, call))

    def listen(self, sock: socket.socket, on_data: Callable[[Channel], None]) -> None:
        sock.setblocking(False)
        self._listeners[sock.fileno()] = (sock, on_data)
        self._watched.append(sock.fileno())

    def encrypt(self, certificate: str, key: str) -> None:
        """TLS on every connection from now on."""
        import ssl  # here, because few servers need it and all would wait for it

        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(certificate, key)
        self.not_yet = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
        self.encrypted = (ssl.SSLSocket,)

    def want_write(self, fd: int, wanted: bool) -> None:
        """Whether to call ``flush`` of this channel when its socket takes more."""
        if wanted != (fd in self.writers):
            (self.writers.append if wanted else self.writers.remove)(fd)

    def forget(self, fd: int) -> None:
        """A channel is about to close."""
        self.channels.pop(fd)
        self._watched.remove(fd)
        self.want_write(fd, False)

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> None:
        """Until ``stop``. The collector stays off: a pause of its would shift a whole stream."""
        gc.disable()
        with contextlib.suppress(OSError):
            Path("/proc/self/timerslack_ns").write_text("1")
        while not self._stopped:
            wait = MAX_WAIT
            if self._timers:
                wait = min(wait, max(0.0, self._timers[0][0] - monotonic()))
            readable, writable, _ = select.select(self._watched, self.writers, [], wait)
            self._run_timers()
            for fd in writable:
                if channel := self.channels.get(fd):
                    channel.flush()
            for fd in readable:
                if fd in self._listeners:
                    self._accept(*self._listeners[fd])
            # all are stamped before the first is worked on
            ready = [self.channels[fd] for fd in readable if fd in self.channels]
            for channel in [channel for channel in ready if channel.receive()]:
                channel.on_data(channel)

    def _run_timers(self) -> None:
        timers, now = self._timers, monotonic()  # what falls due meanwhile comes after the sockets' turn
        while timers and timers[0][0] <= now:
            heapq.heappop(timers)[2]()

    def _accept(self, listener: socket.socket, on_data: Callable[[Channel], None]) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                self.channels[sock.fileno()] = Channel(self, sock, on_data)
                self._watched.append(sock.fileno())
