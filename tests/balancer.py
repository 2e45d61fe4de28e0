"""One address before several servers, as a balancer or a restart shows it: bytes are passed on, nothing is changed."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable


class Balancer:
    """``route(connections, requests)`` says to which port of this host a connection goes: the how manyth it is, and how
    many until now, itself included, asked for tokens. It may be replaced."""

    def __init__(self, route: Callable[[int, int], int]) -> None:
        self.route = route
        self._connections = self._requests = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client = self._listening.accept()[0]
                # until its first bytes are here nothing tells what it asks for; a mere look at the port sends none
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        first = client.recv(1 << 16)
        if not first:
            client.close()
            return
        self._connections += 1
        self._requests += first.startswith(b"POST /v1/completions")
        server = socket.create_connection(("127.0.0.1", self.route(self._connections, self._requests)))
        server.sendall(first)
        threading.Thread(target=_pump, args=(client, server), daemon=True).start()
        _pump(server, client)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Every byte until ``source`` ends, and then its end."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
