"""The socket's side: scripted servers, real sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from pytest_llmperf.measure.client.body import parse_http
from pytest_llmperf.measure.client.wire import (
    _SO_TIMESTAMPNS,
    _TIMESPEC,
    Read,
    Recording,
    Target,
    clock_offset,
    connect,
    exchange,
    hold_stamps,
    stamped,
)

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ERROR = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\nno"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


END = chunk(b"")
Step = bytes | Callable[[], None]


class Scripted:
    """Answers one connection with given writes; steps that are functions run in between. ``sent``: (before, after)
    of each write in monotonic ns. ``close`` ends the connection after the last step."""

    def __init__(self, steps: Sequence[Step], close: bool) -> None:
        self.sent: list[tuple[int, int]] = []
        self.request = b""
        self._steps, self._close = steps, close
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.target = Target("127.0.0.1", self._listener.getsockname()[1])
        self.done = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        peer, _ = self._listener.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with peer, contextlib.suppress(OSError):
            self.request = peer.recv(1 << 16)
            for step in self._steps:
                if isinstance(step, bytes):
                    before = time.monotonic_ns()
                    peer.sendall(step)
                    self.sent.append((before, time.monotonic_ns()))
                else:
                    step()
            if not self._close:
                self.done.wait(20)

    def stop(self) -> None:
        self.done.set()
        self._thread.join(20)
        self._listener.close()


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    servers: list[Scripted] = []
    held = hold_stamps()

    def start(*steps: Step, close: bool = True) -> Scripted:
        servers.append(Scripted(steps, close))
        return servers[-1]

    yield start
    held.close()
    for server in servers:
        server.stop()


def play(server: Scripted, silent: Callable[[float, list[Read]], str | None] = lambda s, r: None) -> Recording:
    with connect(server.target, 5) as line:
        return exchange(line, b"POST / HTTP/1.1\r\n\r\n", silent)


def pause() -> None:
    time.sleep(0.03)  # the scripted server's schedule: chunks that are sent apart


def test_every_chunk_has_the_time_it_was_sent(scripted: Callable[..., Scripted]) -> None:
    server = scripted(HEAD, pause, chunk(b"a" * 300), pause, chunk(b"b" * 5000), pause, END)
    recording = play(server)
    response = parse_http(stamped(recording))
    assert response.complete
    assert response.text == "a" * 300 + "b" * 5000
    ends = {piece.data[:1]: piece.at_ns for piece in response.pieces}
    for mark, (before, after) in zip((b"a", b"b"), server.sent[1:], strict=False):
        assert before - 100_000 <= ends[mark] <= after + 100_000


def test_a_late_reader_still_knows_when_the_chunk_came(scripted: Callable[..., Scripted]) -> None:
    sent, read = threading.Event(), threading.Event()
    server = scripted(HEAD, pause, chunk(b"a" * 300), sent.set, lambda: read.wait(10), END)
    with connect(server.target, 5) as line:
        if not line.kernel:
            pytest.skip("no kernel stamps here")
        line.sock.sendall(b"POST / HTTP/1.1\r\n\r\n")
        assert sent.wait(10)
        pause()
        threading.Timer(0.05, read.set).start()
        recording = replace(exchange(line, b"x", lambda s, r: None), sent_ns=0)
    [piece] = [s for s in stamped(recording) if b"a" * 300 in s.data]
    before, after = server.sent[1]
    assert before - 100_000 <= piece.at_ns <= after + 100_000
    assert piece.delay_ns is not None
    assert piece.delay_ns > 20_000_000


def test_the_end_of_the_body_is_seen_without_a_hang_up(scripted: Callable[..., Scripted]) -> None:
    recording = play(scripted(HEAD, chunk(b"a"), END, close=False))
    assert parse_http(stamped(recording)).complete
    assert recording.error is None


def test_a_response_with_a_length_ends_when_it_is_complete(scripted: Callable[..., Scripted]) -> None:
    def silent(seconds: float, reads: list[Read]) -> str | None:
        whole = parse_http(stamped(Recording(0, tuple(reads), (0, 0))))
        return "" if whole.complete else None

    response = parse_http(stamped(play(scripted(ERROR, close=False), silent)))
    assert (response.status, response.text, response.complete) == (400, "no", True)


@pytest.mark.parametrize(
    "steps",
    [
        [HEAD[:10], pause, HEAD[10:], pause, chunk(b"hello")[:2], pause, chunk(b"hello")[2:], END[:3], pause, END[3:]],
        [HEAD + chunk(b"he") + chunk(b"llo") + END],
        [HEAD.replace(b"chunked", b"Chunked"), b"5;ext=1\r\nhello\r\n", END],
        [b"HTTP/1.1 200 OK\r\n\r\nhello"],
    ],
    ids=["split anywhere", "one write", "extensions", "no framing"],
)
def test_framing_survives(scripted: Callable[..., Scripted], steps: list[Step]) -> None:
    response = parse_http(stamped(play(scripted(*steps))))
    assert (response.text, response.complete) == ("hello", True)


@pytest.mark.parametrize(
    "steps", [[HEAD, b"zz\r\nhello"], [HEAD, b"ff\r\nhel"], [HEAD[:20]], []], ids=["rubbish", "cut", "head", "nothing"]
)
def test_broken_framing_is_incomplete(scripted: Callable[..., Scripted], steps: list[Step]) -> None:
    assert not parse_http(stamped(play(scripted(*steps)))).complete


def test_a_silence_is_told_every_second_and_can_end_the_request(scripted: Callable[..., Scripted]) -> None:
    told: list[float] = []

    def silent(seconds: float, reads: list[Read]) -> str | None:
        told.append(seconds)
        return "enough" if len(told) == 2 else None

    assert play(scripted(HEAD, close=False), silent).error == "enough"
    assert 0.9 < told[0] < told[1]


def test_an_interrupt_leaves_no_socket_open(scripted: Callable[..., Scripted]) -> None:
    server = scripted(HEAD, close=False)

    def interrupt(seconds: float, reads: list[Read]) -> str | None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), connect(server.target, 5) as line:
        exchange(line, b"x", interrupt)
    assert line.sock.fileno() == -1


def stamp(wall_ns: int) -> tuple[int, int, bytes]:
    """The kernel's, as ``recvmsg`` hands it over."""
    return socket.SOL_SOCKET, _SO_TIMESTAMPNS, _TIMESPEC.pack(*divmod(wall_ns, 10**9))


