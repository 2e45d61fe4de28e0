"""A small random Llama that every engine here can serve, made on the spot: no download, the same bytes everywhere.

About 28 million parameters, so that one CPU thread decodes slowly enough for a client to time. ``tiny_recipe`` says
what is in it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import filelock

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.models import RECIPE, TINY

GGUF_FILE = "tiny.gguf"


@dataclass(frozen=True)
class TinyModel:
    """Where one was written: the Hugging Face folder, the GGUF file (None when not asked for), its parameter count."""

    folder: Path
    gguf: Path | None
    parameters: int


def resolve(model: str, *, remote: bool) -> str:
    """The folder for ``model="tiny"`` (made when missing); any other name unchanged.

    Raises ConfigError for an engine on another host, which has no such folder.
    """
    if model != TINY:
        return model
    if remote:
        raise ConfigError(
            "model='tiny' is made on this host, and the engine runs on another (remote = true): make it there with "
            "`llmperf tiny-model DIR`, and declare model='DIR'"
        )
    return str(cached())


def cached() -> Path:
    """The model's folder in this user's cache (``$XDG_CACHE_HOME/pytest-llmperf``), made by whoever comes first.

    Raises ConfigError when a package is missing or the folder cannot be written.
    """
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pytest-llmperf"
    except RuntimeError:  # neither HOME nor an entry for this user, as in some containers
        raise ConfigError("model='tiny' is kept in the home folder, and there is none: set XDG_CACHE_HOME") from None
    folder = home / f"tiny-{RECIPE}"
    if folder.is_dir():
        return folder
    try:
        _make_once(home, folder)
    except OSError as error:
        raise ConfigError(f"model='tiny' could not be written to {folder}: {error}; set XDG_CACHE_HOME") from error
    return folder


def _make_once(home: Path, folder: Path) -> None:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with filelock.FileLock(home / f"{folder.name}.lock"):
        if folder.is_dir():
            return
        aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=home))
        try:
            make(aside)
            aside.rename(folder)  # all or nothing, also for a reader that takes no lock
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def make(folder: Path, *, gguf: bool = True) -> TinyModel:
    """Write the model into ``folder``.

    Raises ConfigError when the packages of the ``llamacpp`` extra are missing or the folder cannot be written.
    """
    from pytest_llmperf.models import tiny_recipe  # numpy stays out of the start of every pytest session

    path = folder / GGUF_FILE if gguf else None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return TinyModel(folder, path, tiny_recipe.write(folder, path))
    except OSError as error:
        raise ConfigError(f"the tiny model could not be written to {folder}: {error}") from error
