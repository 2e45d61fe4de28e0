"""The gaps between engines that a session's results hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

from pytest_llmperf.measure.metrics import Metric
from pytest_llmperf.records.gaps_and_sweeps import Gap
from pytest_llmperf.records.results import LaunchValues, Result
from pytest_llmperf.stats import Prior
from pytest_llmperf.tuning.ratios import gap

#: What is said of an interval that no two launches stand behind.
ASSUMED = "one launch a side: the interval is as wide as launches are assumed to differ; --launches 3 measures that"


def gaps(results: Iterable[Result], engines: Sequence[str], prior_of: Callable[[Result], Prior]) -> list[Gap]:
    """The engine named first over each other one, for every test and metric that both have.

    ``engines`` are in the order named; others come after them, by name. ``prior_of`` gives the launch
    spread expected of a result's engine. Only the launches that decided a verdict count, as in the results; what is
    invalid or ended in an error, or was measured under another workload, has no gap.
    """
    found: dict[tuple[str, str], dict[str, list[Result]]] = {}
    for result in results:
        found.setdefault((result.test, result.metric), {}).setdefault(result.engine, []).append(result)
    return [g for sides in found.values() for g in _of_one_test(sides, engines, prior_of)]


def _of_one_test(
    sides: dict[str, list[Result]], engines: Sequence[str], prior_of: Callable[[Result], Prior]
) -> Iterator[Gap]:
    first, *others = sorted(sides, key=lambda e: (engines.index(e) if e in engines else len(engines), e))
    for other in others:
        # several servers of a test come in the same order on each engine
        for mine, theirs in zip_longest(sides[first], sides[other]):
            if mine and theirs and _comparable(mine) and _comparable(theirs) and mine.workload == theirs.workload:
                yield _gap(mine, theirs, prior_of)


def _gap(mine: Result, theirs: Result, prior_of: Callable[[Result], Prior]) -> Gap:
    sides = [[x.values for x in _deciding(r)] for r in (mine, theirs)]
    said = [f"{r.engine} is inconclusive, and so is the gap" for r in (mine, theirs) if r.verdict == "inconclusive"]
    if all(len(side) == 1 for side in sides):
        said.append(ASSUMED)
    return gap(
        mine.test,
        Metric(mine.metric, mine.unit, mine.higher_is_better, ""),
        mine.engine,
        sides[0],
        theirs.engine,
        sides[1],
        prior=prior_of(mine),
        reference_prior=prior_of(theirs),
        note="; ".join(said) or None,
    )


def _comparable(result: Result) -> bool:
    launches = _deciding(result)
    sound = all(v > 0 for x in launches for v in x.values)
    return bool(launches) and sound and result.verdict not in ("invalid", "error")


def _deciding(result: Result) -> list[LaunchValues]:
    """The confirming launches where there are some (the first one was chosen for being slow), else all."""
    return [x for x in result.launches if x.role == "confirm"] or list(result.launches)
