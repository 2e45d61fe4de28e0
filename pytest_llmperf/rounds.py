"""Rounds: one run of a test on one launch.

Every test of a group first runs on the group's first launch. With ``--launches N`` the whole group runs again on N - 1
fresh launches; then the suspects, all together, on ``--llmperf-confirm`` more. A round that is not a test's last is
reported like a rerun (``m`` measured, ``S`` suspect); the last one gives the report. The number of launches is fixed
before they run, so nothing is ever rerun until it is green.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import pytest

# As pytest-rerunfailures does: pytest offers no public way to run an item's three phases without logging them.
from _pytest.runner import runtestprotocol

#: Outcomes of a round that is not its test's last, in place of passed, failed and skipped.
SUSPECT, MEASURED = "suspect", "measured"


@dataclass(frozen=True)
class Round:
    """``role`` is "screen" or "confirm"; ``index`` counts from 0 within ``of`` rounds of that role."""

    role: str = "screen"
    index: int = 0
    of: int = 1

    @property
    def last(self) -> bool:
        return self.index == self.of - 1


class Subject(Protocol):
    """What the rounds need to know of one performance test."""

    group: str

    @property
    def repeats(self) -> bool:
        """Whether it runs on every launch of its server, rather than once."""
        ...

    @property
    def suspect(self) -> bool:
        """Whether its last run calls for confirmation on fresh launches."""
        ...

    def begin(self, round_: Round) -> None:
        """The next run of the test is this round."""


class Servers(Protocol):
    """What the rounds need of the server room."""

    def renew(self, group: str) -> None:
        """Stop the group's servers; the next use launches them anew."""

    def release(self, group: str) -> None:
        """The group needs no server any more."""


class Rounds:
    """Runs the tests of each group through their rounds. ``subjects`` maps nodeid to performance test."""

    def __init__(self, subjects: Mapping[str, Subject], servers: Servers, launches: int, confirm: int) -> None:
        self._subjects: Mapping[str, Subject] = subjects
        self._servers = servers
        self._launches = launches
        self._confirm = confirm
        self._left: Counter[str] = Counter()
        self._held: dict[str, list[pytest.Item]] = {}

    def expect(self) -> None:
        """Collection is over: count each group's tests."""
        self._left = Counter(s.group for s in self._subjects.values())

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Run ``item`` once; after the group's last test run what its held tests still need."""
        subject = self._subjects[item.nodeid]
        group = subject.group
        self._left[group] -= 1
        last = self._left[group] <= 0 or nextitem is None
        held = self._held.setdefault(group, [])
        # The next item decides which fixtures are torn down now: a held test that runs again comes first.
        self._once(item, held[0] if last and held else nextitem, Round("screen", 0, self._launches))
        stopping = bool(item.session.shouldfail or item.session.shouldstop)
        if not (last or stopping):
            return
        if stopping and held:
            item.ihook.pytest_runtest_teardown(item=item, nextitem=held[0])
        for index in range(1, self._launches):
            self._again(group, Round("screen", index, self._launches), nextitem)
        for index in range(self._confirm):
            self._again(group, Round("confirm", index, self._confirm), nextitem)
        self._held.pop(group, None)
        self._servers.release(group)

    def _again(self, group: str, round_: Round, nextitem: pytest.Item | None) -> None:
        items, self._held[group] = self._held[group], []
        if not items:
            return
        self._servers.renew(group)
        for position, item in enumerate(items):
            following = [*items[position + 1 :], *self._held[group]]
            after = following[0] if following and following[0] is not item else nextitem
            with _reporting_as(item):
                self._once(item, after, round_)

    def _once(self, item: pytest.Item, nextitem: pytest.Item | None, round_: Round) -> None:
        subject = self._subjects[item.nodeid]
        subject.begin(round_)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        more = not round_.last or (subject.suspect and round_.role == "screen" and self._confirm > 0)
        if subject.repeats and more and all(r.passed for r in reports):
            self._held[subject.group].append(item)
            call = next(r for r in reports if r.when == "call")
            call.__dict__["outcome"] = SUSPECT if subject.suspect else MEASURED
            reports = [call]
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


@contextmanager
def _reporting_as(item: pytest.Item) -> Iterator[None]:
    """xdist's worker labels each report with the item its own loop is at: point it at the one that runs again."""
    worker = next((p for p in item.config.pluginmanager.get_plugins() if hasattr(p, "torun")), None)
    if worker is None:
        yield
        return
    before = worker.item_index
    worker.item_index = item.session.items.index(item)
    try:
        yield
    finally:
        worker.item_index = before
