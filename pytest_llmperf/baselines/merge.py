"""Bringing baselines together: from another folder (another machine's CI artefact), or two branches' in git."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pytest_llmperf.baselines import store
from pytest_llmperf.baselines.series import merged
from pytest_llmperf.baselines.update import lock
from pytest_llmperf.errors import BaselineError


def into(folder: Path, sources: Iterable[Path], state: Path) -> list[str]:
    """Merge every baseline of ``sources`` (folders or files) into ``folder``; say which files changed.

    All sources are read before anything is written. Raises ``BaselineError`` for a broken or missing one.
    """
    found = []
    for source in sources:
        paths = [source] if source.is_file() else list(store.files(source))
        if not paths:
            raise BaselineError(f"{source} holds no baselines")
        found += [store.read(path) for path in paths]
    said = []
    with lock(folder, state):
        for theirs in found:
            path = store.path_of(folder, theirs.test, theirs.engine, theirs.fingerprint)
            if store.write(path, merged(store.read(path), theirs) if path.exists() else theirs):
                said.append(f"merged {path.relative_to(folder)}")
    return said


def driver(ours: Path, theirs: Path) -> None:
    """Merge ``theirs`` into ``ours``: git's merge driver (``%A`` and ``%B``).

    Raises ``BaselineError`` when they are not versions of one baseline; git then reports a conflict.
    """
    mine, other = store.read(ours), store.read(theirs)
    if (mine.test, mine.engine, mine.fingerprint) != (other.test, other.engine, other.fingerprint):
        raise BaselineError(f"{ours} and {theirs} are baselines of different tests or machines")
    store.write(ours, merged(mine, other))
