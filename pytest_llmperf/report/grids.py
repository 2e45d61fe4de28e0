"""Tables as values: terminal, Markdown and HTML draw the same cells, so that they cannot disagree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_llmperf.records.gaps_and_sweeps import Curve, Effect, Gap, Sweep
from pytest_llmperf.records.histories import History
from pytest_llmperf.records.results import Result
from pytest_llmperf.records.text import MISSING, clean, interval, number, percent, ratio, ratios
from pytest_llmperf.report import summary
from pytest_llmperf.report.last_run import LastRun


@dataclass(frozen=True)
class Column:
    """``right``: numbers, aligned right. ``drop``: given up first where it is highest; 0 stays whatever the width.
    ``toned``: its cells take the colour of the row's tone."""

    title: str
    right: bool = False
    drop: int = 0
    toned: bool = False


@dataclass(frozen=True)
class Row:
    """Cleaned cells, one a column. ``tone`` gives the row its mark and colour: a state, or ``better``, ``worse``
    and ``failed`` where nothing was gated."""

    cells: tuple[str, ...]
    tone: str = ""


@dataclass(frozen=True)
class Grid:
    """``columns[0]`` names the row and is shown whole, on a line of its own where it must be."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


_RESULT: Sequence[tuple[Column, Callable[[Result], str]]] = (
    (Column("metric", drop=9), lambda r: clean(r.metric)),
    (Column("value", right=True), lambda r: number(r.value)),
    (Column("unit", drop=5), lambda r: clean(r.unit)),
    (Column("band", drop=2), lambda r: interval(r.band)),
    (Column("baseline", right=True, drop=8), lambda r: number(r.baseline.value if r.baseline else None)),
    (Column("k", right=True, drop=7), summary.behind),
    (Column("target", right=True, drop=6), lambda r: number(r.target)),
    (Column("change", right=True, drop=1, toned=True), lambda r: percent(r.change, signed=True)),
    (Column("verdict", toned=True), summary.word),
    (Column("MDE", right=True, drop=4), summary.detectable),
)
#: Shown whatever is in them.
_ALWAYS = frozenset({"value", "verdict"})


def results(items: Sequence[Result], names: Mapping[str, str], last: LastRun | None = None) -> Grid:
    """One row a result; a column only where it says something of one. The metric's stays where it alone tells two rows
    of a test apart, the target's where one was missed. ``names`` shortens node ids."""
    described = [*_RESULT, *([(Column("since last run", right=True), last.change)] if last else [])]
    kept = {
        "metric": len({(r.nodeid, r.server) for r in items}) < len(items),
        "target": any(r.verdict == "below_target" for r in items),
    }
    chosen = [
        (replace(c, drop=0) if kept.get(c.title) else c, cells)
        for c, f in described
        if set(cells := [f(r) for r in items]) != {MISSING} or c.title in _ALWAYS
    ]
    return Grid(
        (Column("test"), *(c for c, _ in chosen)),
        tuple(
            Row((names[r.nodeid], *(cells[i] for _, cells in chosen)), summary.state(r)) for i, r in enumerate(items)
        ),
    )


def differences(result: Result) -> Grid:
    """What differs between the baseline and this run."""
    return Grid(
        (Column("what differs"), Column("baseline"), Column("now")),
        tuple(Row((clean(d.name), clean(d.baseline), clean(d.now))) for d in result.differences),
    )


def percentiles(result: Result) -> Grid:
    """Waits: TTFT by request, ITL by token, in ms."""
    names = list(dict.fromkeys(name for d in result.latencies for name in d.percentiles))
    titles = {"p0": "least", "p100": "most"}
    return Grid(
        (Column("ms"), *(Column(titles.get(n, n), right=True) for n in names), Column("of", right=True, drop=2)),
        tuple(
            Row((WAITS.get(d.metric, clean(d.metric)), *(number(d.percentiles.get(n)) for n in names), str(d.count)))
            for d in result.latencies
        ),
    )


#: What the waits of a distribution are called.
WAITS: Mapping[str, str] = {"ttft_ms": "TTFT, by request", "itl_ms": "ITL, by token"}


