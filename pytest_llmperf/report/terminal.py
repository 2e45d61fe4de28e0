"""The terminal's report: one table grouped by server, then what needs explaining, then one line that sums up.

Every line begins with a mark, a gutter or words of ours, never with a stranger's text: what runs in GitHub Actions
could otherwise pass workflow commands.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from rich.console import Console
from rich.text import Text

from pytest_llmperf.records.results import FAILING, Result, ServerRecord, SessionRecord
from pytest_llmperf.records.text import clean, number, plural, seconds, settings
from pytest_llmperf.report import grids, layout, summary
from pytest_llmperf.report.grids import Grid
from pytest_llmperf.report.layout import ASCII, STYLES, UNICODE, Glyphs
from pytest_llmperf.report.live import LiveLine

__all__ = ["LiveLine", "render"]

_MESSAGE_STYLES = {
    "error": "bold red",
    "refused": "bold red",
    "unused": "yellow",
    "drift": "yellow",
    "warning": "yellow",
}


def render(
    session: SessionRecord, *, width: int = 80, color: bool = False, verbosity: int = 0, unicode: bool = True,
    told: Collection[str] = (),
) -> str:  # fmt: skip
    """The report, ready to print after pytest's own results; lines end with a newline and fit ``width`` cells.

    ``verbosity`` below 0 gives problems only and the summary line; above 0 adds repetitions, full configs and what
    is noted on passed results. ``told`` are the node ids whose failures pytest has printed in full: they have their row
    and no more. Colours are as asked for: ``NO_COLOR`` is the caller's to read.
    """
    page = _Page(max(width, 20), UNICODE if unicode else ASCII)
    body = _brief(session, page) if verbosity < 0 else _full(session, page, verbosity > 0, told)
    return _printed(body, page.width, color)


class _Page:
    """Width and glyphs, and the two shapes of line that everything but the table has."""

    def __init__(self, width: int, glyphs: Glyphs) -> None:
        self.width, self.glyphs = width, glyphs
        self._wrapper = Console(file=io.StringIO(), width=width, _environ={})

    def text(self, text: str, style: str = "") -> Text:
        return Text(clean(text, ascii_only=self.glyphs.ascii_only), style)

    def gutter(self, text: Text | str, style: str = "", *, hang: int = 0, mark: str = "") -> Iterator[Text]:
        """Wrapped behind a gutter, in whose place the first line has the ``mark``; later lines are indented by
        ``hang``."""
        whole = self.text(text, style) if isinstance(text, str) else text
        room = max(self.width - 2 - hang, 8)
        for i, line in enumerate(whole.wrap(self._wrapper, room, overflow="fold")):
            line.rstrip()
            first = (f"{mark} ", style) if mark and not i else (f"{self.glyphs.gutter} ", "dim")
            yield Text.assemble(first, " " * (hang if i else 0), line)

    def own(self, text: str, style: str) -> Iterator[Text]:
        """Wrapped words of ours alone, which need no gutter; continued under an indent."""
        for i, line in enumerate(self.text(text, style).wrap(self._wrapper, self.width - 2)):
            line.rstrip()
            yield Text.assemble("  " if i else "", line)

    def bullet(self, text: str, style: str = "") -> Iterator[Text]:
        return self.gutter(f"{self.glyphs.bullet} {text}", style, hang=2)

    def table(self, grid: Grid) -> Iterator[Text]:
        """A small table behind the gutter."""
        for line in chain(*layout.rows(grid, self.width - 2, self.glyphs)):
            yield Text.assemble((f"{self.glyphs.gutter} ", "dim"), line)

    def rows(self, grid: Grid) -> list[list[Text]]:
        return layout.rows(grid, self.width, self.glyphs, self.glyphs.gutter)


def _full(session: SessionRecord, page: _Page, verbose: bool, told: Collection[str]) -> Iterator[Text]:
    groups = summary.groups(session)
    ordered = [r for _, results in groups for r in results]
    if ordered:
        short = summary.short_names(r.test for r in ordered)  # the engine is said above the rows
        grid = grids.results(ordered, {r.nodeid: short[r.test] for r in ordered})
        heading, *rows = page.rows(layout.with_bars(layout.with_one_unit(grid), ordered, page.glyphs))
        yield from heading
        remaining = iter(rows)
    first: dict[str, ServerRecord] = {}
    for server, results in groups:
        like = first.setdefault(summary.label(server), server)
        yield from _server(server, page, verbose, like if like is not server and not results else None)
        for result in results:
            yield from next(remaining)
            for launch in result.launches if verbose else ():
                values = " ".join(map(number, launch.values))
                said = f"launch {launch.id}, {launch.role}: {number(launch.value)}, repetitions {values}"
                yield from page.gutter(said, "dim", hang=2)
    failures = [failure for server in session.servers for failure in server.failures]  # told above their tests' rows
    for cause, lines in _errors(ordered, page):
        if not any(failure.startswith(cause) for failure in failures):
            yield Text()
            yield from lines
    for result in ordered:
        failed = result.verdict in FAILING or result.verdict == "inconclusive"
        if result.verdict == "error" or (failed and result.nodeid in told):
            continue
        if summary.state(result) not in summary.FINE or (verbose and summary.remarks(result)):
            yield Text()
            yield from _explained(result, session, page, verbose)
    yield from _tuning(session, page, verbose)
    yield from _closing(session, page, verbose)


def _server(server: ServerRecord, page: _Page, verbose: bool, like: ServerRecord | None) -> Iterator[Text]:
    """What it is; of a sweep's many only what tells it from the one ``like`` it."""
    title = f"{summary.label(server)}  {clean(server.key)}  {summary.launches(server)}"
    yield from page.gutter(title, "bold", hang=2, mark=page.glyphs.server)
    said = _declared(server)
    if verbose:
        took = [f"{clean(k)}={clean(v)}" for k, v in settings(server.effective, skip={"sources"})]
        yield from page.gutter("declared " + (" ".join(said) or "nothing more"), "dim", hang=2)
        yield from page.gutter("effective " + (" ".join(took) or "unknown"), "dim", hang=2)
    elif like is not None:
        was = _declared(like)
        names = {s.partition("=")[0] for s in said}
        gone = [f"no {w.partition('=')[0]}" for w in was if w.partition("=")[0] not in names]
        yield from page.gutter(" ".join([*(s for s in said if s not in was), *gone]), "dim")
    elif said:
        yield from page.gutter(" ".join(said), "dim")
    for failure in server.failures:
        yield from page.bullet(failure, "bold red")


