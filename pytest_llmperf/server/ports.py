"""Ports: one from the kernel, kept for the engine until it listens, and proof of who listens on it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Collection
from dataclasses import dataclass

import psutil

from pytest_llmperf.errors import LaunchError


@dataclass(frozen=True)
class Reservation:
    """A free port. ``socket`` is bound to it without listening, where that keeps others away and lets an engine in."""

    port: int
    socket: socket.socket | None = None

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()


def reserve(bind: str, hold: bool = True) -> Reservation:
    """A port that the kernel says is free on ``bind``.

    Engines load for minutes before they listen. While a bound socket that never listens exists, the kernel gives its
    port to nobody who lets it choose, yet on Linux a server that sets SO_REUSEADDR or SO_REUSEPORT (all known engines
    do) can still bind and listen. ``hold=False`` lets go at once, for an engine that sets neither.
    """
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.bind((bind, 0))
    except OSError as e:
        sock.close()
        raise LaunchError(
            f"no port can be had on {bind!r} ({e.strerror or e}): set `bind` of the engine to an address of this host"
        ) from None
    port = int(sock.getsockname()[1])
    if hold and sys.platform.startswith("linux"):
        # Set after bind: while the kernel chooses, a port that anybody else has bound must not qualify.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return Reservation(port, sock)
    sock.close()
    return Reservation(port)


@dataclass(frozen=True)
class Listeners:
    """Who listens on a port: ``ours`` says whether the tree that was started does; ``foreign`` names anybody else."""

    ours: bool
    foreign: tuple[str, ...] = ()


def listeners(port: int, tree: Collection[int]) -> Listeners:
    """Listening sockets on ``port``, told apart by whether their process is in ``tree``."""
    try:
        found = {c.pid for c in psutil.net_connections("tcp") if _on(c.status, c.laddr, port)}
    except psutil.AccessDenied:  # macOS shows other processes' sockets to root only
        found = {pid for pid in tree if _listens(pid, port)} or {None}
    return Listeners(
        ours=any(pid in tree for pid in found), foreign=tuple(describe(pid) for pid in found if pid not in tree)
    )


def _listens(pid: int, port: int) -> bool:
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(_on(c.status, c.laddr, port) for c in connections)


def _on(status: str, address: tuple[object, ...], port: int) -> bool:
    return status == psutil.CONN_LISTEN and len(address) == 2 and address[1] == port


def describe(pid: int | None) -> str:
    """``pid 123 (python3)`` for a message."""
    if pid is None:
        return "a process of another user"
    try:
        return f"pid {pid} ({psutil.Process(pid).name()})"
    except psutil.Error:
        return f"pid {pid}"
