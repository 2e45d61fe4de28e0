"""Baselines that no test uses: found, matched with the tests they may belong to now, renamed, removed."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_llmperf.baselines import store
from pytest_llmperf.baselines.series import Series, merged
from pytest_llmperf.baselines.update import lock
from pytest_llmperf.errors import BaselineError

#: Distance of two test ids, 0 to 1, up to which one may be the other's new name.
_UNLIKE = 0.4
#: Unused tests matched with new names; a suite that lost more has been replaced, not renamed.
_MOST = 200


@dataclass(frozen=True)
class Renamed:
    """Test ``old`` has a baseline and is gone; ``new`` is collected, has none, and looks like it."""

    old: str
    new: str
    engine: str


def unused(folder: Path, collected: Iterable[tuple[str, str]]) -> list[Path]:
    """Baseline files, of the engines in ``collected``, whose test is not collected.

    ``collected`` holds (test, engine). Opens no file. A file of a collected test for other hardware or another
    workload counts as used: another machine may need it.
    """
    tests = set(collected)
    used = {store.place(folder, test, engine) for test, engine in tests}
    engines = sorted({engine for _, engine in tests})
    return [path for engine in engines for path in store.files(folder, engine) if path.parent not in used]


def renamed(folder: Path, collected: Iterable[tuple[str, str]]) -> list[Renamed]:
    """Unused baselines that look like those of a collected test without one: moved (same name, other module) or
    renamed (same module, similar name); best matches first, each test in one pair at most.

    Raises ``BaselineError`` for a broken file.
    """
    tests = sorted(set(collected))
    lost = sorted({(s.test, s.engine) for s in map(store.read, unused(folder, tests))})[:_MOST]
    bare = [(test, engine) for test, engine in tests if not store.place(folder, test, engine).is_dir()]
    near: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for test, engine in bare:
        for part in _parts(test):
            near[engine, part].add(test)
    pairs = sorted(
        (_unlike(old, new), old, new, engine)
        for old, engine in lost
        for new in {new for part in _parts(old) for new in near[engine, part]}
    )
    taken: set[tuple[str, str]] = set()
    found = []
    for unlike, old, new, engine in pairs:
        if unlike <= _UNLIKE and not taken & {(old, engine), (new, engine)}:
            taken |= {(old, engine), (new, engine)}
            found.append(Renamed(old, new, engine))
    return found


def rename(folder: Path, old: str, new: str, state: Path) -> list[str]:
    """Give the baselines of test ``old`` (or of every test of module ``old``) to ``new``; say what moved where.

    What ``new`` has already stays and is merged. Raises ``BaselineError`` when there is nothing to move.
    """
    said = []
    with lock(folder, state):
        for path, series in _of(folder, old):
            after = replace(series, test=new + series.test[len(old) :])
            target = store.path_of(folder, after.test, after.engine, after.fingerprint)
            if target == path:
                continue
            store.write(target, merged(store.read(target), after) if target.exists() else after)
            store.remove(folder, path)
            said.append(f"{path.relative_to(folder)} -> {target.relative_to(folder)}")
    if not said:
        raise BaselineError(
            f"no baseline of {old!r} in {folder} to rename; `llmperf baselines show` lists what there is"
        )
    return said


def prune(folder: Path, paths: Sequence[Path], state: Path) -> list[str]:
    """Remove these baseline files and the folders they leave empty; say which."""
    with lock(folder, state):
        for path in paths:
            store.remove(folder, path)
    return [f"removed {path.relative_to(folder)}" for path in paths]


def _of(folder: Path, test: str) -> Iterator[tuple[Path, Series]]:
    """Every series of ``test``, on any engine; of all tests of a module when ``test`` names one."""
    for path in list(store.files(folder)):
        series = store.read(path)
        if series.test == test or ("::" not in test and series.test.startswith(f"{test}::")):
            yield path, series


def _unlike(old: str, new: str) -> float:
    """0 for a test that only moved to another module."""
    if _parts(old)[1] == _parts(new)[1]:
        return 0.0
    return 1 - difflib.SequenceMatcher(None, old, new).ratio()


def _parts(test: str) -> tuple[str, str]:
    module, _, name = test.partition("::")
    return module, f"::{name}"
