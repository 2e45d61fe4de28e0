"""The verdict on one metric of one test: fresh launches, the stored series and a target in, a ``Result`` out.

Order of precedence: an invalid measurement; something outside the server that spoilt the measurement, which makes the
rest inconclusive (a suspect is run on fresh launches first); a target missed; what the gate says, or that there is
nothing to compare with. What the engine did to itself stands beside the verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_llmperf.baselines import drift, store
from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.provenance import differences
from pytest_llmperf.baselines.series import Series, StoredLaunch, seconds
from pytest_llmperf.baselines.speculative_loss import blame
from pytest_llmperf.baselines.stored_gate import gate_of, recordable_as
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.measure.metrics import OF_THE_ENGINE, Guard, Metric
from pytest_llmperf.records.results import OLD_DAYS, BaselineRef, LaunchValues, Result
from pytest_llmperf.records.text import number, percent
from pytest_llmperf.stats import Gate, Launch, Outcome, Prior, location, target_outcome

_DAY = 86_400


@dataclass(frozen=True)
class GateTerms:
    """One gated metric of one test and how it is judged.

    ``test`` is the id without the engine, ``server`` the config's key, ``host`` the hashed host identity. ``alpha`` is
    the level of both stages together, ``min_effect`` and ``max_regression`` are fractions, ``target`` is in the
    metric's unit. ``confirm_launches`` is 0 where no fresh launch can confirm a suspect: then one stage decides.
    ``updating``: what looks faster is confirmed too, before an epoch begins with it.
    """

    nodeid: str
    test: str
    engine: str
    server: str
    metric: Metric
    fingerprint: Fingerprint
    host: str
    alpha: float = 0.001
    min_effect: float = 0.01
    max_regression: float | None = None
    target: float | None = None
    confirm_launches: int = 2
    updating: bool = False
    prior: Prior = field(default_factory=Prior)
    workload: Mapping[str, Any] = field(default_factory=dict)
    location: str | None = None


@dataclass(frozen=True)
class MetricVerdict:
    """``suspect``: ``result`` is not final (until then inconclusive); the test wants confirmation on fresh launches.
    ``gate`` is the verdict without the target: what may be recorded does not depend on a number somebody typed."""

    result: Result
    suspect: bool = False
    gate: str = ""


def verdict_of(
    terms: GateTerms,
    screened: Sequence[StoredLaunch],
    confirmed: Sequence[StoredLaunch] = (),
    *,
    known: Sequence[Series],
    folder: Path,
    now: float,
    guards: Sequence[Guard] = (),
    invalid: Sequence[str] = (),
) -> MetricVerdict:
    """Judge ``screened`` launches or, when a suspect was run again, the ``confirmed`` ones alone.

    ``known`` holds every stored series of this test and engine (``store.find``), ``now`` is in seconds since 1970.
    ``invalid`` holds the reasons why a measurement must not be judged. Raises ``ConfigError`` for a setting out of
    range.
    """
    deciding = confirmed or screened
    faults = (*invalid, *_faults(terms, (*screened, *confirmed)))
    blank = _blank(terms, screened, confirmed, guards)
    if faults:
        return MetricVerdict(replace(blank, verdict="invalid", reasons=faults), gate="invalid")
    measured = replace(blank, value=_mean(deciding, terms.metric.name))
    series = next((s for s in known if s.fingerprint == terms.fingerprint), None)
    try:
        judged = (
            _against(terms, screened, confirmed, series, folder, now, measured)
            if series
            else _Judged.unseen(_alone(known, measured), terms.prior)
        )
        result = _with_target(terms, deciding, judged.result, judged.learned)
    except ValueError as error:  # a level, target or max_regression that makes no sense
        raise ConfigError(f"{terms.nodeid}: {terms.metric.name} cannot be judged: {error}") from error
    launches = [x.id for x in deciding]
    own = _lines((g for g in guards if g.tripped and not g.spoils), launches)
    spoilt = _lines((g for g in guards if g.spoils), launches)
    if result.verdict == "passed" and not spoilt:
        result = replace(result, notes=(*result.notes, *own))
    else:
        result = replace(result, reasons=(*spoilt, *result.reasons, *own))
    if spoilt or result.verdict == "suspect":
        inconclusive = replace(result, verdict="inconclusive")
        gate = "inconclusive" if spoilt else judged.recordable
        return MetricVerdict(inconclusive, result.verdict == "suspect", gate)
    return MetricVerdict(result, gate=judged.recordable)


def _lines(tripped: Iterable[Guard], launches: Sequence[str]) -> tuple[str, ...]:
    """One line for each guard that tripped: where on several launches, their numbers and the worst one's evidence."""
    by_name: dict[str, list[Guard]] = {}
    for guard in tripped:
        by_name.setdefault(guard.name, []).append(guard)
    return tuple(_said(found, launches) for found in by_name.values())


