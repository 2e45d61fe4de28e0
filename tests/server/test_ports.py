from __future__ import annotations

import os
import socket

import pytest

from pytest_llmperf.errors import LaunchError
from pytest_llmperf.server.ports import listeners, reserve


def bound(port: int, *options: int) -> socket.socket:
    sock = socket.socket()
    for option in options:
        sock.setsockopt(socket.SOL_SOCKET, option, 1)
    sock.bind(("127.0.0.1", port))
    return sock


@pytest.mark.parametrize("option", [socket.SO_REUSEADDR, socket.SO_REUSEPORT])
def test_an_engine_gets_in_and_answers_while_the_port_is_held(option: int) -> None:
    held = reserve("127.0.0.1")
    with bound(held.port, option) as engine:
        engine.listen()
        with socket.create_connection(("127.0.0.1", held.port), 2) as client:
            accepted, _ = engine.accept()
            accepted.sendall(b"ours")
            accepted.close()
            assert client.recv(9) == b"ours"
    held.close()


def test_a_program_that_asks_for_that_port_outright_does_not() -> None:
    held = reserve("127.0.0.1")
    with pytest.raises(OSError, match="in use"):
        bound(held.port)
    held.close()
    free = reserve("127.0.0.1", hold=False)
    bound(free.port).close()


def test_the_kernel_gives_a_held_port_to_nobody_else() -> None:
    held = [reserve("127.0.0.1") for _ in range(200)]
    assert len({r.port for r in held}) == 200
    for r in held:
        r.close()


def test_an_address_of_another_host() -> None:
    with pytest.raises(LaunchError, match="set `bind` of the engine"):
        reserve("192.0.2.1")


def test_listeners_are_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        mine = listeners(port, {os.getpid()})
        assert (mine.ours, mine.foreign) == (True, ())
        theirs = listeners(port, {1})
        assert not theirs.ours
        assert f"pid {os.getpid()} (" in theirs.foreign[0]
    assert listeners(port, {os.getpid()}) == listeners(port, set())
