"""Why an engine ended: the cause out of its log and exit code, in words, with what to do about it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_llmperf.server.masking import printable

#: Lines of the log that a message shows, and characters of each.
TAIL_LINES = 15
LINE_WIDTH = 240


@dataclass(frozen=True)
class Cause:
    """``what`` in words, the log's ``line`` that says so, and ``advice``; empty strings where unknown."""

    what: str
    line: str = ""
    advice: str = ""

    def __str__(self) -> str:
        return self.what + (f"\n  its log says: {self.line}" if self.line else "")


@dataclass(frozen=True)
class Sign:
    """A pattern that means a cause in any engine. ``what`` may use the pattern's groups (``\\1``)."""

    pattern: re.Pattern[str]
    what: str
    advice: str = ""


def _sign(pattern: str, what: str, advice: str = "") -> Sign:
    return Sign(re.compile(pattern, re.IGNORECASE), what, advice)


PORT_IN_USE = _sign(
    r"address already in use|errno 98\b|EADDRINUSE|port \d+ (?:is )?(?:already )?(?:in use|not available|occupied)"
    r"|couldn't bind (?:http server )?socket",
    "its port was already in use",
    "leave `port` of the engine unset, so that a free one is taken",
)

#: Most specific first.
SIGNS: Sequence[Sign] = (
    PORT_IN_USE,
    _sign(
        r"cuda out of memory|outofmemoryerror|cudaErrorMemoryAllocation|hip out of memory"
        r"|free memory on device.*less than|not enough memory\b.*(?:kv|mem_fraction|gpu)"
        r"|no available memory for the cache blocks|cache is needed, which is larger than the available",
        "out of GPU memory",
        "lower the memory fraction (sglang mem_fraction_static, vllm gpu_memory_utilization), the context length or "
        "the number of running requests, or raise tp",
    ),
    _sign(
        r"nccl error\b.*|ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclInvalidUsage",
        "an NCCL error",
        "look at the NCCL_* variables this config sets; nccl={'debug': 'INFO'} makes NCCL say more",
    ),
    _sign(
        r"no kernel image is available for execution|(?:not supported|unsupported) on (?:this|your) (?:gpu|device|arch)"
        r"|requires? (?:compute capability|sm_?\d+|sm\d+)|only supported on (?:hopper|blackwell|sm)"
        r"|not compiled with sm|unsupported (?:gpu )?arch",
        "a kernel does not support this GPU's architecture",
        "choose another attention_backend or quantization, or a build of the engine for this GPU",
    ),
    _sign(
        r"(?:attention )?backend\b[^\n]{0,80}(?:not supported|unsupported|is not valid|not available)"
        r"|(?:not supported|unsupported|invalid|unknown) (?:attention )?backend",
        "the attention backend is not supported here",
        "`llmperf inspect` lists the backends this engine offers on this GPU",
    ),
    _sign(
        r"model architectures? \S+ (?:are|is) not supported|unsupported architecture",
        "the engine does not support this model's architecture",
        "use an engine version that does",
    ),
    _sign(
        r"(?:is not a local folder|repository not found|RepositoryNotFoundError|LocalEntryNotFoundError"
        r"|can't load (?:the )?(?:config|tokenizer|model)"
        r"|no such file or directory: \S*(?:config\.json|\.gguf|safetensors)|failed to (?:open|load) (?:gguf|model)"
        r"|does not appear to have a file named config\.json|GatedRepoError)",
        "the model could not be found or read",
        "check the model's name or path, HF_TOKEN for gated models, and HF_HUB_OFFLINE",
    ),
    _sign(
        r"(?:ModuleNotFoundError|python[\d.]*): .*?No module named '?([\w.]+)'?",
        r"the Python that starts it has no module \1",
        "point [tool.llmperf.engines.<name>] command at the Python of the engine's own environment",
    ),
    _sign(
        r"ImportError: ([^\n]{0,160})",
        r"a dependency does not fit: \1",
        "repair the engine's environment: its packages do not go together",
    ),
    _sign(
        r"(?:error: unrecognized arguments|error: unknown argument|unknown (?:option|flag)):? ([^\n]+)",
        r"it does not know the flag \1",
        "check the engine-only keys of the llm_server marker against this engine's version",
    ),
    _sign(
        r"error: (argument [^\n]+)",
        r"a flag has a wrong value: \1",
        "check the llm_server marker against what this engine's version accepts",
    ),
    _sign(
        r"no cuda gpus are available|found no nvidia driver|no accelerator|Failed to infer device type"
        r"|cuda driver.*insufficient|CUDA error: no CUDA-capable device",
        "it found no usable GPU",
        "check the driver (nvidia-smi) and the GPUs that are visible to pytest",
    ),
    _sign(
        r"No space left on device",
        "a disk or /dev/shm is full",
        "free space, or give the container a larger --shm-size",
    ),
    _sign(
        r"permission denied: ?([^\n]{0,120})|Permission denied",
        "it may not read or write a file",
        "check the owner of the file the log names",
    ),
)

