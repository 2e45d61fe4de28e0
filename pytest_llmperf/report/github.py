"""GitHub Actions: a Markdown summary for ``GITHUB_STEP_SUMMARY`` and annotations on the tests' lines.

A stranger's text (test names, engines' messages) can neither leave its table cell nor become markup, a link or a
workflow command.
"""

import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_llmperf.records.results import Result, ServerRecord, SessionRecord
from pytest_llmperf.records.text import clean, percent, plural, settings
from pytest_llmperf.report import grids
from pytest_llmperf.report import summary as words
from pytest_llmperf.report.grids import Grid

_ICONS = {
    "error": "❌", "invalid": "❌", "regressed": "🔻", "below_target": "🔻", "inconclusive": "⚠️",
    "not_comparable": "❌", "no_baseline": "❌",
    "improved": "🔺", "recorded": "⏺️", "passed": "✅", "better": "🔺", "worse": "🔻", "failed": "❌",
}  # fmt: skip
_LEVELS = {"inconclusive": "warning", "improved": "notice"}

#: What can begin markup or end a cell. An underscore inside a word, and a colon or dot that begins no link, can not;
#: neither can parentheses, whose links need brackets.
_MARKUP = re.compile(r"[\\`*{}\[\]<>#|~&@$^]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|:(?=//)|(?<=www)\.")
#: What makes a list or a rule of the line it begins.
_OPENING = re.compile(r"\A(?:(\d+)(?=[.)]\s)|(?=[-+=]))(.)")

#: GitHub refuses a step's summary above 1 MiB; results and explanations beyond these are counted, not listed.
MOST_ROWS, MOST_EXPLAINED = 1000, 100
#: GitHub shows this many annotations of a level for one step.
MOST_ANNOTATIONS = 10


def markdown(text: object) -> str:
    """``text`` as inert Markdown: cleaned, with every character that could begin markup as a character reference."""
    return _MARKUP.sub(_reference, clean(text).strip())


def block(text: object) -> str:
    """``markdown`` that may begin a line or a list item."""
    return _OPENING.sub(lambda m: (m[1] or "") + _reference(m[2]), markdown(text))


def _reference(found: re.Match[str] | str) -> str:
    return f"&#{ord(found[0])};"


def summary(session: SessionRecord) -> str:
    """The whole report in GitHub's Markdown, ready to append to ``GITHUB_STEP_SUMMARY``."""
    return "".join(f"{line}\n" for line in _lines(session))


def _lines(session: SessionRecord) -> Iterator[str]:
    """What is not green in one table, then why and what to do; every result after that, folded."""
    yield "## LLM performance"
    yield ""
    yield f"**{words.tally(session.results)}**" + "".join(f" · {s}" for s in _facts(session))
    for failure in (f for server in session.servers for f in server.failures):
        yield ""
        yield f"❌ {markdown(failure)}"
    notable = words.worst_first(r for r in session.results if words.state(r) not in words.FINE or words.is_weak(r))
    if notable:
        yield ""
        yield from table(grids.results(notable[:MOST_EXPLAINED], _names(session)))
    for result in notable[:MOST_EXPLAINED]:
        yield from _explained(result, session)
    if len(notable) > MOST_EXPLAINED:
        yield ""
        yield f"... and {len(notable) - MOST_EXPLAINED} more to explain; the HTML report has all of them"
    yield from _tuning(session)
    closing = [f"**{kind}**: {markdown(text)}" for kind, text in words.messages(session)]
    closing += [block(line) for line in (*words.outdated(session.results), *words.hints(session))]
    if closing:
        yield ""
        yield from (f"- {line}" for line in closing)
    if session.servers:
        yield ""
        yield f"<details><summary>{_everything(session)}</summary>"
        for server, results in words.groups(session):
            yield from _of_server(server, results, session)
        yield ""
        yield "</details>"
    yield ""


def _everything(session: SessionRecord) -> str:
    return f"All {plural(len(session.results), 'result')} on {plural(len(words.groups(session)), 'server')}"


def _of_server(server: ServerRecord, results: list[Result], session: SessionRecord) -> Iterator[str]:
    yield ""
    yield f"### {markdown(words.label(server))}"
    yield ""
    yield f"{words.launches(server)} · config {code(server.key)}"
    declared = [f"{k}={v}" for k, v in settings(server.config, skip=words.IN_LABEL)]
    if declared:
        yield ""
        yield " ".join(code(d) for d in declared)
    if results:
        yield ""
        yield from table(grids.results(results[:MOST_ROWS], _names(session)))
    if len(results) > MOST_ROWS:
        yield ""
        yield f"... and {len(results) - MOST_ROWS} more; the JSON and HTML reports have all of them"


def _names(session: SessionRecord) -> dict[str, str]:
    return words.short_names(r.nodeid for r in session.results)