def launches(result: Result) -> Grid:
    """Each launch's value and repetitions."""
    return Grid(
        (Column("launch"), Column("role"), Column("value", right=True), Column("repetitions")),
        tuple(
            Row((clean(x.id), clean(x.role), number(x.value), " ".join(number(v) for v in x.values)))
            for x in result.launches
        ),
    )


#: What stands over ``gaps``.
GAPS = "gap of engine over reference"


def gaps(items: Sequence[Gap]) -> Grid:
    """Engine against engine, or the two sides of an A/B."""
    names = summary.short_names(g.test for g in items)
    columns = (
        Column("test"), Column("metric"), Column("engine"), Column("over"), Column("ratio", right=True, toned=True),
        Column("interval", drop=1), Column("values", right=True, drop=2), Column("launches", drop=3),
    )  # fmt: skip
    return Grid(columns, tuple(Row(_gap_cells(g, names[g.test]), gap_tone(g)) for g in items))


def _gap_cells(g: Gap, name: str) -> tuple[str, ...]:
    return (
        name, clean(g.metric), clean(g.engine), clean(g.reference), ratio(g.ratio), ratios(g.interval),
        f"{number(g.value)} vs {number(g.reference_value)}", f"{g.launches[0]} vs {g.launches[1]}",
    )  # fmt: skip


def gap_tone(gap: Gap) -> str:
    """``better`` or ``worse`` where the whole interval of the ratio lies on one side of 1, else nothing."""
    if gap.interval is None or gap.interval[0] <= 1 <= gap.interval[1]:
        return ""
    return "better" if (gap.interval[0] > 1) == gap.higher_is_better else "worse"


def ranked(sweep: Sweep) -> list[Effect]:
    """Best first, whatever the metric's direction; configs without a value last."""
    sign = -1 if sweep.higher_is_better else 1
    return sorted(sweep.effects, key=lambda e: (e.value is None, e.ratio is None, sign * (e.ratio or 0)))


def effect_tone(effect: Effect, higher_is_better: bool) -> str:
    """``better``, ``worse``, ``failed`` for a config without a value, nothing where no effect is credible."""
    if effect.failure is not None:
        return "failed"
    if not effect.credible or effect.ratio is None:
        return ""
    return "better" if (effect.ratio > 1) == higher_is_better else "worse"


def effect_words(effect: Effect, higher_is_better: bool) -> str:
    """The effect in a few words; ``sweep_notes`` has the rest."""
    if effect.failure is not None:
        return clean(effect.failure).partition(":")[0] or "no value"
    if effect.ratio is None:
        return "no base to compare with"
    if not effect.credible and effect.interval and not effect.interval[0] <= 1 <= effect.interval[1]:
        return "inconclusive"
    return effect_tone(effect, higher_is_better) or "no credible effect"


def sweep_notes(item: Sweep) -> list[str]:
    """What stands under ``sweep``: the base's settings, causes, and what is to be known about the numbers, each thing
    once with the settings that it holds for."""
    noted: dict[str, list[str]] = {}
    for e in ranked(item):
        for said in (e.failure, e.note):
            if said:
                noted.setdefault(clean(said), []).append(_setting(e))
    base = ", ".join(f"{clean(k)}={clean(v)}" for k, v in item.base.items()) or "as declared"
    of_base = [f"base: {base}", *([f"base: {clean(item.note)}"] if item.note else [])]
    if len(item.base_launch_values) > 1:  # a wide interval has its cause here
        of_base.append(f"base: launches at {', '.join(map(number, item.base_launch_values))} {clean(item.unit)}")
    return [*of_base, *(f"{', '.join(settings)}: {said}" for said, settings in noted.items())]


def _setting(effect: Effect) -> str:
    return f"{clean(effect.knob)}={clean(effect.setting)}"


