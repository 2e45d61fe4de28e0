"""The plots of a result in the HTML report, one function each: a value in, its picture out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from markupsafe import Markup

from pytest_llmperf.records.histories import History
from pytest_llmperf.records.results import Distribution, Result
from pytest_llmperf.records.text import clean, interval, number, percent
from pytest_llmperf.report import grids, summary
from pytest_llmperf.report.layout import shorten
from pytest_llmperf.report.svg import DIAMOND, LEFT, RIGHT, Drawing, Scale, drawable

#: A row of a plot: its label above a lane (top and bottom within the row) that holds what is drawn.
ROW, LANE, END = 42, 19, 37
MIDDLE = (LANE + END) / 2
LABEL = 40  # characters of a row's label that a phone has room for


def meter(result: Result) -> Markup:
    """Where the value lies within its band: small, for a table's cell. Empty without both."""
    if result.band is None or not drawable(result.value):
        return Markup("")
    low, high = result.band
    if not (drawable(low) and drawable(high) and low < high):
        return Markup("")
    d = Drawing(18, f"{number(result.value)} in the band {interval(result.band)}")
    scale = Scale(low, high, 25, 75)
    d.line("rail", 2, 9, 98, 9)
    d.rect("band", 25, 3, 50, 12)
    if result.baseline is not None and low < result.baseline.value < high:
        d.line("baseline", scale(result.baseline.value), 2, scale(result.baseline.value), 16)
    x, tone = scale(result.value), f"tone-{summary.state(result)}"
    if x < 3:
        d.shape(f"mark {tone}", 4, 9, LEFT)
    elif x > 97:
        d.shape(f"mark {tone}", 96, 9, RIGHT)
    else:
        d.dot(f"mark {tone}", x, 9, 4.5)
    return d.markup()


def repetitions(result: Result) -> Markup:
    """Every repetition of every launch, with the band, the baseline and the target. Empty without a number."""
    values = [v for x in result.launches for v in x.values if drawable(v)]
    if not values:
        return Markup("")
    marks = [result.baseline.value if result.baseline else None, result.target, *(result.band or ())]
    scale = Scale.around([*values, *marks])
    bottom = ROW * len(result.launches)
    d = Drawing(bottom + 20, f"Repetitions of {result.nodeid} by launch, {result.unit}")
    d.axis(scale, bottom)
    for i, launch in enumerate(result.launches):
        top = ROW * i
        d.text("label", 0, top + 13, f"{launch.role} {shorten(clean(launch.id), LABEL - 8, '…')}")
        d.text("label number", 100, top + 13, number(launch.value), "end")
        lane(d, scale, top)
        _limits(d, result, scale, top)
        for j, value in enumerate(launch.values, 1):
            if drawable(value):
                d.dot("dot", scale(value), top + MIDDLE, 3.5, f"repetition {j}: {number(value)} {result.unit}")
        if drawable(launch.value):
            x = scale(launch.value)
            d.line(
                f"value tone-{summary.state(result)}", x, top + LANE, x, top + END, f"launch: {number(launch.value)}"
            )
    return d.markup()


def repetitions_legend(result: Result) -> str:
    """What ``repetitions`` drew, in words."""
    said = [f"{result.unit}. Dots: repetitions; thick bar: the launch's value"]
    if result.band is not None:
        said.append("shaded: band, its red edge is the limit that fails")
    if result.baseline is not None:
        said.append("line: baseline")
    if result.target is not None:
        said.append("dashed: target")
    return "; ".join(said) + "."


def lane(d: Drawing, scale: Scale, top: float) -> None:
    d.line("grid", 0, top + END, 100, top + END)
    for value, _ in scale.ticks():
        d.line("grid", scale(value), top + LANE, scale(value), top + END)


def _limits(d: Drawing, result: Result, scale: Scale, top: float) -> None:
    """The band with the limit that fails, the baseline's value and the target, in one row's lane."""
    y1, y2 = top + LANE, top + END
    if result.band is not None:
        low, high = (scale.within(v) for v in result.band)
        d.rect("band", low, y1, high - low, y2 - y1, f"band {interval(result.band)}")
        fails = low if result.higher_is_better else high
        d.line("limit", fails, y1, fails, y2, "beyond this line: worse than the band")
    if result.baseline is not None and drawable(result.baseline.value):
        x = scale(result.baseline.value)
        d.line("baseline", x, y1, x, y2, f"baseline {number(result.baseline.value)}")
    if drawable(result.target):
        x = scale(result.target)
        d.line("target", x, y1, x, y2, f"target {number(result.target)}")


