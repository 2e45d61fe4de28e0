"""Weeks of ``--update-baselines`` as the product has them: ``Gate`` judges, the rules of ``baselines`` record."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_llmperf.baselines import drift
from pytest_llmperf.baselines.attempts import Attempt
from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.series import Series, StoredLaunch, utc
from pytest_llmperf.baselines.stored_gate import recordable_as
from pytest_llmperf.baselines.update import Change, Fresh, plan
from pytest_llmperf.stats import Gate, Prior

METRIC, WEEKS, STORED, CONFIRM, TRIES = "decode_tok_s", 26, 5, 2, 10
_PRINT = Fingerprint({"gpu": "simulated"})
_DAY = 86_400


@dataclass(frozen=True)
class HalfYear:
    """Shares of series that began a new epoch and of recordings refused as regressions; mean of the final centre's
    deviation (logs); mean launches a week."""

    rebased: float
    refused: float
    bias: float
    launches: float


@dataclass(frozen=True)
class _Session:
    """A series after one session, its verdict, and the launches it measured."""

    series: Series
    verdict: str
    launches: tuple[StoredLaunch, ...]


def half_year(
    rng: np.random.Generator, count: int, cv: float, prior: Prior, alpha: float, *, outliers: float
) -> HalfYear:
    """One session a week for ``WEEKS``, nothing changing; one launch in ``1 / outliers`` is 5 % slow."""

    def draw() -> float:
        return float(rng.normal(0, cv) + math.log(0.95) * (rng.random() < outliers))

    rebased, refused, bias, used = 0, 0, 0.0, 0
    for _ in range(count):
        series = _recorded(draw)
        for week in range(1, WEEKS + 1):
            done = _session(series, draw, 7 * week, prior, alpha)
            series = done.series
            refused += done.verdict == "regressed"
            used += len(done.launches)
        rebased += len(series.epochs) > 1
        bias += math.log(_gate(series, prior, alpha).center / 100)
    weeks = count * WEEKS
    return HalfYear(rebased / count, refused / weeks, bias / count, used / weeks)


def drift_said(
    rng: np.random.Generator, count: int, cv: float, prior: Prior, alpha: float, *, weekly: float, a_week: int
) -> tuple[float, float]:
    """Share of series whose loss of ``weekly`` (logs) is said within four weeks, by the gate or as drift, and the
    share in which the latter says it."""
    said = alone = 0
    for _ in range(count):
        series = _recorded(lambda: float(rng.normal(0, cv)))
        by_gate = by_drift = False
        for number in range(1, 4 * a_week + 1):
            moved = weekly * number / a_week
            before = series
            done = _session(series, lambda at=moved: float(rng.normal(at, cv)), 7 * number / a_week, prior, alpha)
            by_drift |= drift.check(before, METRIC, done.launches, prior=prior) is not None
            by_gate |= done.verdict == "regressed"
            series = done.series
        said += by_gate or by_drift
        alone += by_drift
    return said / count, alone / count


def until_green(
    rng: np.random.Generator, count: int, cv: float, prior: Prior, alpha: float, *, loss: float, launches: int
) -> tuple[float, float]:
    """Share of series into which a ``loss`` (logs) is recorded by the first session with it, and by any of ``TRIES`` at
    one commit, each on so many ``launches``."""
    first = ever = 0
    for _ in range(count):
        series = _recorded(lambda: float(rng.normal(0, cv)))
        attempts: list[Attempt] = []
        for number in range(1, TRIES + 1):
            done = _session(
                series, lambda: float(rng.normal(-loss, cv)), number, prior, alpha, launches, attempts=attempts
            )
            if done.series != series:
                first += number == 1
                ever += 1
                break
            attempts.append(Attempt("one commit", utc(0), done.verdict))
    return first / count, ever / count


def _recorded(draw: Callable[[], float]) -> Series:
    launches = tuple(_launch(draw, 0, i) for i in range(STORED))
    first = plan(None, Fresh("t.py::test", "sglang", _PRINT, launches, {METRIC: "no_baseline"}))
    assert isinstance(first, Change)
    return first.onto(None)[0]


def _session(
    series: Series,
    draw: Callable[[], float],
    day: float,
    prior: Prior,
    alpha: float,
    screened: int = 1,
    *,
    attempts: Sequence[Attempt] = (),
) -> _Session:
    """Screen so many launches, confirm suspect or faster ones, record all of them as the rules say."""
    gate = _gate(series, prior, alpha)
    launches = [_launch(draw, day, i) for i in range(screened)]
    first, again = [x.metrics[METRIC] for x in launches], []
    outcome = gate.screen(first)
    if outcome.verdict == "suspect" or outcome.faster:
        launches += [_launch(draw, day, screened + i) for i in range(CONFIRM)]
        again = [x.metrics[METRIC] for x in launches[screened:]]
        outcome = gate.confirm(again, screened=screened)
    verdict = recordable_as(gate, outcome, first, again)
    fresh = Fresh(series.test, series.engine, series.fingerprint, tuple(launches), {METRIC: verdict})
    change = plan(series, fresh, attempts=attempts)
    return _Session(change.onto(series)[0] if isinstance(change, Change) else series, verdict, fresh.launches)


def _gate(series: Series, prior: Prior, alpha: float) -> Gate:
    return Gate([x.metrics[METRIC] for x in series.launches(METRIC)], True, alpha, prior)


def _launch(draw: Callable[[], float], day: float, number: int) -> StoredLaunch:
    moment = utc(1_770_000_000 + day * _DAY + 60 * number)
    return StoredLaunch(f"{moment}-{number}", moment, "host", None, {METRIC: (100 * math.exp(draw()),)})
