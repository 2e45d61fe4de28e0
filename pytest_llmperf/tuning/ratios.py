"""What the launches of a sweep, an A/B or a load say, as the values that every report draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from pytest_llmperf.measure.metrics import Metric
from pytest_llmperf.records.gaps_and_sweeps import Curve, CurvePoint, Effect, Gap, Sweep
from pytest_llmperf.stats import Launch, Prior, Ratio, effects, location, ratio_interval
from pytest_llmperf.tuning.knee import find_knee
from pytest_llmperf.tuning.plan import BASE, SweepPlan, Variation

_LEVEL = 0.95
_NOTHING: Mapping[str, str] = MappingProxyType({})


def sweep(
    plan: SweepPlan,
    launches: Mapping[str, Sequence[Launch]],
    failures: Mapping[str, str],
    metric: Metric,
    *,
    engine: str,
    test: str = "",
    prior: Prior | None = None,
    notes: Mapping[str, str] = _NOTHING,
    disturbed: Mapping[str, str] = _NOTHING,
) -> Sweep:
    """A sweep's effects on one metric, best first, configs without a value last.

    ``launches``, ``failures`` (why a config has no value), ``notes`` and ``disturbed`` (which guards tripped) are by
    variation name, ``base`` for the base. Intervals hold for all variations at once. No effect is credible that rests
    on a disturbed launch. Raises ``ValueError`` for launches with a value that is not positive.
    """
    base = launches.get(BASE, ())
    seen = {v.name: launches[v.name] for v in plan.variations if launches.get(v.name)}
    judged = {}
    if base and seen:
        found = effects(base, seen, higher_is_better=metric.higher_is_better, level=_LEVEL, prior=prior)
        judged = {e.name: e for e in found}
    rows = []
    for variation in plan.variations:
        knob, setting = _knob(variation)
        note = _joined(disturbed.get(variation.name), notes.get(variation.name))
        values = seen.get(variation.name)
        effect = judged.get(variation.name)
        if not values:
            cause = failures.get(variation.name) or failures.get(BASE) or "not launched"
            rows.append(Effect(knob, setting, failure=cause, note=note))
            continue
        at = tuple(_locations(values))
        row = Effect(knob, setting, value=_mean(values), launches=len(values), launch_values=at, note=note)
        if effect is None:
            why = f"no base to compare with: {failures.get(BASE, 'not launched')}"
            rows.append(replace(row, note=_joined(why, note)))
        else:
            credible = effect.better is not None and not {BASE, variation.name} & disturbed.keys()
            rows.append(replace(row, ratio=effect.ratio, interval=(effect.low, effect.high), credible=credible))
    sign = -1 if metric.higher_is_better else 1
    rows.sort(key=lambda e: (e.value is None, e.ratio is None, sign * (e.ratio or 0.0)))
    return Sweep(
        name=plan.name,
        engine=engine,
        metric=metric.name,
        unit=metric.unit,
        higher_is_better=metric.higher_is_better,
        base=plan.base_settings,
        base_value=_mean(base) if base else None,
        effects=tuple(rows),
        base_launches=len(base),
        base_launch_values=tuple(_locations(base)),
        confidence=_LEVEL,
        test=test,
        note=_joined(disturbed.get(BASE), notes.get(BASE)),
    )


def nccl_note(variation: Variation, *, gpus: int | None, custom_all_reduce: bool | None) -> str | None:
    """Why moving an NCCL knob can hardly matter on a server that resolved to this; None where it can, or where the
    server did not tell."""
    if not any(knob.partition(".")[0] == "nccl" for knob, _ in variation.settings):
        return None
    if gpus == 1:
        return "one GPU: NCCL carries nothing"
    if custom_all_reduce:
        return "custom all-reduce is on: NCCL does not carry decode, so this knob can hardly matter"
    return None


def gap(
    test: str,
    metric: Metric,
    engine: str,
    launches: Sequence[Launch],
    reference: str,
    reference_launches: Sequence[Launch],
    *,
    prior: Prior | None = None,
    reference_prior: Prior | None = None,
    note: str | None = None,
) -> Gap:
    """``engine`` over ``reference`` on one test, each with its own launch spread (engines differ in it tenfold)."""
    seen = ratio_interval(reference_launches, launches, level=_LEVEL, prior=reference_prior, prior_b=prior)
    return Gap(
        test=test,
        metric=metric.name,
        unit=metric.unit,
        higher_is_better=metric.higher_is_better,
        engine=engine,
        reference=reference,
        value=_mean(launches),
        reference_value=_mean(reference_launches),
        ratio=seen.ratio,
        interval=(seen.low, seen.high),
        launches=(len(launches), len(reference_launches)),
        confidence=_LEVEL,
        note=note,
    )


def versus(
    test: str, metric: Metric, engine: str, a: Sequence[Launch], b: Sequence[Launch], seen: Ratio, note: str
) -> Gap:
    """An A/B as ``stats.trial`` judged it, b over a: the launches it looked at, and ``note`` on how it ended."""
    pairs = seen.launches[0]
    return Gap(
        test=test,
        metric=metric.name,
        unit=metric.unit,
        higher_is_better=metric.higher_is_better,
        engine=f"{engine} B",
        reference=f"{engine} A",
        value=_mean(b[:pairs]),
        reference_value=_mean(a[:pairs]),
        ratio=seen.ratio,
        interval=(seen.low, seen.high),
        launches=seen.launches,
        confidence=seen.level,
        note=note,
    )


def curve(test: str, engine: str, points: Sequence[CurvePoint], max_running_requests: int | None = None) -> Curve:
    """A load curve with its knee; several points per concurrency (launches) are shown by their location."""
    by_streams: dict[int, list[CurvePoint]] = {}
    for point in sorted(points, key=lambda p: p.concurrency):
        by_streams.setdefault(point.concurrency, []).append(point)
    found = find_knee([(p.concurrency, p.output_tok_s) for p in points])
    return Curve(
        test,
        engine,
        tuple(_merged(group) for group in by_streams.values()),
        found.concurrency if found else None,
        max_running_requests,
    )


def _merged(group: Sequence[CurvePoint]) -> CurvePoint:
    streams = [p.stream_tok_s for p in group if p.stream_tok_s is not None]
    ttft = [p.ttft_ms for p in group if p.ttft_ms is not None]
    return CurvePoint(
        group[0].concurrency,
        location([p.output_tok_s for p in group]),
        location(streams) if streams else None,
        location(ttft) if ttft else None,
    )


def _joined(*said: str | None) -> str | None:
    return "; ".join(filter(None, said)) or None


def _knob(variation: Variation) -> tuple[str, str]:
    """Knob and setting; a grid point's settings stand together."""
    knobs, settings = zip(*variation.settings, strict=True)
    return " x ".join(knobs), " x ".join(settings)


def _mean(launches: Sequence[Launch]) -> float:
    """The geometric mean over launches, as the gate has it: what a ratio of two sides is made of."""
    return math.exp(sum(map(math.log, _locations(launches))) / len(launches))


def _locations(launches: Sequence[Launch]) -> list[float]:
    return [location([x] if isinstance(x, (int, float)) else list(x)) for x in launches]