def _declared(server: ServerRecord) -> list[str]:
    return [f"{clean(k)}={clean(v)}" for k, v in settings(server.config, skip=summary.IN_LABEL)]


def _errors(results: Iterable[Result], page: _Page) -> Iterator[tuple[str, Iterator[Text]]]:
    """What ended before it was judged, told once for each cause."""
    by_cause: dict[str, list[Result]] = {}
    for result in results:
        if result.verdict == "error":
            by_cause.setdefault(summary.headline(result), []).append(result)
    for cause, found in by_cause.items():
        names = summary.short_names(r.nodeid for r in found)
        which = summary.title(found[0])
        if len(found) > 1:
            which = f"error: {plural(len(found), 'result')} of {summary.listed(names[r.nodeid] for r in found)}"
        remarks = dict.fromkeys(remark for r in found for remark in summary.remarks(r))
        lines = chain(
            page.gutter(which, STYLES["error"], hang=2, mark=page.glyphs.marks["error"]),
            page.gutter(cause),
            *(page.bullet(remark) for remark in remarks),
        )
        yield cause, lines


def _explained(result: Result, session: SessionRecord, page: _Page, verbose: bool) -> Iterator[Text]:
    state = summary.state(result)
    mark = page.glyphs.marks.get(state, "?")
    yield from page.gutter(summary.title(result), STYLES.get(state, ""), hang=2, mark=mark)
    yield from page.gutter(summary.headline(result))
    for remark in summary.remarks(result):
        yield from page.bullet(remark)
    if result.differences:
        yield from page.table(grids.differences(result))
    if verbose:
        yield from page.gutter(f"reproduce: {summary.reproduce(result, session)}", "dim", hang=2)