def _facts(session: SessionRecord) -> Iterator[str]:
    for fact in (words.gating(session), words.ignored(session), words.hardware(session)):
        if fact:
            yield markdown(fact)


def code(text: object) -> str:
    """``text`` in a monospaced face; not a code span, whose fences and pipes a table would read first."""
    return f"<code>{markdown(text)}</code>"


def table(grid: Grid) -> Iterator[str]:
    """A GFM table; a row's tone is its icon."""
    titles = [markdown(c.title) for c in grid.columns]
    yield "| " + " | ".join(["", *titles]) + " |"
    yield "|---|" + "".join("---:|" if c.right else "---|" for c in grid.columns)
    for row in grid.rows:
        cells = [code(row.cells[0]), *(markdown(c) for c in row.cells[1:])]
        yield "| " + " | ".join([_ICONS.get(row.tone, ""), *cells]) + " |"


def _explained(result: Result, session: SessionRecord) -> Iterator[str]:
    yield ""
    icon = _ICONS.get(words.state(result), "")
    yield f"<details><summary>{icon} {markdown(words.title(result))}</summary>"
    yield ""
    yield block(words.headline(result))
    yield ""
    for remark in words.remarks(result):
        yield f"- {block(remark)}"
    if result.differences:
        yield ""
        yield from table(grids.differences(result))
    yield ""
    yield f"Reproduce: {code(words.reproduce(result, session))}"
    yield ""
    yield "</details>"


def _tuning(session: SessionRecord) -> Iterator[str]:
    parts: list[tuple[str, Grid, list[str]]] = []
    if session.gaps:
        parts.append((grids.GAPS, grids.gaps(session.gaps), words.gap_notes(session)))
    parts += [(grids.sweep_title(s), grids.sweep(s), grids.sweep_notes(s)) for s in grids.leading(session.sweeps)]
    parts += [(grids.curve_title(c), grids.curve(c), []) for c in session.curves]
    for title, grid, notes in parts:
        yield ""
        yield f"#### {markdown(title)}"
        yield ""
        yield from table(grid)
        yield from (f"\n{block(note)}" for note in notes)


def folder_in_checkout(rootdir: Path, environ: Mapping[str, str]) -> str:
    """Where ``rootdir`` lies in the repository, ``.`` at its top: GitHub knows files by their path from there.

    The top is the nearest folder with a ``.git``; in a workspace without one ``GITHUB_WORKSPACE``.
    """
    workspace = Path(environ.get("GITHUB_WORKSPACE") or rootdir)
    top = next((f for f in (rootdir, *rootdir.parents) if (f / ".git").exists()), workspace)
    folder = os.path.relpath(rootdir, top).replace(os.sep, "/")
    return "." if folder.split("/")[0] == ".." else folder


def annotations(session: SessionRecord, folder: str = ".") -> list[str]:
    """Workflow commands to print, each on a line of its own: an error for what fails a test, a warning for what could
    not be judged, a notice for an improvement; worst first, since GitHub shows ``MOST_ANNOTATIONS`` of a level and
    drops the others without a word. ``folder`` is the rootdir's, to which paths are relative, in the repository."""
    out: list[str] = []
    for level in ("error", "warning", "notice"):
        found = [r for r in words.worst_first(session.results) if _level(r) == level]
        shown = found if len(found) <= MOST_ANNOTATIONS else found[: MOST_ANNOTATIONS - 1]
        out += [_annotation(r, folder) for r in shown]
        if len(shown) < len(found):
            out.append(f"::{level} title=llmperf::{len(found) - len(shown)} more in the job's summary")
    return out


def _level(result: Result) -> str:
    state = words.state(result)
    return "" if state in words.FINE else _LEVELS.get(state, "error")


def _annotation(result: Result, folder: str) -> str:
    path, line = words.place(result)
    drop = f" {percent(result.change, signed=True)}" if result.verdict in ("regressed", "improved") else ""
    fields = {
        "file": posixpath.normpath(posixpath.join(folder, path)),
        **({"line": str(line)} if line else {}),
        "title": f"llmperf: {words.verdict(result)}{drop}",
    }
    said = f"{clean(result.nodeid)} ({clean(result.engine)}, {clean(result.metric)}): {words.headline(result)}"
    differs = [f"{clean(d.name)}: {clean(d.baseline)} -> {clean(d.now)}" for d in result.differences]
    text = "\n".join([said, *words.remarks(result), *differs])
    inner = ",".join(f"{k}={_property(v)}" for k, v in fields.items())
    return f"::{_level(result)} {inner}::{_data(text)}"


def _data(text: str) -> str:
    """A command's message, escaped as the runner unescapes it."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """A command's property value: a colon or comma would end it."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
