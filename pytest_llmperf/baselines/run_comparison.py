"""Two sessions side by side: every result that both have, and whether the difference between them is credible."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_llmperf.baselines.fingerprint import reported_host
from pytest_llmperf.measure.workloads import HOW_LONG
from pytest_llmperf.records.results import Difference, Result, SessionRecord
from pytest_llmperf.stats import Gate, Outcome, Prior, location

#: Level at which a difference is called credible.
LEVEL = 0.01


@dataclass(frozen=True)
class Compared:
    """One metric of one test in both sessions; ``change`` is b / a - 1, ``mde`` the smallest loss seen with 80 % power.

    ``verdict``: regressed, improved, passed (no credible difference), inconclusive, or invalid, for ``reason``; suspect
    and faster of a ``b`` with one launch, on which nothing is called worse or better.
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


@dataclass(frozen=True)
class _Terms:
    """How the gate judges: ``prior`` of a result, the hosts of both sessions (None where a report does not tell), the
    least relative change that matters."""

    prior: Callable[[Result], Prior]
    hosts: tuple[str, str] | None
    min_effect: float


def compare(
    a: SessionRecord, b: SessionRecord, prior: Callable[[Result], Prior] | None = None, *, min_effect: float = 0.01
) -> Comparison:
    """Compare session ``b`` with session ``a`` as the gate would, ``a`` being the baseline: launches are the unit,
    hosts differ by more than launches do, ``b``'s first launch screens and its others confirm. Launches of both (a kept
    server) count in neither: a server is not evidence against itself."""
    left, right = _results(a), _results(b)
    hosts = [reported_host(session.session.get("hardware") or {}) for session in (a, b)]
    known = (hosts[0], hosts[1]) if hosts[0] and hosts[1] else None
    terms = _Terms(prior or (lambda _: Prior()), known, min_effect)
    return Comparison(
        tuple(_compared(left[key], right[key], terms) for key in sorted(left.keys() & right.keys())),
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


def _compared(a: Result, b: Result, terms: _Terms) -> Compared:
    shared = {x.id for x in a.launches} & {x.id for x in b.launches}
    was, now = ([x.values for x in r.launches if x.id not in shared and x.values] for r in (a, b))
    differences = _differences(a, b)
    head = (b.test, b.engine, b.metric, a.unit if a.unit == b.unit else f"{a.unit} / {b.unit}", a.value, b.value)
    counts = (len(was), len(now))
    sound = all(v > 0 and math.isfinite(v) for values in (*was, *now) for v in values)
    unlike = _unlike(a, b)
    if unlike:
        reason = unlike
    elif "invalid" in (a.verdict, b.verdict) or not sound:
        reason = "a measurement is invalid"
    elif shared and not (was and now):
        reason = "both measured the same launch (a kept server), which is no evidence about itself"
    elif not (was and now):
        reason = "one of them measured no launch"
    else:
        gate = Gate(
            was, b.higher_is_better, LEVEL, terms.prior(b), terms.min_effect, max(len(now) - 1, 1),
            hosts=[terms.hosts[0]] * len(was) if terms.hosts else None, host=terms.hosts[1] if terms.hosts else None,
        )  # fmt: skip
        outcome = _judged(gate, now)
        value = math.exp(sum(math.log(location(x)) for x in now) / len(now))
        verdict = "faster" if outcome.faster else outcome.verdict
        return Compared(
            *head[:4], gate.center, value, verdict, value / gate.center - 1, outcome.mde, counts, differences
        )
    return Compared(*head, "invalid", launches=counts, differences=differences, reason=reason)


def _identity(result: Result) -> dict[str, Any]:
    """What was sent; reports of earlier versions also say how often."""
    return {k: v for k, v in result.workload.items() if k not in HOW_LONG}


def _judged(gate: Gate, launches: Sequence[Sequence[float]]) -> Outcome:
    """The first launch screens, the others confirm: together they are wrong as often as ``LEVEL`` says."""
    seen = gate.screen(launches[0])
    if len(launches) > 1 and (seen.verdict == "suspect" or seen.faster):
        return gate.confirm(launches[1:])
    return seen


def _unlike(a: Result, b: Result) -> str:
    """What keeps two measurements from being of the same quantity, if anything does."""
    if a.unit != b.unit:
        return f"the units differ: {a.unit} in A, {b.unit} in B"
    if a.higher_is_better != b.higher_is_better:
        return f"the metric differs: {a.direction} is better in A, {b.direction} in B"
    if a.fingerprint.get("definitions") != b.fingerprint.get("definitions"):
        return "the metric's definition differs between the versions of pytest-llmperf"
    return "the workloads differ" if _identity(a) != _identity(b) else ""


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