def _tuning(session: SessionRecord, page: _Page, verbose: bool) -> Iterator[Text]:
    if session.gaps:
        yield Text()
        yield from page.gutter(grids.GAPS, "bold")
        yield from page.table(grids.gaps(session.gaps))
        for note in summary.gap_notes(session):
            yield from page.bullet(note, "dim")
    for sweep in session.sweeps if verbose else grids.leading(session.sweeps):
        yield Text()
        yield from page.gutter(grids.sweep_title(sweep), "bold", hang=2)
        yield from page.table(grids.sweep(sweep))
        for note in grids.sweep_notes(sweep):
            yield from page.bullet(note, "dim")
    for curve in session.curves:
        yield Text()
        yield from page.gutter(grids.curve_title(curve), "bold", hang=2)
        yield from page.table(grids.curve(curve))


def _closing(session: SessionRecord, page: _Page, verbose: bool) -> Iterator[Text]:
    said = summary.messages(session)
    advice = summary.hints(session)
    weak = [r for r in session.results if summary.is_weak(r) and not verbose]
    outdated = summary.outdated(session.results)
    if said or advice or weak or outdated:
        yield Text()
    names = summary.short_names(r.nodeid for r in session.results)
    for result in weak:
        yield from page.bullet(f"{names[result.nodeid]}, {clean(result.metric)}: {summary.weak(result)}", "yellow")
    for line in outdated:
        yield from page.bullet(line, "yellow")
    for kind, text in said:
        yield from page.bullet(f"{kind}: {text}", _MESSAGE_STYLES.get(kind, ""))
    for hint in advice:
        yield from page.bullet(hint, "dim")
    yield from _inconclusive(session, page)
    yield from _sum(session, page)


def _inconclusive(session: SessionRecord, page: _Page) -> Iterator[Text]:
    """Loud: these tests were measured and yet say nothing, which a green run would hide."""
    doubtful = [r for r in session.results if r.verdict == "inconclusive"]
    if doubtful:
        names = summary.short_names(r.nodeid for r in session.results)
        which = ", ".join(dict.fromkeys(names[r.nodeid] for r in doubtful))
        text = f"! INCONCLUSIVE: {plural(len(doubtful), 'result')} not judged, neither passed nor failed: {which}"
        yield from page.gutter(text, "bold yellow reverse", hang=2)


def _sum(session: SessionRecord, page: _Page) -> Iterator[Text]:
    started = sum(1 for s in session.servers for x in s.launches if not x.reused)
    tuned = session.gaps or session.sweeps or session.curves
    said = ["" if tuned and not session.results else summary.tally(session.results), summary.gating(session)]
    if session.servers:
        said.append(plural(started, "launch"))
    if session.session.get("duration_s") is not None:
        said.append(seconds(session.session["duration_s"]))
    if session.session.get("interrupted"):
        said.insert(0, "interrupted, this is what was measured until then")
    said.append(summary.ignored(session))
    states = summary.counts(session.results)
    style = STYLES[states[0][0]] if states else "yellow"
    if any(said):
        yield from page.own("llmperf: " + "; ".join(filter(None, said)), style)


def _brief(session: SessionRecord, page: _Page) -> Iterator[Text]:
    for _, lines in _errors(session.results, page):
        yield from lines
    for result in session.results:
        state = summary.state(result)
        if state not in summary.FINE and state not in ("improved", "error"):
            mark = page.glyphs.marks.get(state, "?")
            yield from page.gutter(f"{summary.title(result)}: {summary.headline(result)}", hang=2, mark=mark)
    for server in session.servers:
        for failure in server.failures:
            yield from page.gutter(clean(failure), hang=2)
    for kind, text in summary.messages(session):
        if kind in ("error", "refused"):
            yield from page.bullet(f"{kind}: {text}", _MESSAGE_STYLES[kind])
    yield from _inconclusive(session, page)
    yield from _sum(session, page)


def _printed(body: Iterable[Text], width: int, color: bool) -> str:
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=color, color_system="standard" if color else None, no_color=not color,
        highlight=False, markup=False, emoji=False, legacy_windows=False, _environ={},
    )  # fmt: skip
    for line in body:
        console.print(line, no_wrap=True, overflow="crop", crop=True, soft_wrap=False)
    return out.getvalue()
