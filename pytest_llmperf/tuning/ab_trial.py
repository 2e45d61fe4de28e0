"""Running an A/B: one fresh launch after the other, each measured once, until the answer is clear.

Launches alternate ABBA ABBA ..., so that a linear drift cancels over every block of four. After each complete pair the
launches so far are judged by a rule whose error stays within its level however often one looks (``stats.trial``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pytest_llmperf.engines.base import Engine
from pytest_llmperf.errors import LaunchError, MeasurementError
from pytest_llmperf.measure.metrics import Metric
from pytest_llmperf.measure.run import Run
from pytest_llmperf.records.text import number, percent, plural
from pytest_llmperf.server.pool import ServerPool
from pytest_llmperf.server.running_server import Server
from pytest_llmperf.server_config import ServerConfig
from pytest_llmperf.stats import Launch, Prior, Trial, abba, location, trial


@dataclass(frozen=True)
class Side:
    """One of the two: its config, and the pool that launches it (two builds are two commands, hence two pools)."""

    label: str
    config: ServerConfig
    engine: Engine
    pool: ServerPool


#: Measures a ready server of one side, once.
Measure = Callable[[Side, Server], Run]


@dataclass
class Duel:
    """An A/B as it went. ``trial`` is where it ended, None when a side never measured; ``error`` says why it broke
    off and ``failed`` on which side."""

    a: list[tuple[float, ...]] = field(default_factory=list)
    b: list[tuple[float, ...]] = field(default_factory=list)
    trial: Trial | None = None
    error: LaunchError | MeasurementError | None = None
    failed: Side | None = None


def fight(
    a: Side,
    b: Side,
    measure: Measure,
    metric: Metric,
    *,
    budget: int,
    min_effect: float = 0.01,
    prior: Callable[[], Prior] = Prior,
    say: Callable[[str], None],
) -> Duel:
    """Launch and measure until ``stats.trial`` is sure or each side was launched ``budget`` times.

    ``prior`` gives the launch spread expected of both, and is asked anew at each step: the first launch may tell.
    A side that does not start, dies, or measures nothing valid ends the trial with ``error``; nothing is launched
    again to get past it. Both pools are closed at the end, whatever happens.
    """
    __tracebackhide__ = True  # what ``measure`` raises is about ``measure``
    duel = Duel()
    sides = {"a": (a, duel.a), "b": (b, duel.b)}
    try:
        while True:
            now = step(
                duel.a,
                duel.b,
                budget=budget,
                higher_is_better=metric.higher_is_better,
                min_effect=min_effect,
                prior=prior(),
            )
            duel.trial = now.trial
            if now.side is None:
                return duel
            side, launches = sides[now.side]
            try:
                values = _one_launch(side, measure, metric)
            except (LaunchError, MeasurementError) as error:
                duel.error, duel.failed = error, side
                return duel
            launches.append(values)
            say(f"{side.label}: launch {len(launches)} of at most {budget}: {number(location(values))} {metric.unit}")
    finally:
        a.pool.close()
        b.pool.close()


def stopped(trial: Trial, min_effect: float = 0.01) -> str:
    """Why a trial ended, in words."""
    each = f"{plural(trial.pairs, 'launch')} of each"
    said = {
        "faster": f"clear after {each}: b is better",
        "slower": f"clear after {each}: b is worse",
        "no difference": f"clear after {each}: no difference of {percent(min_effect)} or more",
    }.get(trial.verdict, f"undecided within the budget of {each}")
    if trial.unsteady:
        said += (
            f"; launches of a side spread by {percent(trial.spread)}, more than is usual: the interval is too narrow"
        )
    return said


def _one_launch(side: Side, measure: Measure, metric: Metric) -> tuple[float, ...]:
    """Start, measure, stop. Raises ``LaunchError`` or ``MeasurementError`` that names the side."""
    __tracebackhide__ = True
    try:
        run = measure(side, side.pool.get(side.config))
        return _usable(run, metric)
    except (LaunchError, MeasurementError) as error:
        raise type(error)(f"{side.label}: {error}") from error
    finally:
        side.pool.release(side.config)


def _usable(run: Run, metric: Metric) -> tuple[float, ...]:
    if run.measurement.invalid:
        raise MeasurementError("the measurement is invalid:\n  " + "\n  ".join(run.measurement.invalid))
    if metric.name not in run.metrics:
        raise MeasurementError(f"the run has no {metric.name!r}; its metrics are: {', '.join(run.metrics) or 'none'}")
    values = run.measurement.values[metric.name]
    if not all(v > 0 for v in values):
        raise MeasurementError(f"{metric.name} holds a value that is not above 0, which no ratio can be made of")
    return values


@dataclass(frozen=True)
class Step:
    """What to do next. ``side`` is ``a`` or ``b``, None when the trial is over; ``trial`` is where it stands."""

    side: str | None
    trial: Trial


def step(
    a: Sequence[Launch],
    b: Sequence[Launch],
    *,
    budget: int,
    higher_is_better: bool = True,
    level: float = 0.95,
    prior: Prior | None = None,
    min_effect: float = 0.01,
) -> Step:
    """The next step after these launches (each its repetitions, or one value), made in the order that steps asked for.

    ``budget`` is the most launches of each side; never is more asked for. Raises ``ValueError`` for unusable launches
    or when the launches are not those of the order.
    """
    made = len(a) + len(b)
    planned = abba(budget)
    done = planned[:made]
    if (done.count("A"), done.count("B")) != (len(a), len(b)):
        raise ValueError(f"{len(a)} launches of a and {len(b)} of b are not the start of {planned}")
    judged = trial(
        a,
        b,
        budget=budget,
        higher_is_better=higher_is_better,
        level=level,
        prior=prior,
        min_effect=min_effect,
    )
    between = len(a) != len(b)
    if between or (not judged.done and made < len(planned)):
        return Step(planned[made].lower(), judged)
    return Step(None, judged)
