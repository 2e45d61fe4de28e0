"""LaunchRounds: one run of a test on one launch.

Every test of a group first runs on the group's first launch. With ``--launches N`` the whole group runs again on N - 1
fresh launches; then the suspects, all together, on ``--llmperf-confirm`` more. A round that is not a test's last is
reported as a rerun, which other plugins know, and shown by a word of ours (``m`` measured, ``S`` suspect); the last one
gives the report. The number of launches is fixed before they run, so nothing is ever rerun until it is green. When
pytest is told to stop (``-x``), what its group has begun is finished first, so that no measured test goes without a
verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import cast

import pytest

# As pytest-rerunfailures does: pytest offers no public way to run an item's three phases without logging them.
from _pytest.runner import runtestprotocol

from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.session.perf_test import PerfTest, Round

#: What a round is that is not its test's last, and its outcome (in place of passed, failed and skipped), the one that
#: pytest-rerunfailures has made known.
SUSPECT, MEASURED, RERUN = "suspect", "measured", "rerun"


class LaunchRounds:
    """Runs the tests of each group through their rounds. ``tests`` maps nodeid to performance test.

    A group's tests must come as neighbours. Fixtures of classes, modules and sessions live through all rounds.
    """

    def __init__(self, tests: Mapping[str, PerfTest], session: PerfSession, launches: int, confirm: int) -> None:
        self._tests = tests
        self._session = session
        self._screens = [Round("screen", i, launches) for i in range(launches)]
        self._confirms = [Round("confirm", i, confirm) for i in range(confirm)]
        self._held: list[pytest.Item] = []

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Run ``item`` once; after the group's last test run what its held tests still need."""
        group = self._tests[item.nodeid].group
        following = self._tests.get(nextitem.nodeid) if nextitem else None
        last = following is None or following.group != group
        self._once(item, self._first(item) if last else nextitem, self._screens[0])
        stop_timer(item)
        if not last:
            if not (item.session.shouldfail or item.session.shouldstop):
                return
            tear_down(item, self._first(item))
        for round_ in (*self._screens[1:], *self._confirms):
            item = self._again(group, round_) or item
        tear_down(item, nextitem)
        self._session.release(group)

    def _again(self, group: str, round_: Round) -> pytest.Item | None:
        """Run all held tests on fresh launches; returns the last of them."""
        items, self._held = self._held, []
        if items:
            self._session.renew(group)
        for position, item in enumerate(items):
            last = item is items[-1]
            as_protocol(
                item,
                self._tests[item.nodeid],
                partial(self._once_more, item, None if last else items[position + 1], round_),
            )
        return items[-1] if items else None

    def _once_more(self, item: pytest.Item, nextitem: pytest.Item | None, round_: Round) -> None:
        self._once(item, nextitem or self._first(item), round_)

    def _first(self, item: pytest.Item) -> pytest.Item:
        """What runs after ``item``, the last of a round: the first of the next one, which may be itself."""
        return self._held[0] if self._held else again(item)

    def _once(self, item: pytest.Item, nextitem: pytest.Item | None, round_: Round) -> None:
        test = self._tests[item.nodeid]
        test.begin(round_)
        known = len(item.user_properties)
        with reporting_as(item):
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            more = not round_.last or (test.suspect and round_.role == "screen" and bool(self._confirms))
            if test.repeats and more and all(r.passed for r in reports):
                self._held.append(item)
                del item.user_properties[known:]  # the next round records them anew
                reports = [r for r in reports if r.when == "call"]
                for report in reports:
                    as_rerun(report, SUSPECT if test.suspect and round_.role == "screen" else MEASURED)
            for report in reports:
                item.ihook.pytest_runtest_logreport(report=report)
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def as_rerun(report: pytest.TestReport, what: str) -> None:
    """Make ``report`` that of a round which is not its test's last."""
    report.__dict__["outcome"] = RERUN
    vars(report)["llmperf"]["round"] = what


def as_protocol(item: pytest.Item, test: PerfTest, round_: Callable[[], None]) -> None:
    """Run ``round_`` within the protocol of ``item``, like any other run of a test to the plugins that wrap that:
    pytest-timeout times it, warnings and rewritten assertions are its own."""
    test.another = round_
    try:
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
    finally:
        test.another = None


def stop_timer(item: pytest.Item) -> None:
    """pytest-timeout's, of a run of ``item`` that is over: what follows in its protocol is other tests' time."""
    cancel = getattr(item.ihook, "pytest_timeout_cancel_timer", None)
    if cancel is not None:
        cancel(item=item)


def again(item: pytest.Item) -> pytest.Item:
    """``item`` as its own next one. Its parent stands for it: tearing down to that ends the test's own fixtures and no
    others. pytest asks a next item for its place in the tree alone, which a collector has too."""
    assert item.parent is not None
    return cast(pytest.Item, item.parent)


def tear_down(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After ``item`` has ended, end the fixtures that ``nextitem`` does not share, and report it when that fails.

    Not by the teardown hook: that is called once for each run of a test, and other plugins count on it.
    """
    call = pytest.CallInfo.from_call(
        lambda: item.session._setupstate.teardown_exact(nextitem),
        when="teardown",
        reraise=(KeyboardInterrupt, pytest.exit.Exception),
    )
    if call.excinfo is not None:
        with reporting_as(item):
            report = item.ihook.pytest_runtest_makereport(item=item, call=call)
            item.ihook.pytest_runtest_logreport(report=report)


@contextmanager
def reporting_as(item: pytest.Item) -> Iterator[None]:
    """xdist's worker labels each report with the item its own loop is at: point it at the one that runs."""
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
