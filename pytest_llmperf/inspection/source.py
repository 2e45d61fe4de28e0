"""An engine's Python source as a set of named files, wherever it lies; nothing of it is ever imported or unpacked."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_llmperf.errors import ConfigError

#: A Python file above this size is not source that a person wrote; it is left out.
_MAX_FILE = 8 * 1024 * 1024
#: Asks another interpreter where a package lies. ``find_spec`` of a top-level name runs none of its code.
_LOCATE = """
import importlib.metadata as m, importlib.util as u, json, sys
name = sys.argv[1]
spec = u.find_spec(name)
places = list(spec.submodule_search_locations or []) if spec else []
try:
    version = m.version(name)
except m.PackageNotFoundError:
    version = None
print(json.dumps({"places": places, "version": version}))
"""


@dataclass(frozen=True)
class Place:
    """One line of the engine's source, named from the package's root (``sglang/srt/server_args.py:5655``)."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(eq=False)
class Source:
    """The Python files of one engine release. ``files`` maps ``package/…/x.py`` to a function that reads it."""

    package: str
    origin: str
    version: str | None
    files: Mapping[str, Callable[[], bytes]]
    memory: dict[tuple[str, int | str], Any] = field(default_factory=dict, repr=False)
    """What was worked out from a file alone: (what, line or file) -> answer."""
    _trees: dict[str, ast.Module | None] = field(default_factory=dict, repr=False)

    def tree(self, path: str) -> ast.Module | None:
        """The parsed file, or None when there is none of that name or it does not parse."""
        if path not in self._trees:
            self._trees[path] = self._parse(path)
        return self._trees[path]

    def _parse(self, path: str) -> ast.Module | None:
        read = self.files.get(path)
        if read is None:
            return None
        try:
            return ast.parse(read().decode("utf-8", errors="replace"), filename=path)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OSError, zipfile.BadZipFile):
            return None

    def text(self, path: str) -> str:
        """The file's text, empty when there is none."""
        read = self.files.get(path)
        return read().decode("utf-8", errors="replace") if read else ""

    def under(self, folder: str) -> list[str]:
        """Sorted names of the files below ``folder``."""
        return sorted(f for f in self.files if f.startswith(folder.rstrip("/") + "/"))

    def module_path(self, dotted: str) -> str | None:
        """The file of ``sglang.srt.utils``, or None when it is not in this source."""
        base = dotted.replace(".", "/")
        return next((p for p in (f"{base}.py", f"{base}/__init__.py") if p in self.files), None)


def open_source(package: str, *, source: Path | None = None, python: str | None = None) -> Source:
    """``package`` out of a wheel, an sdist or a folder (``source``), or as installed for ``python``.

    Raises ``ConfigError`` when it is not there.
    """
    if source is None:
        return _installed(package, python or "python")
    if not source.exists():
        raise ConfigError(f"--source {source}: no such file or folder. Give a wheel, an sdist or a folder of {package}")
    try:
        files, version = _folder(source, package) if source.is_dir() else _archive(source, package)
    except (zipfile.BadZipFile, tarfile.TarError, OSError, EOFError) as error:
        raise ConfigError(f"--source {source}: cannot be read ({error}). Give a wheel, an sdist or a folder") from error
    if not files:
        raise ConfigError(f"--source {source}: holds no Python package named {package}. Is it another engine's?")
    found = version or _version_in(files, package)
    return Source(package, str(source), found, files)


def _folder(root: Path, package: str) -> tuple[dict[str, Callable[[], bytes]], str | None]:
    """Accepts site-packages, a checkout (``python/sglang`` in it) or the package's own folder."""
    candidates = [root / package, root / "python" / package, root / "src" / package]
    if root.name == package:
        candidates.append(root)
    top = next((c for c in candidates if (c / "__init__.py").is_file()), None)
    if top is None:
        return {}, None
    files: dict[str, Callable[[], bytes]] = {}
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        for name in names:
            path = Path(folder) / name
            if name.endswith(".py") and path.is_file() and path.stat().st_size <= _MAX_FILE:
                files[f"{package}/{path.relative_to(top).as_posix()}"] = path.read_bytes
    metadata = sorted(top.parent.glob(f"{package}-*.dist-info"))
    return files, metadata[0].name[len(package) + 1 : -len(".dist-info")] if metadata else None


