"""What a launch depends on beside its declared config: the settings' command and variables, the programs, the model."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_llmperf.engines.base import EngineSettings
from pytest_llmperf.server.visible import CUDA, HIP, ROCR
from pytest_llmperf.server_config import ServerConfig

#: Inherited variables that change how fast an engine is.
_TUNING = (
    "NCCL_", "CUDA_", "TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "TRITON_", "VLLM_", "SGLANG_", "SGL_", "FLASHINFER_",
    "OMP_", "MKL_", "GGML_", "LLAMA_ARG_", "LD_PRELOAD", "RCCL_", "HIP_", "HSA_", "ROCR_", "AITER_", "MIOPEN_",
)  # fmt: skip
#: Those that tell where something lies, and those that the lease decides.
_PLACES = re.compile(r"_(?:HOME|PATH|ROOT|DIR|VERSION|VISIBLE_DEVICES)$")


def tuning(inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``inherited`` that change speed, by name."""
    return {n: v for n, v in sorted(inherited.items()) if n.startswith(_TUNING) and not _PLACES.search(n)}


def circumstances(
    config: ServerConfig, own: EngineSettings, argv: Sequence[str], inherited: Mapping[str, str]
) -> dict[str, str]:
    """Name to text, secrets as they are. ``inherited`` are the tuning variables that nothing declared replaces.

    ``command --flag``: each flag of the settings' own command, so that one that differs is seen. ``executable``: the
    programs of ``argv``. ``model files``: 8 hex digits over names, sizes and config.json of a model on this host.
    """
    said = {**_flags(own.command or ()), **own.env, **inherited}
    if not own.remote:
        said["executable"] = ", ".join(map(str, _programs(argv, own)))
        if files := _model_files(config, own):
            sizes = [(path.name, path.stat().st_size) for path in files]
            about = b"".join(p.read_bytes() for p in files if p.name == "config.json")
            said["model files"] = hashlib.sha256(json.dumps(sizes).encode() + about).hexdigest()[:8]
    return {name: value for name, value in said.items() if value}


def traces(config: ServerConfig, own: EngineSettings, argv: Sequence[str]) -> list[str]:
    """What tells today's launch from yesterday's of the same words: the working folder, the state of the programs, of
    what is installed beside them and of the model's files, and the GPUs that may be seen."""
    found = [str(_folder(own).resolve()), *(f"{name}={os.environ.get(name)}" for name in (CUDA, HIP, ROCR))]
    if own.remote:
        return found
    programs = _programs(argv, own)
    beside = [site for program in programs for site in _installed(program)]
    for path in (*programs, *beside, *_model_files(config, own)):
        with contextlib.suppress(OSError):
            state = path.stat()
            found.append(f"{path} {path.resolve()} {state.st_size} {state.st_mtime_ns}")
    return found


def _folder(own: EngineSettings) -> Path:
    return Path(own.cwd or Path.cwd())


def _flags(command: Sequence[str]) -> dict[str, str]:
    """The flags of a command with their values; the words before the first of them are one."""
    first = next((i for i, word in enumerate(command) if word.startswith("-")), len(command))
    said: dict[str, list[str]] = {"command": list(command[:first])}
    name = "command"
    for word in command[first:]:
        if word.startswith("-") and not word[1:2].isdigit():
            flag, _, value = word.partition("=")
            name = f"command {flag}"
            said[name] = [*said.get(name, ()), *([value] if value else [])]
        else:
            said[name].append(word)
    return {name: " ".join(words) or "set" for name, words in said.items() if words or name != "command"}


def _programs(argv: Sequence[str], own: EngineSettings) -> list[Path]:
    """The first word, and every other that names a program by its path."""
    search = own.env.get("PATH", os.environ.get("PATH"))
    found = [shutil.which(argv[0], path=search)] if argv else []
    found += [word for word in argv[1:] if "/" in word and not word.startswith("-")]
    paths = [_folder(own) / word for word in found if word]
    return [p for p in dict.fromkeys(paths) if p.is_file() and os.access(p, os.X_OK)]


def _installed(program: Path) -> Iterator[Path]:
    """Where packages lie beside it: the folder changes with each that is installed, upgraded or removed."""
    for path in dict.fromkeys((program, program.resolve())):
        yield from path.parent.parent.glob("lib/python3*/site-packages")


def _model_files(config: ServerConfig, own: EngineSettings) -> list[Path]:
    """The files of a model on this host; none of one that is fetched by its name."""
    path = _folder(own) / config.model
    try:
        return sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path] if path.is_file() else []
    except OSError:  # the engine will say what it cannot read
        return []
