"""Running an A/B: one fresh launch after the other, each measured once, until the answer is clear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_llmperf.engines.base import Engine
from pytest_llmperf.errors import LaunchError, MeasurementError
from pytest_llmperf.measure.load import load
from pytest_llmperf.measure.metrics import Metric, Workload
from pytest_llmperf.measure.run import Connection
from pytest_llmperf.measure.stream import stream
from pytest_llmperf.report.text import number
from pytest_llmperf.server.config import ServerConfig
from pytest_llmperf.server.pool import Server, ServerPool
from pytest_llmperf.server.turns import measuring
from pytest_llmperf.stats import Trial, location
from pytest_llmperf.tuning.ab import step


@dataclass(frozen=True)
class Side:
    """One of the two: its config, and the pool that launches it (two builds are two commands, hence two pools)."""

    label: str
    config: ServerConfig
    engine: Engine
    pool: ServerPool


@dataclass
class Duel:
    """An A/B as it went. ``trial`` is where it ended, None when a side never measured; ``failure`` says why it broke
    off: which side, and what happened to it."""

    a: list[tuple[float, ...]] = field(default_factory=list)
    b: list[tuple[float, ...]] = field(default_factory=list)
    trial: Trial | None = None
    failure: str | None = None


def fight(
    a: Side,
    b: Side,
    workload: Workload,
    metric: Metric,
    *,
    budget: int,
    min_effect: float = 0.01,
    say: Callable[[str], None],
) -> Duel:
    """Launch and measure until ``stats.trial`` is sure or each side was launched ``budget`` times.

    A side that does not start, dies, or measures nothing valid ends the trial with ``failure``; nothing is launched
    again to get past it. Both pools are closed at the end, whatever happens.
    """
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
            )
            duel.trial = now.trial
            if now.side is None:
                return duel
            side, launches = sides[now.side]
            values = _one_launch(side, workload, metric)
            launches.append(values)
            say(f"{side.label}: launch {len(launches)} of at most {budget}: {number(location(values))} {metric.unit}")
    except (LaunchError, MeasurementError) as error:
        duel.failure = str(error)
        return duel
    finally:
        a.pool.close()
        b.pool.close()


def _one_launch(side: Side, workload: Workload, metric: Metric) -> tuple[float, ...]:
    """Start, measure, stop. Raises ``LaunchError`` or ``MeasurementError`` that names the side."""
    try:
        server = side.pool.get(side.config)
        run = _measure(side, server, workload)
        values: tuple[float, ...] = getattr(run, metric.name).values
    except AttributeError as error:
        raise MeasurementError(f"{side.label}: {error}") from error
    except (LaunchError, MeasurementError) as error:
        raise type(error)(f"{side.label}: {error}") from error
    finally:
        side.pool.release(side.config)
    return values


def _measure(side: Side, server: Server, workload: Workload) -> object:
    launch = server.launch
    connection = Connection(
        endpoint=launch.endpoint,
        model=launch.model,
        engine=side.engine,
        config=launch.config,
        launch_id=launch.id,
        counters=server.counters,
        check=server.check,
        log=server.log,
        gpus=launch.gpus,
        pids=launch.pids,
    )
    run = load if workload.concurrency > 1 else stream
    with measuring(side.pool.settings.state_dir):
        return run(connection, workload, seed=f"ab:{launch.id}")
