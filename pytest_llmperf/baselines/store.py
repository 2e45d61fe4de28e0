"""Where a series lies on disk: paths computed from test and engine, reading, atomic writing.

``<folder>/<engine>/<path of the module>/<test>/<hardware>--<fingerprint>.toml``. A test has a folder of its own, so
that finding its baselines is one listing however many tests there are, and two branches seldom touch one file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pytest_llmperf.baselines import toml_text
from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.series import Series
from pytest_llmperf.errors import BaselineError

_SLUG = 60


def find(folder: Path, test: str, engine: str) -> list[Series]:
    """Every series of ``test`` on ``engine``, sorted by path; empty when there is none.

    Reads only that test's files. Raises ``BaselineError`` that names a broken file.
    """
    home = place(folder, test, engine)
    try:
        found = sorted(p.name for p in home.iterdir() if _is_baseline(p.name))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise BaselineError(f"{home} cannot be listed: {error.strerror}") from error
    return [_at_home(folder, home / n) for n in found]


def _at_home(folder: Path, path: Path) -> Series:
    series = read(path)
    right = path_of(folder, series.test, series.engine, series.fingerprint)
    if right != path:
        raise BaselineError(
            f"{path} was moved, edited by hand or written by an earlier version: by its content it belongs at {right}; "
            "move it there (`llmperf baselines merge OLD_FOLDER` does that for a whole folder, moved aside)"
        )
    return series


def path_of(folder: Path, test: str, engine: str, fingerprint: Fingerprint) -> Path:
    """The one file of this test on this engine under this fingerprint."""
    return place(folder, test, engine) / f"{fingerprint.label}--{fingerprint.key}.toml"


def place(folder: Path, test: str, engine: str) -> Path:
    """The folder of one test's baselines. Distinct tests have distinct folders, on every file system."""
    module, _, name = test.partition("::")
    parts = [engine, *module.removesuffix(".py").split("/"), name or "module"]
    return folder.joinpath(*map(slug, parts))


def slug(name: str) -> str:
    """``name`` as a safe, lower-case file name; a hash is appended unless nothing had to change.

    Case counts as a change, so that names that differ in case only stay apart where the file system ignores it.
    """
    plain = re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")
    if plain and plain == name and len(plain) <= _SLUG:
        return plain
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[:_SLUG].strip('-')}-{digest}".lstrip("-")


def read(path: Path) -> Series:
    """The series in ``path``. Raises ``BaselineError`` that names the file when it cannot be read or is broken."""
    try:
        content = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise BaselineError(f"{path} cannot be read: {error.strerror}; check the file and its permissions") from error
    except UnicodeDecodeError as error:
        raise BaselineError(f"{path} is not UTF-8 text; restore it from version control or delete it") from error
    return toml_text.parse(content, str(path))


def write(path: Path, series: Series) -> bool:
    """Write ``series`` to ``path``; False when the file already holds exactly that.

    Atomic and durable: the old file stays whole until the new one is on disk. Raises ``BaselineError`` when the disk
    is full or not writable; the old file is then untouched. The caller holds the folder's lock.
    """
    content = toml_text.dump(series).encode()
    aside = path.with_name(f".{path.name}.new")
    try:
        if path.is_file() and path.read_bytes() == content:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        _sync(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise BaselineError(f"{path} could not be written: {error.strerror}; what was there is whole") from error
    return True


def remove(folder: Path, path: Path) -> None:
    """Delete one baseline and the folders that it leaves empty, up to ``folder``."""
    path.unlink()
    for parent in path.parents:
        if parent == folder or folder not in parent.parents or any(parent.iterdir()):
            return
        parent.rmdir()


def files(folder: Path, engine: str | None = None, label: str | None = None) -> Iterator[Path]:
    """Every baseline file, sorted; of one engine and one hardware ``label`` where given. Opens none of them."""
    return (folder / name for name in names(folder, engine, label))


def names(folder: Path, engine: str | None = None, label: str | None = None) -> Iterator[str]:
    """As ``files``, as text relative to ``folder``: much cheaper where there are thousands."""
    start = str(folder / slug(engine) if engine else folder)
    skip = len(str(folder)) + 1
    for parent, folders, found in os.walk(start):
        folders.sort()
        for name in sorted(found):
            if _is_baseline(name) and (label is None or name.startswith(f"{label}--")):
                yield f"{parent}/{name}"[skip:]


def _is_baseline(name: str) -> bool:
    return "--" in name and name.endswith(".toml") and not name.startswith(".")


def _sync(folder: Path) -> None:
    """Make a rename in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
