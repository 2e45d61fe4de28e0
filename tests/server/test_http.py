"""The control plane's requests, against sockets that misbehave."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_llmperf.engines.base import Endpoint
from pytest_llmperf.server.http import PROBE_S, Exchange, LiveProbe, get


@contextmanager
def answering(reply: bytes, seen: list[bytes] | None = None, requests: int = 1) -> Iterator[Endpoint]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(requests):
                connection, _ = listener.accept()
                with connection:
                    data = connection.recv(65536)
                    if seen is not None:
                        seen.append(data)
                    connection.sendall(reply)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Endpoint("127.0.0.1", listener.getsockname()[1], api_key="sk-key")
        thread.join(5)


def http(status: str, body: str, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", body]).encode()


def test_the_key_is_sent_and_proxies_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    seen: list[bytes] = []
    with answering(http("200 OK", '{"a": 1}'), seen) as endpoint:
        answer = get(endpoint, "/health")
    assert (answer.ok, answer.json()) == (True, {"a": 1})
    assert b"Authorization: Bearer sk-key" in seen[0]
    assert seen[0].startswith(b"GET /health HTTP/1.1")


def test_a_redirect_is_not_followed() -> None:
    with answering(http("302 Found", "", "Location: http://127.0.0.1:9/")) as endpoint:
        assert get(endpoint, "/").status == 302


@pytest.mark.parametrize("reply", [b"", b"\x00\xff garbage", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort"])
def test_garbage_is_no_answer(reply: bytes) -> None:
    with answering(reply) as endpoint:
        assert get(endpoint, "/").status == 0


def test_silence_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answer = get(Endpoint("127.0.0.1", listener.getsockname()[1]), "/", timeout=0.2)
        assert (answer.status, answer.text) == (0, "timed out")
        exchange = Exchange(Endpoint("127.0.0.1", listener.getsockname()[1]), "GET", "/")
        assert not exchange.ready(0.05)
        exchange.close()


def test_nobody_listens() -> None:
    answer = get(Endpoint("127.0.0.1", 9), "/")
    assert answer.status == 0
    assert "refused" in answer.text


def test_probe_gives_nothing_for_what_is_not_there() -> None:
    with answering(http("404 Not Found", '{"a": 1}'), requests=2) as endpoint:
        probe = LiveProbe(endpoint, lambda: "the log")
        assert (probe.json("/x"), probe.text("/x"), probe.log) == (None, None, "the log")
    with answering(http("200 OK", "not json"), requests=2) as endpoint:
        probe = LiveProbe(endpoint, str)
        assert (probe.json("/x"), probe.text("/x")) == (None, "not json")


def test_a_probe_waits_as_long_as_it_is_told_to() -> None:
    """vLLM's first /server_info took more than ten seconds on a busy machine, and half the record was unknown."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint("127.0.0.1", listener.getsockname()[1])
        answers = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            answers.wait(10)
            with connection:
                connection.sendall(http("200 OK", '{"a": 1}'))

        thread = threading.Thread(target=serve)
        thread.start()
        assert LiveProbe(endpoint, str, timeout=0.1).json("/x") is None
        answers.set()
        thread.join()
    assert PROBE_S >= 60
