"""The plots of gaps, sweeps and load curves in the HTML report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from pytest_llmperf.records.gaps_and_sweeps import Curve, CurvePoint, Gap, Sweep
from pytest_llmperf.records.text import clean, number, ratio, ratios
from pytest_llmperf.report import grids, summary
from pytest_llmperf.report.grids import effect_tone, effect_words, ranked
from pytest_llmperf.report.layout import shorten
from pytest_llmperf.report.plots import END, LABEL, LANE, MIDDLE, ROW, lane
from pytest_llmperf.report.svg import Drawing, Scale, drawable


@dataclass(frozen=True)
class _Bar:
    """A row of a forest plot: a ratio with its interval, or what stands in their place."""

    label: str
    value: float | None
    span: tuple[float, float] | None
    said: str
    tone: str


def gaps(items: Sequence[Gap]) -> Markup:
    """Ratios of engines to their reference."""
    names = summary.short_names(g.test for g in items)
    pairs = {(g.engine, g.reference) for g in items}

    def label(g: Gap) -> str:
        """Which metric is never shortened; which engines only where there are several pairs of them."""
        which = f" {clean(g.metric)}" + (f", {clean(g.engine)} / {clean(g.reference)}" if len(pairs) > 1 else "")
        return shorten(names[g.test], LABEL - len(which), "…") + which

    bars = [
        _Bar(label(g), g.ratio, g.interval, f"{ratio(g.ratio)} {ratios(g.interval)}", grids.gap_tone(g)) for g in items
    ]
    return _forest(bars, "Ratios of engines to their reference")


def sweep(item: Sweep) -> Markup:
    """Effects of a sweep's knobs as ratios to the base, best first."""
    bars = []
    for e in ranked(item):
        words = (
            f"{ratio(e.ratio)} {ratios(e.interval)}" if e.ratio is not None else effect_words(e, item.higher_is_better)
        )
        tone = effect_tone(e, item.higher_is_better)
        bars.append(_Bar(f"{clean(e.knob)}={clean(e.setting)}", e.ratio, e.interval, words, tone))
    return _forest(bars, f"Effects of sweep {item.name}")


def _forest(bars: Sequence[_Bar], label: str) -> Markup:
    if not any(drawable(b.value) for b in bars):
        return Markup("")
    scale = Scale.around([1.0, *(b.value for b in bars), *(v for b in bars for v in b.span or ())])
    bottom = ROW * len(bars)
    d = Drawing(bottom + 20, label)
    d.axis(scale, bottom)
    for i, b in enumerate(bars):
        top = ROW * i
        d.text("label", 0, top + 13, shorten(b.label, LABEL, "…"))
        if not drawable(b.value):
            d.text("label faint", 0, top + 30, shorten(b.said, LABEL + 16, "…"))
            continue
        d.text("label number", 100, top + 13, ratio(b.value), "end")
        lane(d, scale, top)
        d.line("baseline", scale(1.0), top + LANE, scale(1.0), top + END, "no difference")
        tone = f"tone-{b.tone or 'none'}"
        if b.span is not None:
            left, right = (scale.within(v) for v in b.span)
            d.line(f"span {tone}", left, top + MIDDLE, right, top + MIDDLE, b.said)
        d.dot(f"mark {tone}", scale(b.value), top + MIDDLE, 4.5, b.said)
    return d.markup()


#: Colours that the style sheet has for the series of one plot.
SERIES = 4


def curves(items: Sequence[Curve]) -> Markup:
    """Output tok/s of one test's engines against concurrency (log scale), each one's knee and limit marked."""
    drawn = [
        (item, points)
        for item in items
        if (points := sorted((p for p in item.points if _drawn(p)), key=lambda p: p.concurrency))
    ]
    every = [p for _, points in drawn for p in points]
    if not every:
        return Markup("")
    top, bottom = 8.0 + 18 * len(drawn), 200.0 + 18 * len(drawn)
    least, most = (f(p.concurrency for p in every) for f in (min, max))
    across = Scale(least * 0.9, most * 1.1, 8, 97, log=True)
    scale = Scale(0, max(p.output_tok_s for p in every) * 1.05, bottom, top)
    d = Drawing(bottom + 22, f"Throughput of {items[0].test} against concurrency")
    for value, label in scale.ticks(4):
        d.line("grid", 0, scale(value), 100, scale(value))
        d.text("tick", 0, scale(value) - 3, label)
    for i, (item, points) in enumerate(drawn):
        css = f"series-{i % SERIES}"
        d.dot(f"mark {css}", 1.5, 8 + 18 * i, 4)
        d.text("label", 4, 12 + 18 * i, f"{item.engine}: {_peak(item)}")
        for at, line, said in ((item.max_running_requests, "limit", "max running"), (item.knee, "change", "knee")):
            if at is not None and least <= at <= most:
                d.line(f"{line} {css}", across(at), top - 4, across(at), bottom, f"{item.engine}: {said} {at}")
        for a, b in pairwise(points):
            x1, x2 = across(a.concurrency), across(b.concurrency)
            d.line(f"trend {css}", x1, scale(a.output_tok_s), x2, scale(b.output_tok_s))
        for p in points:
            title = f"{item.engine}, {p.concurrency} streams: {number(p.output_tok_s)} tok/s"
            d.dot(f"mark {css}", across(p.concurrency), scale(p.output_tok_s), 4, title)
    for streams in sorted({p.concurrency for p in every}):
        d.text("tick", across(streams), bottom + 14, str(streams), "middle")
    return d.markup()


def _drawn(point: CurvePoint) -> bool:
    return drawable(point.output_tok_s) and point.output_tok_s > 0


def _peak(item: Curve) -> str:
    peak = f"peak {number(max(p.output_tok_s for p in item.points))} tok/s"
    return f"{peak}, knee at {item.knee}" if item.knee is not None else peak
