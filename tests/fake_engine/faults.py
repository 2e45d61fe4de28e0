"""Ways to fail: error texts of real engines, hostile bytes, secrets in the log, processes that will not go."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import NoReturn

from .settings import Settings

_TRACE = 'Traceback (most recent call last):\n  File "/opt/engine/launch.py", line 112, in run\n    raise_from(cause)\n'

CRASHES: Mapping[str, str] = {
    "oom": _TRACE
    + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity "
    "of 139.80 GiB of which 1.69 GiB is free. Process 4242 has 137.90 GiB memory in use. Of the allocated memory "
    "136.11 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated.",
    "nccl": _TRACE + "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/"
    "ProcessGroupNCCL.cpp:3690, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
    "Last error:\nError while creating shared memory segment /dev/shm/nccl-Xq3fZ1 (size 33030528)",
    "backend": _TRACE
    + "ValueError: Selected backend AttentionBackendEnum.FLASHMLA is not valid for this configuration. "
    "Reason: ['compute capability not supported']",
    "arch": _TRACE + "ValueError: Model architectures ['FooForCausalLM'] are not supported for now. "
    "Supported architectures: dict_keys(['LlamaForCausalLM'])",
    "kernel": _TRACE + "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device\n"
    "CUDA kernel errors might be asynchronously reported at some other API call.",
    "model": _TRACE
    + "OSError: nobody/no-such-model is not a local folder and is not a valid model identifier listed on "
    "'https://huggingface.co/models'\nIf this is a private repository, make sure to pass a token having permission to "
    "this repo either by logging in with `hf auth login` or by passing `token=<your_token>`",
    "gated": _TRACE + "huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo for url "
    "https://huggingface.co/some/gated/resolve/main/config.json.",
    "port": "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): "
    "address already in use",
    "module": _TRACE + "ModuleNotFoundError: No module named 'flashinfer'",
    "usage": "usage: launch_server.py [-h] --model-path MODEL_PATH [--host HOST] [--port PORT] ...\n"
    "launch_server.py: error: unrecognized arguments: --no-such-flag 3",
    "context": _TRACE
    + "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV "
    "cache is needed, which is larger than the available KV cache memory (8.25 GiB). Based on the available memory, "
    "the estimated maximum model length is 67584.",
    "scheduler": "Rank 0 scheduler is dead. Please check if there are relevant logs.\n" + _TRACE + "EOFError",
    "segfault": "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f3a2c1b8740 (most recent call first)\n"
    '  File "/opt/engine/model_runner.py", line 2210 in forward',
    "illegal": _TRACE + "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "silent": "",
}

HOSTILE = (
    b"\x1b]0;owned\x07\x1b[2J\x1b[31mANSI escape\x1b[0m\n"
    b"<script>alert('log')</script><img src=x onerror=alert(1)>\n"
    b"::error file=x.py,line=1::injected annotation\n"
    b"::set-output name=x::y\n::add-mask::secret\n##[error]injected\n"
    b"invalid utf-8: \xff\xfe\xc3\x28 and nul \x00 and bell \x07\n"
    b"[bold red]rich markup[/bold red] {braces} %s %(name)s\n"
    b"| table | breaker | `code` |\n]]> </testcase> & \xe2\x80\xae right-to-left\n" + b"long " * 4000 + b"\n"
)


#: Crashes of the engine's inner process, after which the outer one adds lines of its own.
DEEP = frozenset({"oom", "nccl", "backend", "arch", "kernel", "context", "illegal", "segfault"})


def port_taken(dialect: str, host: str, port: int, error: OSError) -> str:
    """What each engine prints when its port is taken."""
    if dialect == "vllm":
        return f"{_TRACE}OSError: [Errno {error.errno}] {error.strerror}\n"
    reason = (error.strerror or "").lower()
    return f"ERROR:    [Errno {error.errno}] error while attempting to bind on address ({host!r}, {port}): {reason}\n"


def error_text(name: str) -> str:
    """The text of a crash by name; any other name is taken as the text itself."""
    return CRASHES.get(name, name.replace("\\n", "\n"))


def secret_lines(environ: Mapping[str, str], api_key: str | None) -> list[str]:
    """What a careless engine prints: its key, its tokens, an address with a password."""
    words = ("TOKEN", "SECRET", "KEY", "PASSW")
    found = [
        f"{k}={v}" for k, v in sorted(environ.items()) if any(w in k.upper() for w in words) and k != "FAKE_LOG_SECRETS"
    ]
    return [f"api_key='{api_key}'", f"Authorization: Bearer {api_key}", *found]


def note_pid(settings: Settings, kind: str) -> None:
    """Append ``kind pid`` to FAKE_PIDS_FILE in one write."""
    if settings.pids_file:
        descriptor = os.open(settings.pids_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{kind} {os.getpid()}\n".encode())
        os.close(descriptor)


def _linger(settings: Settings, kind: str, deaf: bool) -> None:
    """The life of a child or orphan: deaf to polite signals or not, never longer than FAKE_CHILD_LIFE_S."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if deaf else signal.SIG_DFL)
    note_pid(settings, kind)
    time.sleep(settings.child_life_s)  # is all that it does
    os._exit(0)


def spawn_children(settings: Settings) -> list[int]:
    """Ordinary children, as an engine's workers are: ended with their parent, but not when that is killed."""
    pids = []
    for _ in range(settings.children):
        pid = os.fork()
        if pid == 0:
            _linger(settings, "child", settings.child_deaf)
        pids.append(pid)
    return pids


def spawn_orphans(settings: Settings) -> None:
    """Deaf grandchildren in sessions of their own whose parent is gone."""
    for _ in range(settings.orphans):
        middle = os.fork()
        if middle == 0:
            os.setsid()
            if os.fork() == 0:
                _linger(settings, "orphan", True)
            os._exit(0)
        os.waitpid(middle, 0)


def end_by(code: int) -> NoReturn:
    """Leave at once: by exit code, or by signal when negative."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        time.sleep(5)  # another thread may get the signal: it ends us a moment later
    os._exit(code)