def _said(found: Sequence[Guard], launches: Sequence[str]) -> str:
    worst = max(found, key=lambda g: abs((g.value or 0.0) - (g.limit or 0.0)))
    where = _where([i for i, x in enumerate(launches, 1) if any(g.launch == x for g in found)], len(launches))
    return f"{worst.name}{where}: {worst.evidence}" + (f"; {worst.advice}" if worst.advice else "")


def _where(numbers: Sequence[int], of: int) -> str:
    if of < 2 or not numbers:
        return ""
    *others, last = map(str, numbers)
    if not others:
        return f" (launch {last} of {of})"
    which = f"all {of} launches" if len(numbers) == of else f"launches {', '.join(others)} and {last} of {of}"
    return f" ({which}, the worst here)"


def _faults(terms: GateTerms, launches: Sequence[StoredLaunch]) -> tuple[str, ...]:
    if not launches:
        return ("no launch was measured",)
    lacking = [f"launch {x.id} has no {terms.metric.name}" for x in launches if terms.metric.name not in x.metrics]
    return (*lacking, *(x.fault for x in launches if x.fault))


def _blank(
    terms: GateTerms, screened: Sequence[StoredLaunch], confirmed: Sequence[StoredLaunch], guards: Sequence[Guard]
) -> Result:
    roles = [(x, "screen") for x in screened] + [(x, "confirm") for x in confirmed]
    values = [(x.id, x.metrics.get(terms.metric.name, ()), role) for x, role in roles if not x.fault]
    return Result(
        nodeid=terms.nodeid,
        test=terms.test,
        engine=terms.engine,
        server=terms.server,
        metric=terms.metric.name,
        unit=terms.metric.unit,
        higher_is_better=terms.metric.higher_is_better,
        verdict="invalid",
        target=terms.target,
        alpha=terms.alpha,
        launches=tuple(LaunchValues(i, v, location(v), role) for i, v, role in values if v),
        guards=tuple({**asdict(g), "cause": "engine" if g.name in OF_THE_ENGINE else "host"} for g in guards),
        workload=dict(terms.workload),
        fingerprint=dict(terms.fingerprint.fields),
        provenance=dict(roles[-1][0].provenance) if roles else {},
        location=terms.location,
    )


@dataclass(frozen=True)
class _Judged:
    """``recordable`` is the verdict that a recording goes by, ``learned`` what is known about the spread."""

    result: Result
    recordable: str
    learned: Prior

    @classmethod
    def unseen(cls, result: Result, prior: Prior) -> _Judged:
        return cls(result, result.verdict, prior)


def _against(
    terms: GateTerms,
    screened: Sequence[StoredLaunch],
    confirmed: Sequence[StoredLaunch],
    series: Series,
    folder: Path,
    now: float,
    measured: Result,
) -> _Judged:
    """By the gate, against the stored launches of the same fingerprint."""
    name = terms.metric.name
    fresh = {x.id for x in (*screened, *confirmed)}
    stored = [x for x in series.launches(name) if x.id not in fresh]
    if not stored:
        return _Judged.unseen(_no_evidence(series, measured), terms.prior)
    gate = gate_of(
        stored,
        terms.metric,
        terms.host,
        prior=terms.prior,
        alpha=terms.alpha,
        min_effect=terms.min_effect,
        confirm_launches=terms.confirm_launches,
        max_regression=terms.max_regression,
    )
    first, again = ([x.metrics[name] for x in side] for side in (screened, confirmed))
    outcome = _outcome(gate, first, again, single=not terms.confirm_launches)
    recordable = recordable_as(gate, outcome, first, again)
    age = (now - seconds(stored[-1].recorded)) / _DAY
    path = store.path_of(folder, series.test, series.engine, series.fingerprint).relative_to(folder).as_posix()
    deciding = confirmed or screened
    drifting = drift.check(
        series,
        name,
        (*screened, *confirmed),
        higher_is_better=terms.metric.higher_is_better,
        prior=terms.prior,
        min_effect=terms.min_effect,
    )
    notes = (_age_note(age), _cache_note(stored, deciding))
    worse = outcome.verdict in ("regressed", "suspect")
    blamed = blame(name, stored, deciding) if worse else None
    confirms = outcome.faster and terms.updating
    result = replace(
        measured,
        verdict="suspect" if confirms else outcome.verdict,
        value=outcome.value,
        band=outcome.band,
        mde=outcome.mde,
        change=outcome.change,
        nu=outcome.nu,
        baseline=BaselineRef(path, gate.k, gate.center, max(age, 0.0), gate.prior_only),
        reasons=(_sentence(terms.metric, outcome), *([blamed] if blamed else ()), *outcome.reasons),
        differences=differences(stored, deciding),
        notes=(*(n for n in notes if n), *_odd(gate, stored, name)),
        host_known=not gate.other_host,
        drift=drifting,
        weak=outcome.weak,
        required_launches=outcome.required_launches,
    )
    return _Judged(result, "inconclusive" if confirms else recordable, gate.learned)


