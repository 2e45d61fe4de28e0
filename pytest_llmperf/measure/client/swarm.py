"""Many streams at once: one selector loop connects, sends, stamps and keeps raw bytes. Nothing is parsed inside.

Closed loop: so many streams, each sending its next request when its last has ended. Open loop: every request at its
own time, whatever becomes of the others.
"""

from __future__ import annotations

import errno
import itertools
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_llmperf.errors import MeasurementError
from pytest_llmperf.measure.client.body import parse_http
from pytest_llmperf.measure.client.compiler import Call
from pytest_llmperf.measure.client.tls import Tls
from pytest_llmperf.measure.client.wire import (
    ANCILLARY_SIZE,
    LAST_CHUNK,
    READ_SIZE,
    TICK_S,
    Read,
    Recording,
    Target,
    clock_offset,
    kernel_stamps,
    stamped,
)
from pytest_llmperf.measure.limits import Limits

_TICK_NS = int(TICK_S * 1e9)


def _address(target: Target, timeout: float) -> tuple[socket.AddressFamily, Any]:
    """Family and address that answer: a name may have several, of which a server listens on one."""
    try:
        with socket.create_connection((target.host, target.port), timeout) as probe:
            return probe.family, probe.getpeername()
    except OSError as error:
        raise MeasurementError(f"cannot connect to {target.host}:{target.port}: {error.strerror or error}") from error


@dataclass(eq=False)
class _Flight:
    """One request under way. ``last_ns``: when something last happened to it; ``tls`` until ``shaking`` is set up."""

    call: Call
    sock: socket.socket
    tls: Tls | None
    last_ns: int
    due_ns: int | None
    shaking: bool
    unsent: bytes = b""
    sent_ns: int = 0
    offset: int = 0
    reads: list[Read] = field(default_factory=list)


@dataclass(frozen=True)
class Finished:
    """A request that has ended. ``successor``: another took its place; ``due_ns``: when an open loop wanted it sent."""

    call: Call
    recording: Recording
    ended_ns: int
    successor: bool
    due_ns: int | None = None