_SIGNALS = {
    signal.SIGKILL: (
        "killed by SIGKILL, and not by this session",
        "the kernel's out-of-memory killer does that (dmesg tells), or a container's memory limit, or somebody's kill",
    ),
    signal.SIGILL: (
        "ended by SIGILL: an instruction this CPU does not have",
        "use a build of the engine for this CPU",
    ),
    signal.SIGSEGV: ("crashed (SIGSEGV)", "native code of the engine failed; its log's last lines say where it was"),
    signal.SIGBUS: ("crashed (SIGBUS)", "often /dev/shm is too small: give the container a larger --shm-size"),
    signal.SIGABRT: ("aborted (SIGABRT)", "native code of the engine gave up; its log's last lines say why"),
}
#: ``SomethingError: message`` behind the prefixes that engines put before a traceback's lines.
_EXCEPTION = re.compile(r"(?:^|[\s\]|)])((?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit)): (.+)$")
#: Lines that healthy starts print too: by their level, or because what they tell was survived.
_HARMLESS = re.compile(
    r"^(?:\([^)]*\) ?)?(?:\[[^\]]*\] ?)?(?:INFO|DEBUG|WARNING|WARN)\b|\w+Warning:"
    r"|\bignor(?:e|ed|ing)\b|\bfall(?:ing|s)? back\b",
    re.IGNORECASE,
)
#: Lines at the end in which a cause is looked for first, and characters of a line that are looked at.
_END = 400
_LONGEST = 4000
#: Exceptions that only pass on that something else went wrong.
_CASCADE = re.compile(r"root cause above|engine core initialization failed|see (?:stack )?trace above", re.IGNORECASE)


def exit_text(code: int) -> str:
    """``exit code 1`` or the signal in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code)
    except ValueError:
        return f"signal {-code}"
    return _SIGNALS[name][0] if name in _SIGNALS else f"ended by {name.name}"


def find_cause(
    log: str,
    code: int | None,
    crash_patterns: Iterable[tuple[re.Pattern[str], str]] = (),
    fatal_patterns: Sequence[re.Pattern[str]] = (),
) -> Cause:
    """The cause of an end: the engine's own signs first, then those of any engine, the signal, the exception.

    A line that matches one of ``fatal_patterns`` is looked at whatever its level says.
    """
    shortened = (line[:_LONGEST] for line in printable(log).splitlines())
    lines = [x for x in shortened if not _HARMLESS.search(x) or any(p.search(x) for p in fatal_patterns)]
    signs = (*(Sign(pattern, what) for pattern, what in crash_patterns), *SIGNS)
    text = "\n".join(lines)
    for part in ("\n".join(lines[-_END:]), text):
        for sign in signs:
            if found := sign.pattern.search(part):
                advice = sign.advice or next((s.advice for s in SIGNS if s.pattern.search(found.group())), "")
                return Cause(_expand(found, sign.what), _line_at(part, found.start()), advice)
    if code is not None and code < 0 and -code in _SIGNALS:
        what, advice = _SIGNALS[signal.Signals(-code)]
        return Cause(what, advice=advice)
    errors = [m for m in map(_EXCEPTION.search, lines) if m and not _CASCADE.search(m.group())]
    if errors:
        return Cause(_cut(f"{errors[-1].group(1)}: {errors[-1].group(2)}"))
    return Cause(exit_text(code) if code is not None else "no known cause in its log")


def port_lost(log: str) -> bool:
    """True when the log says that somebody else has the port."""
    return any(PORT_IN_USE.pattern.search(line[:_LONGEST]) for line in printable(log).splitlines())


def tail(log: str, lines: int = TAIL_LINES) -> str:
    """The last lines, fit for a terminal, each behind a bar."""
    kept = [line.rstrip() for line in printable(log).splitlines() if line.strip()][-lines:]
    return "\n".join(f"  | {_cut(line)}" for line in kept) or "  | (it wrote nothing)"


def _expand(found: re.Match[str], what: str) -> str:
    return _cut(found.expand(what) if "\\" in what else what)


def _line_at(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : end if end >= 0 else None].strip()
    if len(line) <= LINE_WIDTH:
        return line
    begin = max(0, position - start - LINE_WIDTH // 2)
    return ("..." if begin else "") + _cut(line[begin:])


def _cut(text: str) -> str:
    return text if len(text) <= LINE_WIDTH else text[: LINE_WIDTH - 3] + "..."
