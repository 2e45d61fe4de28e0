"""One launch from its command line to its end."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import socket
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

KEPT_ENV = ("NCCL_", "CUDA_", "HIP_", "ROCR_", "VLLM_", "SGLANG_", "HF_")


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


def handle_signals(settings: Settings, dialect: Dialect, children: Sequence[int]) -> None:
    """Leave in order on SIGTERM and SIGINT, FAKE_STOP_S later, and take the children along; or be deaf."""

    def leave(number: int, frame: FrameType | None) -> None:
        time.sleep(settings.stop_s)  # how long this engine takes to leave, as a test asked for
        dialect.goodbye()
        for child in children:
            os.kill(child, signal.SIGTERM)
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN if settings.deaf else leave)


def load(settings: Settings, dialect: Dialect) -> None:
    """Print the progress of a start, spread over FAKE_START_S at FAKE_START_TICK_S; most of it is weights."""
    ticks = max(1, int(settings.start_s / max(settings.start_tick_s, 1e-3)))
    lines = list(dialect.loading(shards=max(8, ticks - 20)))
    started, shown = time.monotonic(), 0
    for tick in range(1, ticks + 1):
        until = len(lines) * tick // ticks
        for line in () if settings.start_silent else lines[shown:until]:
            dialect.write(line)
        shown = until
        time.sleep(max(0.0, started + settings.start_s * tick / ticks - time.monotonic()))  # the schedule


def bind(options: Options) -> socket.socket:
    """A socket on the port that was asked for; a port that is taken ends the process as it ends the real engine."""
    sock = socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((options.host, options.port))
    except OSError as error:
        os.write(2, faults.port_taken(options.dialect, options.host, options.port, error).encode())
        faults.end_by(1)
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


def begin(settings: Settings, dialect: Dialect, number: int) -> None:
    """Everything before the port opens, with the ways a start can fail."""
    dialect.banner()
    if settings.hostile_log:
        dialect.write(faults.HOSTILE)
    if settings.log_secrets:
        for line in faults.secret_lines(os.environ, dialect.engine.options.api_key):
            dialect.log(line)
    crash, hang = hit(settings.crash, number), hit(settings.hang, number)
    if crash is not None:
        time.sleep(settings.crash_after_s)  # the time of the crash, as a test asked for
        dialect.write(faults.error_text(crash))
        for line in dialect.aftermath() if crash in faults.DEEP else ():
            dialect.write(line)
        faults.end_by(2 if crash == "usage" else settings.crash_code)
    if hang is not None:
        dialect.log("Init torch distributed begin.")
        time.sleep(float(hang))  # how long it hangs, as a test asked for
    load(settings, dialect)


def load_kernels(folder: str) -> mmap.mmap:
    """A kernel's library as a process has it that loaded it from a compile cache, compiled now if it is not there."""
    library = Path(folder, "4XQ2", "kernel.so")
    if not library.exists():
        library.parent.mkdir(parents=True)
        library.write_bytes(bytes(mmap.PAGESIZE))
    with library.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def serve(settings: Settings, options: Options, number: int) -> None:
    """Start as the real engine does, then answer until a signal comes."""
    loop = Loop()
    engine = Engine(settings, options, loop, number, os.environ)
    dialect: Dialect = SGLang(engine) if options.dialect == "sglang" else VLLM(engine)
    handle_signals(settings, dialect, faults.spawn_children(settings))
    faults.spawn_orphans(settings)
    listener = bind(options) if options.dialect == "vllm" else None  # vLLM takes its port before it loads
    begin(settings, dialect, number)
    kernels = load_kernels(settings.jit_cache) if settings.jit_cache else None
    listener = listener or bind(options)
    listener.listen(1024)
    if "ssl_certfile" in options.given:
        loop.encrypt(options.given["ssl_certfile"], options.given["ssl_keyfile"])
    if options.port == 0:
        engine.options = options.on_port(listener.getsockname()[1])
    engine.on_start, engine.on_step = dialect.on_start, dialect.on_step
    dialect.loaded()

    def ready() -> None:
        engine.ready = True
        dialect.fired_up()

    loop.listen(listener, Server(engine, dialect).on_data)
    loop.at(time.monotonic() + settings.ready_s, ready)
    loop.run()
    del kernels


def main(argv: Sequence[str]) -> int:
    settings = Settings.from_env(os.environ)
    signal.setitimer(signal.ITIMER_REAL, settings.life_s)  # SIGALRM ends what a test forgot
    options = resolve(argv, settings, os.environ)
    if settings.serve_in_child:
        serve_in_child()
    number = launch_number(settings.counter.replace("{engine}", options.dialect))
    note_launch(settings, options, number)
    faults.note_pid(settings, "main")
    serve(settings, options, number)
    return 0
