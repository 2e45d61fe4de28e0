"""What engines, libraries and the kernel write or do when a server fails, and what each means, in words."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sign:
    """A pattern that means a cause in any engine. ``what`` may use the pattern's groups (``\\1``)."""

    pattern: re.Pattern[str]
    what: str
    advice: str = ""


def _sign(pattern: str, what: str, advice: str = "") -> Sign:
    return Sign(re.compile(pattern, re.IGNORECASE), what, advice)


#: Ranks that wait for each other: a start that stalls while they join, a collective that never ends.
STALLED_RANKS = (
    "nccl={'debug': 'INFO'} in the llm_server marker shows where the ranks wait for each other; "
    "nccl={'p2p_disable': 1} helps where GPUs cannot reach each other's memory (PCIe without peer access, IOMMU)"
)
_NCCL = "look at the NCCL_* variables this config sets; nccl={'debug': 'INFO'} makes NCCL say more"

PORT_IN_USE = _sign(
    r"address already in use|errno 98\b|EADDRINUSE|port \d+ (?:is )?(?:already )?(?:in use|not available|occupied)"
    r"|couldn't bind (?:http server )?socket",
    "its port was already in use",
    "leave `port` of the engine unset, so that a free one is taken",
)

#: Most specific first.
SIGNS: Sequence[Sign] = (
    PORT_IN_USE,
    # Opposite causes: here the engine asked for too little of the GPU, below for more than there was.
    _sign(
        r"no available memory for the cache blocks|cache is needed, which is larger than the available"
        r"|not enough memory\b[^\n]*(?:kv|mem.fraction)|leaves? no (?:gpu memory|room) for the (?:full )?kv"
        r"|not enough gpu memory available to serve even a single token"
        r"|error: [^\n]*\b(?:increas\w+|raise) (?:--mem-fraction-static|.?gpu.memory.utilization)",
        "no GPU memory is left for the KV cache",
        "raise the memory fraction (sglang mem_fraction_static, vllm gpu_memory_utilization), shorten context_length, "
        "lower max_running_requests, or raise tp",
    ),
    _sign(
        r"cuda out of memory|outofmemoryerror|cudaErrorMemoryAllocation|hip out of memory"
        r"|(?:cuda|hip) (?:driver )?error: out of memory|cuda failure (?:\d+ )?'out of memory'"
        r"|cudaMalloc failed: out of memory|CUBLAS_STATUS_ALLOC_FAILED|failed to allocate (?:buffer|compute|kv)"
        r"|free memory on device.*less than",
        "out of GPU memory",
        "lower the memory fraction (sglang mem_fraction_static, vllm gpu_memory_utilization), the context length or "
        "the number of running requests, or raise tp; and see whether others use the GPU",
    ),
    _sign(
        r"DefaultCPUAllocator: can't allocate memory|(?<![\w.])MemoryError\b|std::bad_alloc",
        "out of host memory",
        "give the machine or the container more memory, or a smaller model or KV cache to the engine",
    ),
    _sign(
        r"shared memory segment /dev/shm/nccl",
        "an NCCL error: no room in /dev/shm",
        "give the container a larger --shm-size, or --ipc=host",
    ),
    _sign(
        r"watchdog caught collective operation timeout: [^\n]*?OpType=(\w+)",
        r"its ranks waited in vain for each other (\1)",
        STALLED_RANKS,
    ),
    _sign(r"RPC call to (\w+) timed out", r"a worker did not answer \1 in time", STALLED_RANKS),
    _sign(r"in acquire_read\b[^\n]*\n[^\n]*raise TimeoutError", "a worker did not answer in time", STALLED_RANKS),
    _sign(
        r"timed out after \d+ seconds waiting for clients|client socket has timed out",
        "not all of its ranks joined",
        STALLED_RANKS,
    ),
    # A rank that only saw another one go is no cause.
    _sign(
        r"nccl error\b(?![^\n]*remote process exited)[^\n]*(?:\n[^\n]*){0,4}?last error:\s*(?:[^\n\]]*\] )?([^\n]+)",
        r"an NCCL error: \1",
        _NCCL,
    ),
    _sign(
        r"nccl error\b(?![^\n]*remote process exited)"
        r"|ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclInvalid(?:Usage|Argument)",
        "an NCCL error",
        _NCCL,
    ),
    _sign(
        r"\b(ptxas|nvcc) fatal\s*:[^\n]*'((?:sm|compute)_\w+)'",
        r"its \1 is too old for this GPU (\2)",
        "use a build of the engine for this GPU's CUDA, or name a newer compiler in the marker: "
        "env={'TRITON_PTXAS_PATH': '/usr/local/cuda/bin/ptxas'} (newer Triton: TRITON_PTXAS_BLACKWELL_PATH)",
    ),
    _sign(
        r"PTXASError|PTX codegen error|ptxas (?:fatal|error)",
        "ptxas could not compile a kernel",
        "use a build of the engine for this GPU's CUDA, or another attention_backend",
    ),
    _sign(
        r"no kernel image is available for execution|(?:not supported|unsupported) on (?:this|your) (?:gpu|device|arch)"
        r"|requires? (?:compute capability|sm_?\d+|sm\d+)|only supported on (?:hopper|blackwell|sm)"
        r"|not compiled with sm|unsupported (?:gpu )?arch|no supported cuda architectures found"
        r"|(?:unsupported|unknown|not supported)[^\n]{0,40}\bsm_?1[02]\d",
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

#: Signals that end a server, in words, each with what to do.
SIGNALS: Mapping[int, tuple[str, str]] = {
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