class Swarm:
    """Plays many calls, each on a connection of its own; all sockets are closed when ``play`` returns or raises.

    ``check`` raises when the server is gone. Raises ``MeasurementError`` when there are no more sockets to be had.
    """

    def __init__(self, target: Target, limits: Limits, check: Callable[[], None]) -> None:
        self._limits, self._check = limits, check
        self._tls, self._name = target.tls, target.host
        self._address = _address(target, limits.connect_s)
        self._selector = selectors.DefaultSelector()
        self._flights: set[_Flight] = set()
        self._calls: Iterator[Call] = iter(())
        self._pending: deque[tuple[int, Call]] = deque()
        self._finished: list[Finished] = []

    def closed_loop(self, calls: Iterator[Call], streams: int) -> list[Finished]:
        """Keep ``streams`` requests in flight until ``calls`` runs out and every request has ended."""
        self._calls = calls
        self._pending.extend((0, call) for call in itertools.islice(calls, streams))
        return self._play()

    def open_loop(self, calls: Sequence[Call], after_s: Sequence[float]) -> list[Finished]:
        """Send each call at its time (seconds from now, ascending) and wait until every request has ended."""
        start = time.monotonic_ns()
        self._pending.extend((start + int(s * 1e9), call) for s, call in zip(after_s, calls, strict=True))
        return self._play()

    def _play(self) -> list[Finished]:
        clock, select, pending = time.monotonic_ns, self._selector.select, self._pending
        looked = clock()
        try:
            while pending or self._flights:
                now = clock()
                while pending and pending[0][0] <= now:
                    due, call = pending.popleft()
                    self._launch(call, due or None)
                wait = min(TICK_S, (pending[0][0] - now) / 1e9) if pending else TICK_S
                for key, _ in select(wait):
                    self._advance(key.data)
                if clock() - looked > _TICK_NS:
                    looked = clock()
                    self._look(looked)
        finally:
            for flight in self._flights:
                flight.sock.close()
            self._selector.close()
        return self._finished

    def _launch(self, call: Call, due_ns: int | None) -> None:
        family, address = self._address
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise MeasurementError(
                f"no socket for stream {len(self._flights) + 1}: {error.strerror}; lower concurrency or rate, or raise "
                "the limit on open files (ulimit -n)"
            ) from error
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex(address)
        kernel_stamps(sock)
        tls = Tls(self._tls, self._name) if self._tls is not None else None
        flight = _Flight(call, sock, tls, time.monotonic_ns(), due_ns, shaking=tls is not None)
        if tls is not None:
            _, flight.unsent = tls.shake()
        self._flights.add(flight)
        self._selector.register(sock, selectors.EVENT_WRITE, flight)
        if code not in (0, errno.EINPROGRESS):
            self._end(flight, f"cannot connect: {os.strerror(code)}")

    def _advance(self, flight: _Flight) -> None:
        """A socket is ready: take one step."""
        try:
            if flight.unsent or not (flight.sent_ns or flight.shaking):
                self._send(flight)
                return
            data, ancillary, _, _ = flight.sock.recvmsg(READ_SIZE, ANCILLARY_SIZE)
            now, wall = time.monotonic_ns(), time.time_ns()
            flight.last_ns = now
            if flight.shaking:
                self._shake(flight, data)
                return
            if flight.tls is not None and data and not (data := flight.tls.decrypt(data)):
                return  # part of a record
            flight.reads.append((now, ancillary, data, wall))
            if not data or data.endswith(LAST_CHUNK):
                self._end(flight, None)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(flight, error.strerror or str(error))

    def _shake(self, flight: _Flight, data: bytes) -> None:
        assert flight.tls is not None
        if not data:
            raise ConnectionError("the server hung up during the TLS handshake")
        done, flight.unsent = flight.tls.shake(data)
        flight.shaking = not done
        if done or flight.unsent:
            self._selector.modify(flight.sock, selectors.EVENT_WRITE, flight)

    def _send(self, flight: _Flight) -> None:
        """Send what is left; the request itself once the line is up."""
        if not flight.unsent:
            flight.unsent = flight.call.payload if flight.tls is None else flight.tls.encrypt(flight.call.payload)
            flight.offset = clock_offset()
            flight.sent_ns = flight.last_ns = time.monotonic_ns()
        flight.unsent = flight.unsent[flight.sock.send(flight.unsent) :]
        if not flight.unsent and (flight.sent_ns or flight.shaking):
            self._selector.modify(flight.sock, selectors.EVENT_READ, flight)

    def _end(self, flight: _Flight, error: str | None) -> None:
        ended = time.monotonic_ns()
        self._selector.unregister(flight.sock)
        flight.sock.close()
        self._flights.discard(flight)
        if error is not None:  # the measurement is invalid already: let what is under way end, send nothing more
            self._pending.clear()
            self._calls = iter(())
        following = next(self._calls, None)
        offsets = (flight.offset, clock_offset() if flight.offset else 0)
        recording = Recording(flight.sent_ns or ended, tuple(flight.reads), offsets, error=error)
        self._finished.append(Finished(flight.call, recording, ended, following is not None, flight.due_ns))
        if following is not None:
            self._launch(following, None)

    def _look(self, now: int) -> None:
        """Once a second: streams that fell silent have ended unnoticed, time out, or the server is gone."""
        silent = [f for f in self._flights if now - f.last_ns > _TICK_NS]
        if silent:
            self._check()
        for flight in silent:
            seconds = (now - flight.last_ns) / 1e9
            limit = self._limits.idle_s if flight.reads else self._limits.first_token_s
            if not flight.sent_ns:
                limit = self._limits.connect_s
            if flight.reads and parse_http(stamped(Recording(0, tuple(flight.reads), (0, 0)))).complete:
                self._end(flight, None)
            elif seconds > limit:
                self._end(flight, f"timed out: nothing came for {seconds:.0f} s")