def _odd(gate: Gate, stored: Sequence[StoredLaunch], metric: str) -> Iterator[str]:
    """Stored launches that lie far from the others, and what to do about them."""
    values = [location(x.metrics[metric]) for x in stored]
    for i in gate.outliers:
        away = values[i] / statistics.median(values[:i] + values[i + 1 :]) - 1
        yield (
            f"stored launch {stored[i].id} lies {percent(away, signed=True)} off the others and counts for less: "
            f"`llmperf baselines drop {stored[i].id}` removes it"
        )


def _outcome(gate: Gate, screened: Sequence[Launch], confirmed: Sequence[Launch], *, single: bool) -> Outcome:
    if confirmed:
        return gate.confirm(confirmed, screened=len(screened))
    return gate.single(screened) if single else gate.screen(screened)


def _sentence(metric: Metric, outcome: Outcome) -> str:
    moved = f"{percent(abs(outcome.change or 0))} {'above' if (outcome.change or 0) > 0 else 'below'} the baseline"
    return {
        "regressed": f"{moved}, beyond its band",
        "suspect": f"{moved}, beyond its band for one launch: to be confirmed on fresh launches",
        "improved": f"{moved}, credibly better: accept it with --update-baselines",
    }.get(outcome.verdict, moved)


def _no_evidence(series: Series, measured: Result) -> Result:
    """The series is there but holds nothing to verdict_of by: another metric's, or these very launches."""
    if series.launches(measured.metric):
        why = (
            "the only stored launches are these very ones (a kept server): stop it with `llmperf servers stop` "
            "and run again"
        )
        return replace(measured, verdict="inconclusive", reasons=(why,))
    why = f"the baseline holds no {measured.metric} yet: record it with --update-baselines"
    return replace(measured, verdict="no_baseline", reasons=(why,))


def _alone(known: Sequence[Series], measured: Result) -> Result:
    """There is no series of this fingerprint: say whether there is one of another."""
    record = "record one here with --update-baselines (--launches 3 makes it tighter)"
    if not known:
        return replace(measured, verdict="no_baseline", reasons=(f"no baseline of this test: {record}",))
    mine = Fingerprint(measured.fingerprint)
    nearest = min((s.fingerprint.differences(mine) for s in known), key=len)
    fields = "; ".join(f"{name}: {theirs} there, {here} here" for name, theirs, here in nearest)
    return replace(
        measured,
        verdict="not_comparable",
        reasons=(f"the stored baseline{'s differ' if len(known) > 1 else ' differs'} in {fields}: {record}",),
    )


def _with_target(terms: GateTerms, deciding: Sequence[StoredLaunch], result: Result, prior: Prior) -> Result:
    """A target is judged beside the baseline; without a baseline it is what the test is held to. A loss that the gate
    has found stays one: a target missed explains nothing of it."""
    if terms.target is None:
        return result
    values = [x.metrics[terms.metric.name] for x in deciding]
    outcome = target_outcome(values, terms.target, terms.metric.higher_is_better, terms.alpha, prior)
    if outcome.verdict == "regressed" and result.verdict not in ("regressed", "suspect"):
        return replace(result, verdict="below_target", reasons=(*outcome.reasons, *result.reasons))
    if result.verdict in ("no_baseline", "not_comparable"):
        held = f"held to its target alone ({number(terms.target)} {terms.metric.unit})"
        return replace(result, verdict="passed", reasons=(held, *outcome.reasons), notes=result.reasons)
    return replace(result, reasons=(*result.reasons, *outcome.reasons))


def _mean(launches: Sequence[StoredLaunch], metric: str) -> float:
    logs = [math.log(location(x.metrics[metric])) for x in launches]
    return math.exp(sum(logs) / len(logs))


def _age_note(days: float) -> str | None:
    return f"the baseline's newest launch is {days:.0f} days old" if days > OLD_DAYS else None


def _cache_note(stored: Sequence[StoredLaunch], fresh: Sequence[StoredLaunch]) -> str | None:
    """Cold and warm compile caches are never compared in silence."""
    was, now = ({x.cache for x in side if x.cache} for side in (stored, fresh))
    if not was or not now or now <= was:
        return None
    return f"compile cache {' and '.join(sorted(now))} here, {' and '.join(sorted(was))} in the baseline"
