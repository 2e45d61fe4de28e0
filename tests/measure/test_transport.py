"""Ways to a server: TLS, a proxy, none; and what is left behind when somebody stops us."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_llmperf.engines.base import Endpoint
from pytest_llmperf.errors import MeasurementError
from pytest_llmperf.measure.client.compiler import proxy_for
from pytest_llmperf.measure.load import load
from pytest_llmperf.measure.run import Run
from pytest_llmperf.measure.workloads import Workload
from tests.conftest import StartFake, wait_for
from tests.measure.conftest import ONE_WARMUP, Measure, connection_to

PACE = {"FAKE_ITL_MS": 10, "FAKE_TTFT_MS": 40}
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Relay:
    """Passes bytes between whoever connects and a port here. ``wrap`` turns an accepted socket into another (TLS);
    ``asked`` holds what it was asked as a proxy."""

    def __init__(self, port: int, wrap: Callable[[socket.socket], socket.socket] = lambda sock: sock) -> None:
        self.asked: list[bytes] = []
        self._to, self._wrap = ("127.0.0.1", port), wrap
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError), self._wrap(sock) as near, socket.create_connection(self._to) as far:
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while self._pass(near, far):  # in one thread: an SSL object does not stand two
                pass

    def _pass(self, near: socket.socket, far: socket.socket) -> bool:
        waiting = isinstance(near, ssl.SSLSocket) and near.pending()
        ready = [near] if waiting else select.select([near, far], [], [])[0]
        for source, sink in ((near, far), (far, near)):
            if source in ready:
                data = source.recv(1 << 16)
                if data.startswith(b"POST http://"):  # as a proxy is asked
                    self.asked.append(data)
                    method, _, rest = data.partition(b" http://")
                    data = method + b" /" + rest.partition(b"/")[2]
                if not data:
                    return False
                sink.sendall(data)
        return True


@pytest.fixture
def relay() -> Iterator[Callable[..., Relay]]:
    made: list[Relay] = []

    def make(*args: Any) -> Relay:
        made.append(Relay(*args))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A fresh self-signed certificate for localhost and its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    try:
        subprocess.run([*words.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    return cert, key


def test_tls_is_verified_and_keeps_the_kernels_stamps(
    fake_server: StartFake,
    measure: Measure,
    relay: Callable[..., Relay],
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = fake_server("vllm", env=PACE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    port = relay(server.port, lambda sock: context.wrap_socket(sock, server_side=True)).port
    endpoint = Endpoint("localhost", port, scheme="https")
    with pytest.raises(MeasurementError, match="did not answer"):
        measure(server, connection={"endpoint": endpoint})
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    run = measure(server, connection={"endpoint": endpoint})
    assert run.decode_tok_s == pytest.approx(100, rel=0.1)  # the relay is not in the stand-in's truth
    assert run.measurement.evidence["transport"] == "tls"
    assert run.measurement.evidence["kernel_stamps"] == 1.0
    many = load(
        connection_to(server, endpoint=endpoint),
        Workload(16, 8, concurrency=3, requests=6),
        seed="x",
    )
    assert not many.measurement.invalid
    assert many.stream_tok_s == pytest.approx(100, rel=0.2)


def test_a_proxy_is_honoured_as_openai_does(
    fake_server: StartFake, measure: Measure, relay: Callable[..., Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fake_server("vllm", env=PACE)
    proxy = relay(server.port)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
    elsewhere = Endpoint("engine.example", 80)
    run = measure(server, connection={"endpoint": elsewhere})
    assert not run.measurement.invalid
    assert run.measurement.evidence["transport"] == "raw"
    assert run.measurement.evidence["kernel_stamps"] == 0
    assert any(request.startswith(b"POST http://engine.example/v1/completions") for request in proxy.asked)
    assert run.decode_tok_s == pytest.approx(100, rel=0.3)  # stamps of a process that may have to wait for a core
    with pytest.raises(MeasurementError, match="proxy"):
        load(connection_to(server, endpoint=elsewhere), Workload(16, 8, concurrency=2), seed="x")


def test_a_server_on_this_host_is_never_reached_through_a_proxy(
    fake_server: StartFake, measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fake_server("vllm", env=PACE)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert not measure(server).measurement.invalid
    assert proxy_for(Endpoint("engine.example", 80)) == "http://127.0.0.1:9"
    monkeypatch.setenv("no_proxy", "engine.example")
    assert proxy_for(Endpoint("engine.example", 80)) is None


@pytest.mark.parametrize("many", [False, True])
def test_an_interrupt_leaves_nothing_open(fake_server: StartFake, measure: Measure, many: bool) -> None:
    """Ctrl-C while requests are served: it comes through, no socket stays, the server sees us leave."""
    server = fake_server("vllm", env={"FAKE_ITL_MS": 10, "FAKE_STALL": "10000:10@12"})

    def interrupt() -> None:
        wait_for(lambda: len(server.truth) > 10, "all before the one that stalls to have ended")
        wait_for(lambda: json.loads(server.get("/load")[1])["server_load"], "that one to be served")
        signal.raise_signal(signal.SIGINT)

    def run() -> Run:
        if many:
            work = Workload(16, 50, concurrency=3, requests=60)
            return load(connection_to(server), work, seed="x", limits=ONE_WARMUP)
        return measure(server, output_tokens=50, repetitions=60)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run()
    assert not [c for c in psutil.Process().net_connections("tcp") if c.raddr and c.raddr.port == server.port]
    wait_for(lambda: server.truth[-1]["end"] == "client gone", "the server to notice")
