"""The status line: in place on a terminal, plain and rare in CI, silent elsewhere."""

from __future__ import annotations

import io
import os
import pty
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.report.terminal import LiveLine
from tests.report.hostile import EVIL


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def _line(mode: str, **kwargs: Any) -> tuple[LiveLine, io.StringIO, Clock]:
    out, clock = io.StringIO(), Clock()
    return LiveLine(out, mode=mode, clock=clock, **kwargs), out, clock


def test_a_terminal_is_rewritten_in_place() -> None:
    live, out, clock = _line("tty")
    live.update("test_x", 3, 10, 63.612, 8.13)
    assert out.getvalue() == "\rllmperf: test_x: repetition 3/10, 63.61 tok/s, 8.1 s left\x1b[K"
    live.update("test_x", 4, 10, 63.6, 7.0)
    assert "4/10" not in out.getvalue()
    clock.now += 0.2
    live.update("test_x", 4, 10, 63.6, 7.0)
    assert "repetition 4/10" in out.getvalue()
    live.clear()
    assert out.getvalue().endswith("\r\x1b[K")
    before = out.getvalue()
    live.clear()
    assert out.getvalue() == before


def test_another_test_shows_at_once() -> None:
    live, out, _ = _line("tty")
    live.update("test_x", 1)
    live.update("test_y", 1)
    live.say("sglang Kimi: loading weights 43 %, 212 s")
    assert "test_y: repetition 1\x1b" in out.getvalue()
    assert "sglang Kimi: loading weights 43 %, 212 s" in out.getvalue()


def test_a_narrow_terminal_never_wraps() -> None:
    live, out, _ = _line("tty", width=30)
    live.update("test_" + "x" * 50, 1)
    assert len(out.getvalue().removesuffix("\x1b[K").removeprefix("\r")) <= 29


def test_a_long_name_gives_way_to_the_news() -> None:
    live, out, _ = _line("tty", width=60)
    live.update("test_" + "x" * 50 + "[vllm], launch 2/3", 13, 20, 81.2345, 12.2)
    assert "tes..2/3: repetition 13/20, 81.23 tok/s, 12 s left\x1b" in out.getvalue()
    plain, out, _ = _line("plain")
    plain.update("test_" + "x" * 80, 1, 12, stage="warm-up")
    assert out.getvalue() == f"llmperf: test_{'x' * 80}: warm-up 1/12\n"


def test_plain_lines_are_rare() -> None:
    live, out, clock = _line("plain", every=30.0)
    for _ in range(100):
        live.update("test_x", 1, 100, 63.6)
        clock.now += 1.0
    assert out.getvalue().count("\n") == 4
    assert "\r" not in out.getvalue()
    assert "\x1b" not in out.getvalue()
    live.clear()
    assert out.getvalue().endswith("tok/s\n")


def test_silent_is_silent() -> None:
    live, out, _ = _line("silent")
    live.update("test_x", 1)
    live.say("anything")
    live.clear()
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("environ", "tty", "written"),
    [
        ({"CI": "true"}, True, "llmperf: a: b\n"),
        ({"CI": "1"}, False, "llmperf: a: b\n"),
        ({"CI": "false"}, False, ""),
        ({}, False, ""),
        ({"TERM": "dumb"}, True, ""),
        ({"TERM": "xterm"}, True, "\rllmperf: a: b\x1b[K"),
    ],
)
def test_the_mode_follows_the_stream(environ: Mapping[str, str], tty: bool, written: str, tmp_path: Path) -> None:
    """On a real pseudo-terminal and on a real file."""
    if not tty:
        with (tmp_path / "out").open("w+") as file:
            LiveLine.on(file, environ).say("a: b")
            file.seek(0)
            assert file.read() == written
        return
    master, slave = pty.openpty()
    with open(slave, "w") as stream:  # noqa: PTH123 - a descriptor, not a path
        LiveLine.on(stream, environ).say("a: b")
        stream.write("|")
    seen = b""
    while not seen.endswith(b"|"):
        seen += os.read(master, 1000)
    assert seen.decode().replace("\r\n", "\n") == written + "|"
    os.close(master)


@pytest.mark.parametrize("mode", ["tty", "plain"])
def test_a_strangers_text_stays_on_the_line(mode: str) -> None:
    live, out, _ = _line(mode, width=1000)
    live.update(EVIL, 1)
    live.say(EVIL)
    for line in out.getvalue().replace("\x1b[K", "").replace("\r", "\n").split("\n"):
        assert line == "" or line.startswith("llmperf: ")
        assert line.isprintable()


def test_what_the_stream_cannot_encode_is_escaped(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w+", encoding="ascii") as file:
        LiveLine(file, mode="plain").say("模型: ü")
        file.seek(0)
        assert file.read() == "llmperf: \\u6a21\\u578b: \\xfc\n"


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="loud"):
        LiveLine(io.StringIO(), mode="loud")
