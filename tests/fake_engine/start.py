"""One launch from its command line to its end."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from . import faults, truth
from .commandline import Options, resolve
from .dialect import Dialect
from .engine import Engine
from .loop import Loop
from .server import Server
from .settings import Settings, hit
from .sglang import SGLang
from .vllm import VLLM

KEPT_ENV = ("NCCL_", "CUDA_", "HIP_", "ROCR_", "VLLM_", "SGLANG_", "FAKE_LAUNCH_TAG")


def launch_number(counter: str) -> int:
    """The ordinal of this launch, kept in a file that all launches share; 1 without one."""
    if not counter:
        return 1
    descriptor = os.open(counter, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        number = int(file.read() or 0) + 1
        file.seek(0)
        file.write(str(number))
    return number


def note_launch(settings: Settings, options: Options, number: int) -> None:
    if not settings.launch_log:
        return
    record = {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "pgid": os.getpgid(0),
        "sid": os.getsid(0),
        "launch": number,
        "dialect": options.dialect,
        "port": options.port,
        "argv": list(options.argv),
        "env": {k: v for k, v in sorted(os.environ.items()) if k.startswith(KEPT_ENV)},
        "monotonic": time.monotonic(),
    }
    truth.append(settings.launch_log, record)


def handle_signals(settings: Settings, dialect: Dialect) -> None:
    """Leave in order on SIGTERM and SIGINT, after FAKE_STOP_S; or be deaf."""

    def leave(number: int, frame: FrameType | None) -> None:
        time.sleep(settings.stop_s)
        dialect.goodbye()
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN if settings.deaf else leave)


def load(settings: Settings, dialect: Dialect) -> None:
    """Print the progress of a start, spread over FAKE_START_S at FAKE_START_TICK_S."""
    lines = list(dialect.loading())
    ticks = max(1, int(settings.start_s / max(settings.start_tick_s, 1e-3)))
    started, shown = time.monotonic(), 0
    for tick in range(1, ticks + 1):
        until = len(lines) * tick // ticks
        if not settings.start_silent:
            for line in lines[shown:until]:
                dialect.write(line) if line.startswith("\r") else dialect.log(line)
            if until == shown and settings.start_s:
                dialect.write(
                    f"\rLoading safetensors checkpoint shards: {100 * tick // ticks:3d}% Completed | {tick}/{ticks}"
                )
        shown = until
        left = started + settings.start_s * tick / ticks - time.monotonic()
        time.sleep(max(0.0, left))


def bind(options: Options) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((options.host, options.port))
    except OSError as error:
        text = f"ERROR:    [Errno {error.errno}] error while attempting to bind on address "
        sys.stderr.write(f"{text}({options.host!r}, {options.port}): {(error.strerror or '').lower()}\n")
        faults.end_by(1)
    sock.listen(1024)
    return sock


def serve_in_child() -> None:
    """Go on as a child; the parent hands signals down and ends as the child ends."""
    child = os.fork()
    if child == 0:
        return

    def hand_down(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hand_down)
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def begin(settings: Settings, dialect: Dialect, number: int, options: Options) -> None:
    """Everything before the port opens, with the ways a start can fail."""
    dialect.banner()
    if settings.hostile_log:
        dialect.write(faults.HOSTILE)
    if settings.log_secrets:
        for line in faults.secret_lines(os.environ, options.api_key):
            dialect.log(line)
    faults.spawn_children(settings)
    faults.spawn_orphans(settings)
    crash, hang = hit(settings.crash, number), hit(settings.hang, number)
    if crash is not None:
        time.sleep(settings.crash_after_s)
        dialect.write(faults.error_text(crash))
        faults.end_by(2 if crash == "usage" else settings.crash_code)
    if hang is not None:
        dialect.log("Init torch distributed begin.")
        time.sleep(float(hang or settings.life_s))
    load(settings, dialect)


def main(argv: Sequence[str]) -> int:
    settings = Settings.from_env(os.environ)
    options = resolve(argv, settings, os.environ)
    if settings.serve_in_child:
        serve_in_child()
    number = launch_number(settings.counter)
    note_launch(settings, options, number)
    faults.note_pid(settings, "main")
    loop = Loop()
    engine = Engine(settings, options, loop, number, os.environ)
    dialect: Dialect = SGLang(engine) if options.dialect == "sglang" else VLLM(engine)
    handle_signals(settings, dialect)
    begin(settings, dialect, number, options)
    listener = bind(options)
    if options.port == 0:
        dialect.options = engine.options = options = options.on_port(listener.getsockname()[1])
    server = Server(engine, dialect)
    engine.on_step = dialect.step_log  # type: ignore[assignment]
    dialect.loaded()

    def ready() -> None:
        engine.ready = True
        dialect.fired_up()

    loop.listen(listener, server.on_data)
    loop.at(time.monotonic() + settings.ready_s, ready)
    loop.at(time.monotonic() + settings.life_s, lambda: faults.end_by(3))
    loop.run()
    return 0


def here() -> Path:
    """The file that starts this package from any folder."""
    return Path(__file__).with_name("__main__.py").resolve()