def history(item: History, result: Result | None = None) -> Markup:
    """Accepted launches in their order, with epochs, change points, the current band and, last, this run's value; the
    band is then the one that this run was held to."""
    now = result.value if result is not None else None
    if result is not None and result.band is not None and result.baseline is not None:
        item = replace(item, band=result.band, center=result.baseline.value)
    count = len(item.points) + (now is not None)
    if not count:
        return Markup("")
    top, bottom = 28.0, 204.0
    spread = [v for p in item.points for v in p.spread or ()]
    scale = Scale.around([*(p.value for p in item.points), *spread, *(item.band or ()), now], start=bottom, end=top)
    across = Scale(0, max(count - 1, 1), 8, 94)
    d = Drawing(bottom + 22, f"History of {item.test}, {item.unit}")
    for value, label in scale.ticks():
        d.line("grid", 0, scale(value), 100, scale(value))
        d.text("tick", 0, scale(value) - 3, label)
    _epoch(d, item, scale, across)
    for change in item.changes:
        if 0 < change.index < len(item.points):
            x = across(change.index - 0.5)
            d.line("change", x, top - 24, x, bottom, change.reason or "change point")
            said = f"{percent(change.change, signed=True)} {shorten(clean(change.reason), 24, '…')}"
            d.text("label", x - 0.8 if x > 50 else x + 0.8, top - 16, said, "end" if x > 50 else "start")
    _launches(d, item, scale, across)
    if result is not None and drawable(now):
        d.shape(
            f"mark tone-{summary.state(result)}", across(count - 1), scale(now), DIAMOND, f"this run: {number(now)}"
        )
    if item.points:
        d.text("tick", 8, bottom + 16, item.points[0].recorded[:10])
        d.text("tick", 100, bottom + 16, "this run" if now is not None else item.points[-1].recorded[:10], "end")
    return d.markup()


def _epoch(d: Drawing, item: History, scale: Scale, across: Scale) -> None:
    """The band and the level of the current epoch, from its first launch on."""
    if item.band is None:
        return
    low, high = item.band
    first = next((i for i, p in enumerate(item.points) if p.epoch == item.points[-1].epoch), 0)
    left = max(across(first) - 3, 0)
    top, bottom = scale.within(high), scale.within(low)
    d.rect("band", left, top, 100 - left, bottom - top, f"band {interval(item.band)}")
    if drawable(item.center):
        d.line("baseline", left, scale(item.center), 100, scale(item.center), f"baseline {number(item.center)}")


def _launches(d: Drawing, item: History, scale: Scale, across: Scale) -> None:
    points = [(i, p) for i, p in enumerate(item.points) if drawable(p.value)]
    for (i, a), (j, b) in pairwise(points):
        if a.epoch == b.epoch:
            d.line("trend", across(i), scale(a.value), across(j), scale(b.value))
    for i, p in points:
        if p.spread is not None and all(map(drawable, p.spread)):
            d.line("spread", across(i), scale(p.spread[0]), across(i), scale(p.spread[1]))
        said = (p.recorded, f"{number(p.value)} {item.unit}", p.version, p.host)
        d.dot("dot", across(i), scale(p.value), 4, ", ".join(filter(None, said)))


def history_legend(item: History, result: Result | None = None) -> str:
    """What ``history`` drew, in words."""
    said = [f"{item.unit}. Dots: accepted launches in order, each with its lowest to highest repetition"]
    if result is not None and result.value is not None:
        said.append("diamond: this run")
    if item.band is not None:
        said.append("shaded: band " + ("that it was held to" if result and result.band else "of the current epoch"))
    if item.changes:
        said.append("dashed: change points")
    return "; ".join(said) + "."


def histogram(item: Distribution) -> Markup:
    """How often each wait came, with its median and 99th percentile."""
    if not item.counts or not all(map(drawable, item.edges)) or item.edges[0] >= item.edges[-1]:
        return Markup("")
    top, bottom = 18.0, 108.0
    d = Drawing(bottom + 20, f"Histogram of {item.metric}")
    across = Scale(item.edges[0], item.edges[-1], 1, 99)
    up = Scale(0, max(1, *item.counts), bottom, top)
    for (left, right), count in zip(pairwise(item.edges), item.counts, strict=False):
        if count:
            said = f"{number(left)} to {number(right)} ms: {count} of {item.count}"
            d.rect("bar", across(left), up(count), across(right) - across(left), bottom - up(count), said)
    d.line("grid", 0, bottom, 100, bottom)
    for name in ("p50", "p99"):
        value = item.percentiles.get(name)
        if drawable(value) and item.edges[0] <= value <= item.edges[-1]:
            d.line("change", across(value), top - 2, across(value), bottom, f"{name}: {number(value)} ms")
            d.text("label", across(value), top - 5, name, "end" if across(value) > 50 else "start")
    d.axis(across, bottom)
    return d.markup()


def histogram_legend(item: Distribution) -> str:
    """What ``histogram`` drew, in words."""
    beyond = item.count - sum(item.counts)
    more = f"; {beyond} more further right, up to {number(item.percentiles.get('p100'))} ms" if beyond > 0 else ""
    return f"{grids.WAITS.get(item.metric, item.metric)}, in ms, over the launches that decided{more}."