def _archive(path: Path, package: str) -> tuple[dict[str, Callable[[], bytes]], str | None]:
    if zipfile.is_zipfile(path):
        return _wheel(path, package)
    if tarfile.is_tarfile(path):
        return _sdist(path, package)
    raise zipfile.BadZipFile("neither a zip nor a tar file")


def _wheel(path: Path, package: str) -> tuple[dict[str, Callable[[], bytes]], str | None]:
    archive = zipfile.ZipFile(path)

    def reader(name: str) -> Callable[[], bytes]:
        return lambda: archive.read(name)

    files: dict[str, Callable[[], bytes]] = {}
    version = None
    for info in archive.infolist():
        name = info.filename
        if re.fullmatch(rf"{package}-[^/]+\.dist-info/METADATA", name):
            version = name.split("/")[0][len(package) + 1 : -len(".dist-info")]
        inner = _inner(name, package)
        if inner and info.file_size <= _MAX_FILE:
            files[inner] = reader(name)
    return files, version


def _sdist(path: Path, package: str) -> tuple[dict[str, Callable[[], bytes]], str | None]:
    """A compressed tar cannot be read out of order, so its (small) Python files are read once."""
    files: dict[str, Callable[[], bytes]] = {}

    def constant(data: bytes) -> Callable[[], bytes]:
        return lambda: data

    with tarfile.open(path) as archive:
        for member in archive:
            inner = _inner(member.name, package)
            if inner and member.isfile() and member.size <= _MAX_FILE:
                stream = archive.extractfile(member)
                if stream is not None:
                    files[inner] = constant(stream.read())
    version = re.match(rf"{package}-(.+?)\.(tar\.\w+|tgz)$", path.name)
    return files, version.group(1) if version else None


def _inner(name: str, package: str) -> str | None:
    """``sglang-0.5.2/python/sglang/srt/x.py`` and the like -> ``sglang/srt/x.py``; None for everything else."""
    if not name.endswith(".py") or ".." in name.split("/"):
        return None
    match = re.match(rf"(?:[^/]+-[^/]+/)?(?:python/|src/)?({package}/.+)$", name)
    return match.group(1) if match else None


def _version_in(files: Mapping[str, Callable[[], bytes]], package: str) -> str | None:
    for name in (f"{package}/_version.py", f"{package}/version.py"):
        if name in files:
            found = re.search(
                r"^(?:__version__\s*=\s*)+.*?['\"]([^'\"]+)", files[name]().decode(errors="replace"), re.M
            )
            if found:
                return found.group(1)
    return None


def _installed(package: str, python: str) -> Source:
    if shutil.which(python) is None:
        raise ConfigError(f"--python {python}: no such program. Give the interpreter that has {package} installed")
    try:
        done = subprocess.run(
            [python, "-c", _LOCATE, package], capture_output=True, text=True, timeout=60, cwd="/", check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"--python {python}: could not be asked where {package} lies ({error})") from error
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise ConfigError(f"--python {python}: is not a usable Python 3 interpreter: {last}") from error
    if not answer["places"]:
        raise ConfigError(
            f"{package} is not installed for {python}. Give --python INTERPRETER of the engine's environment, "
            "or --source with a wheel, an sdist or a folder"
        )
    files, version = _folder(Path(answer["places"][0]), package)
    if not files:
        raise ConfigError(f"{package} at {answer['places'][0]} has no Python files. Give its wheel with --source")
    return Source(package, str(answer["places"][0]), answer["version"] or version, files)
