"""Taking a launch out of the baselines: one that was recorded while something was wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_llmperf.baselines import store
from pytest_llmperf.baselines.series import Series
from pytest_llmperf.baselines.update import lock
from pytest_llmperf.errors import BaselineError


def drop(folder: Path, ids: Sequence[str], state: Path) -> list[str]:
    """Remove the launches with these ids (a beginning will do) from every baseline that holds one; say from which.

    Raises ``BaselineError``, and changes nothing, for an id that fits no launch or several, and where a baseline would
    have none left.
    """
    with lock(folder, state):
        found = {path: store.read(path) for path in store.files(folder)}
        stored = {x.id for series in found.values() for e in series.epochs for x in e.launches}
        gone = {_one(stored, wanted) for wanted in ids}
        changed = {path: after for path, series in found.items() if (after := _without(series, gone)) != series}
        for path, after in changed.items():
            if not after.epochs:
                raise BaselineError(
                    f"{path.relative_to(folder)} has no other launch: record new ones first (--update-baselines), "
                    "or delete the file"
                )
        for path, after in changed.items():
            store.write(path, after)
    return [f"{after.test} [{after.engine}]: {len(after.current.launches)} left" for after in changed.values()]


def _one(stored: set[str], wanted: str) -> str:
    fitting = sorted(i for i in stored if i.startswith(wanted))
    if len(fitting) != 1:
        many = f"fits {len(fitting)} launches ({', '.join(fitting[:3])} ...)" if fitting else "is no stored launch"
        raise BaselineError(f"{wanted!r} {many}; `llmperf baselines show TEST` lists those of a test")
    return fitting[0]


def _without(series: Series, gone: set[str]) -> Series:
    kept = [replace(e, launches=tuple(x for x in e.launches if x.id not in gone)) for e in series.epochs]
    return replace(series, epochs=tuple(e for e in kept if e.launches))
