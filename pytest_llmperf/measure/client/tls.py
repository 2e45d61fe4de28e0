"""TLS beside the socket instead of around it, so that raw reads keep their kernel stamps."""

from __future__ import annotations

import socket
import ssl

_SIZE = 1 << 16


class Tls:
    """One TLS connection's two directions. Feed it what the socket received; send what it hands out."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def shake(self, received: bytes = b"") -> tuple[bool, bytes]:
        """One step of the handshake: (done, bytes to send). Raises ``ssl.SSLError`` (an ``OSError``)."""
        self._incoming.write(received)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False, self._outgoing.read()
        return True, self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        self._object.write(data)
        return self._outgoing.read()

    def decrypt(self, received: bytes) -> bytes:
        """Plain bytes of the records that are whole by now."""
        self._incoming.write(received)
        plain = b""
        try:
            while piece := self._object.read(_SIZE):
                plain += piece
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass  # no whole record left, or the peer said that it will hang up
        return plain


def shake_hands(sock: socket.socket, tls: Tls) -> None:
    """The whole handshake on a blocking socket. Raises ``OSError``."""
    done, answer = tls.shake()
    while True:
        sock.sendall(answer)
        if done:
            return
        received = sock.recv(_SIZE)
        if not received:
            raise ConnectionError("the server hung up during the TLS handshake")
        done, answer = tls.shake(received)
