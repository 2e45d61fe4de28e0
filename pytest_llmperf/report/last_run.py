"""What changed since an earlier session: the last one of a branch, as its JSON file tells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_llmperf.records.results import Result, SessionRecord
from pytest_llmperf.records.text import MISSING, clean, percent
from pytest_llmperf.report import summary


@dataclass(frozen=True)
class LastRun:
    """An earlier session beside this one: ``told`` when it was and how it ended, ``was`` its result by the ``id()`` of
    the same result of this session, ``gone`` the names of results that only it has."""

    told: str
    was: Mapping[int, Result]
    gone: tuple[str, ...]

    @classmethod
    def of(cls, now: SessionRecord, before: SessionRecord) -> LastRun:
        """Results are matched by test, engine, metric and, where a test has several servers, by their order."""
        here, there = _keyed(now), _keyed(before)
        return cls(
            f"{summary.when(before) or 'undated'}: {summary.tally(before.results)}",
            {id(result): there[key] for key, result in here.items() if key in there},
            tuple(clean(f"{r.test} ({r.engine}, {r.metric})") for key, r in there.items() if key not in here),
        )

    def change(self, result: Result) -> str:
        """``-22.9%``, ``+0.4%, was regressed``, ``new``; no number where unit, direction or workload differ."""
        was = self.was.get(id(result))
        if was is None:
            return "new"
        alike = (was.unit, was.direction, was.workload) == (result.unit, result.direction, result.workload)
        moved = result.value / was.value - 1 if alike and was.value and result.value is not None else None
        said = [percent(moved, signed=True)] if moved is not None else []
        if summary.state(was) != summary.state(result):
            said.append(f"was {summary.word(was)}")
        return ", ".join(said) or MISSING


def _keyed(session: SessionRecord) -> dict[tuple[str, str, str, int], Result]:
    seen: Counter[tuple[str, str, str]] = Counter()
    found = {}
    for r in session.results:
        seen[r.test, r.engine, r.metric] += 1
        found[r.test, r.engine, r.metric, seen[r.test, r.engine, r.metric]] = r
    return found