def sweep(item: Sweep) -> Grid:
    """The base first, then each knob's effect, best first."""
    columns = (
        Column("setting"), Column("value", right=True, drop=2), Column("ratio", right=True, toned=True),
        Column("interval", drop=1), Column("launches", right=True, drop=3), Column("effect", toned=True),
    )  # fmt: skip
    base = Row(("base", number(item.base_value), ratio(1.0), "", str(item.base_launches), ""))
    rows = (
        Row(
            (_setting(e), number(e.value), ratio(e.ratio), ratios(e.interval),
             str(e.launches), effect_words(e, item.higher_is_better)),
            effect_tone(e, item.higher_is_better),
        )
        for e in ranked(item)
    )  # fmt: skip
    return Grid(columns, (base, *rows))


def curve(item: Curve) -> Grid:
    """Throughput at each concurrency; the knee and the server's limit are said beside it."""
    columns = (
        Column("streams", right=True), Column("tok/s", right=True), Column("per stream", right=True),
        Column("TTFT ms", right=True, drop=2), Column(""),
    )  # fmt: skip
    return Grid(
        columns,
        tuple(
            Row((str(p.concurrency), number(p.output_tok_s), number(p.stream_tok_s), number(p.ttft_ms),
                 "knee" if p.concurrency == item.knee else ""))
            for p in item.points
        ),
    )  # fmt: skip


def history(item: History) -> Grid:
    """Stored launches, oldest first, with the range of their repetitions; the note says where an epoch began and where
    the level moved."""
    moved = {c.index: f"{percent(c.change, signed=True)} {clean(c.reason)}".strip() for c in item.changes}

    def note(i: int) -> str:
        return moved.get(i) or ("new epoch" if i and item.points[i].epoch != item.points[i - 1].epoch else "")

    columns = (
        (Column("recorded"), [clean(p.recorded[:16].replace("T", " ")) for p in item.points]),
        (Column("value", right=True), [number(p.value) for p in item.points]),
        (Column("range", drop=1), [interval(p.spread) for p in item.points]),
        (Column("version", drop=3), [clean(p.version) for p in item.points]),
        (Column("host", drop=4), [clean(p.host) for p in item.points]),
        (Column("note", drop=2), [note(i) for i in range(len(item.points))]),
    )
    said = [(column, cells) for column, cells in columns if any(cells)]
    return Grid(tuple(c for c, _ in said), tuple(map(Row, zip(*(cells for _, cells in said), strict=True))))


#: Metrics that a sweep is read by; the others follow from them or tell of the tail.
_LEADING = frozenset({"decode_tok_s", "output_tok_s", "ttft_ms", "acceptance_length", "steps_s"})


def leading(sweeps: Sequence[Sweep]) -> list[Sweep]:
    """The sweeps of leading metrics, and those that are alone in telling of their test."""
    told = {(s.test, s.engine, s.name) for s in sweeps if s.metric in _LEADING}
    return [s for s in sweeps if s.metric in _LEADING or (s.test, s.engine, s.name) not in told]


def sweep_title(item: Sweep) -> str:
    """``sweep of nccl on sglang, test_nccl: decode_tok_s, base 63.61 tok/s``."""
    value = f", base {summary.with_unit(item.base_value, item.unit)}" if item.base_value is not None else ""
    test = f", {summary.short_name(item.test)}" if item.test else ""
    return f"sweep of {clean(item.name)} on {clean(item.engine)}{test}: {clean(item.metric)}{value}"


def by_test(items: Sequence[Curve]) -> list[list[Curve]]:
    """The curves of each test, which belong into one picture."""
    found: dict[str, list[Curve]] = {}
    for item in items:
        found.setdefault(item.test, []).append(item)
    return list(found.values())


def curve_title(item: Curve) -> str:
    """``load on sglang, test_peak: peak 2370 tok/s, knee at 48 streams, max running requests 48``."""
    said = []
    if item.points:
        said.append(f"peak {number(max(p.output_tok_s for p in item.points))} tok/s")
    if item.knee is not None:
        said.append(f"knee at {item.knee} streams")
    if item.max_running_requests is not None:
        said.append(f"max running requests {item.max_running_requests}")
    return f"load on {clean(item.engine)}, {summary.short_name(item.test)}: {', '.join(said)}"