@pytest.mark.parametrize("step", [10**9, -(10**9)], ids=["forward", "back"])
@pytest.mark.parametrize("to", [4, 8], ids=["for good", "and set back"])
def test_a_wall_clock_set_in_the_midst_of_a_stream_shifts_no_stamp(step: int, to: int) -> None:
    """Chunks every ms, each read 0.3 ms late; the wall clock is set after four of them, for good or for four more."""
    ms, offset = 10**6, 10**18
    true = [i * ms for i in range(1, 13)]
    late = ms * 3 // 10

    def wall(at: int) -> int:
        moved = 4 * ms + ms // 2 < at and (to == 4 or at < 8 * ms + ms // 2)
        return at + offset + (step if moved else 0)

    reads = tuple((at + late, [stamp(wall(at))], b"x", wall(at + late)) for at in true)
    end = 13 * ms
    got = stamped(Recording(0, reads, (wall(0), wall(end) - end)))
    beside = {3, 4, 7, 8}  # there a user stamp is as good as it gets
    for i, (at, found) in enumerate(zip(true, got, strict=True)):
        assert found.at_ns == at or (i in beside and found.at_ns == at + late), i


def test_a_client_put_aside_between_its_clocks_shifts_no_stamp() -> None:
    """What it sees then is too high an offset."""
    ms, offset = 10**6, 10**18
    reads = tuple(
        (i * ms + 100, [stamp(i * ms + offset)], b"x", i * ms + 100 + offset + (20 * ms if i == 2 else 0))
        for i in range(1, 5)
    )
    assert [s.at_ns for s in stamped(Recording(0, reads, (offset, offset)))] == [i * ms for i in range(1, 5)]


def test_the_offset_is_that_of_the_clocks() -> None:
    assert abs(time.monotonic_ns() + clock_offset() - time.time_ns()) < 5_000_000
