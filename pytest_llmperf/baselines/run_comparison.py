"""Two sessions side by side: every result that both have, and whether the difference between them is credible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_llmperf.records.results import Difference, Result, SessionRecord
from pytest_llmperf.stats import Gate, Prior

#: Level at which a difference is called credible.
LEVEL = 0.01


@dataclass(frozen=True)
class Compared:
    """One metric of one test in both sessions; ``change`` is b / a - 1, ``mde`` the smallest loss seen with 80 % power.

    ``verdict``: regressed, improved, passed (no credible difference), inconclusive, or invalid, for ``reason``.
    """

    test: str
    engine: str
    metric: str
    unit: str
    a: float | None
    b: float | None
    verdict: str
    change: float | None = None
    mde: float | None = None
    launches: tuple[int, int] = (0, 0)
    differences: tuple[Difference, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class Comparison:
    """``only_a`` and ``only_b`` name (test, engine, metric) that one session lacks."""

    rows: tuple[Compared, ...]
    only_a: tuple[tuple[str, str, str], ...] = ()
    only_b: tuple[tuple[str, str, str], ...] = ()


def compare(a: SessionRecord, b: SessionRecord, prior: Prior | None = None) -> Comparison:
    """Compare session ``b`` with session ``a``, launches being the unit. Launches of both (a kept server) count in
    neither: a server is not evidence against itself."""
    left, right = _results(a), _results(b)
    return Comparison(
        tuple(_compared(left[key], right[key], prior) for key in sorted(left.keys() & right.keys())),
        tuple(key[:3] for key in sorted(left.keys() - right.keys())),
        tuple(key[:3] for key in sorted(right.keys() - left.keys())),
    )


def _results(session: SessionRecord) -> dict[tuple[str, str, str, int], Result]:
    """By test, engine, metric and a number that counts a test's several servers."""
    found: dict[tuple[str, str, str, int], Result] = {}
    for result in session.results:
        count = sum(key[:3] == (result.test, result.engine, result.metric) for key in found)
        found[result.test, result.engine, result.metric, count] = result
    return found


def _compared(a: Result, b: Result, prior: Prior | None) -> Compared:
    shared = {x.id for x in a.launches} & {x.id for x in b.launches}
    was, now = ([x.values for x in r.launches if x.id not in shared and x.values] for r in (a, b))
    differences = _differences(a, b)
    head = (b.test, b.engine, b.metric, b.unit, a.value, b.value)
    counts = (len(was), len(now))
    sound = all(v > 0 and math.isfinite(v) for values in (*was, *now) for v in values)
    if a.workload != b.workload:
        reason = "the workloads differ"
    elif "invalid" in (a.verdict, b.verdict) or not sound:
        reason = "a measurement is invalid"
    elif shared and not (was and now):
        reason = "both measured the same launch (a kept server), which is no evidence about itself"
    elif not (was and now):
        reason = "one of them measured no launch"
    else:
        gate = Gate(was, b.higher_is_better, LEVEL, prior)
        outcome = gate.single(now)
        return Compared(*head, outcome.verdict, outcome.change, outcome.mde, counts, differences)
    return Compared(*head, "invalid", launches=counts, differences=differences, reason=reason)


def _differences(a: Result, b: Result) -> tuple[Difference, ...]:
    """What differs in identity (fingerprint) and provenance, identity first."""
    found: list[Difference] = []
    sides: Sequence[tuple[dict[str, str], dict[str, str]]] = (
        (dict(a.fingerprint), dict(b.fingerprint)),
        (dict(a.provenance), dict(b.provenance)),
    )
    for was, now in sides:
        names = sorted(was.keys() | now.keys())
        found += [Difference(n, was.get(n, "-"), now.get(n, "-")) for n in names if was.get(n) != now.get(n)]
    return tuple(found)
