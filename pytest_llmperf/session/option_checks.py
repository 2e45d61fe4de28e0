"""Options that would turn out wrong only once hours of measuring are over: checked before anything is launched."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_llmperf.errors import ConfigError, nearest
from pytest_llmperf.measure.metrics import GUARDS
from pytest_llmperf.options import Options


def check(options: Options) -> None:
    """Raise ``ConfigError`` for what could not be written at the end, and for names of guards that do not exist."""
    for name in options.ignore_guards:
        if name not in GUARDS:
            raise ConfigError(f"--llmperf-ignore-guard {name!r}: there is no such guard{nearest(name, GUARDS)}")
    exports = ((f"--llmperf-export {name}", path) for name, path in options.export)
    for option, path in (("--llmperf-json", options.json), ("--llmperf-html", options.html), *exports):
        if path and (wrong := _unwritable(path)):
            raise ConfigError(f"{option} {path}: {wrong}; give the path of a file that can be written")
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary and (wrong := _unwritable(Path(summary), makes_folders=False)):
        raise ConfigError(f"GITHUB_STEP_SUMMARY={summary} cannot be written: {wrong}")
    folder = options.baselines
    if wrong := _unwritable(folder / "x") if options.update else _no_folder(folder):
        raise ConfigError(f"--baselines {folder}: {wrong}; give the folder that holds them")


def _unwritable(file: Path, *, makes_folders: bool = True) -> str | None:
    """Why ``file`` cannot be written, as far as that shows beforehand."""
    if file.is_dir():
        return "it is a folder"
    if not makes_folders and not file.parent.exists():
        return f"there is no folder {file.parent}"
    if wrong := _no_folder(file.parent):
        return wrong
    there = next(f for f in (file, *file.parents) if f.exists())
    return None if os.access(there, os.W_OK) else f"{there} may not be written"


def _no_folder(folder: Path) -> str | None:
    there = next(f for f in (folder, *folder.parents) if f.exists())
    return None if there.is_dir() else f"{there} is a file"
