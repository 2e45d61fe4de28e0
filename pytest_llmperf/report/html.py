"""The HTML report: one page without scripts, network or files beside it. Needs the extra ``report`` (jinja2). Its
verdicts are filtered and sorted by the style sheet alone.

Every text is cleaned and escaped on its way into the template, whatever the template does, and a content security
policy in the page allows nothing but its own style sheet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.records import text as words
from pytest_llmperf.records.histories import History
from pytest_llmperf.records.results import Result, SessionRecord
from pytest_llmperf.report import grids, summary
from pytest_llmperf.report.last_run import LastRun

if TYPE_CHECKING:
    import jinja2

#: Lines of a server's log that the page keeps, and characters of each line.
TAIL_LINES, TAIL_WIDTH = 80, 400
_TAIL_BYTES = 256 * 1024
#: Where a name that is too long for a phone breaks best.
_BREAKS = re.compile(r"/|::|_|\.(?=\w)")


def page(
    session: SessionRecord,
    history: Sequence[History] = (),
    logs: Mapping[str, str] | None = None,
    previous: SessionRecord | None = None,
) -> str:
    """The whole report. ``history`` is matched to results by test, engine and metric; ``logs`` maps a launch's id to
    its log (``tails`` reads them); ``previous`` is the last session of the same branch, to tell what changed since.
    Raises ``ConfigError`` without jinja2."""
    names = summary.short_names(r.nodeid for r in session.results)
    worst_first = summary.worst_first(session.results)
    ranks = {id(r): i for i, r in enumerate(worst_first)}
    ids = {id(r): f"r{i}" for i, r in enumerate(session.results, 1)}
    last = LastRun.of(session, previous) if previous is not None else None
    histories = {(h.test, h.engine, h.metric): h for h in history}
    return _render(
        "page.html",
        session=session,
        info=session.session,
        groups=summary.groups(session),
        worst_first=worst_first,
        rank=lambda r: ranks[id(r)],
        weak=[r for r in session.results if summary.is_weak(r)],
        names=names,
        anchor=lambda r: ids[id(r)],
        history_of=lambda r: histories.get((r.test, r.engine, r.metric)),
        logs={key: tail(text) for key, text in (logs or {}).items()},
        facts=[*_facts(session), *([("last run", last.told)] if last else [])],
        last=last,
        was=lambda r: last.was.get(id(r)) if last else None,
        anything=bool(session.results),
    )


def history_page(histories: Sequence[History]) -> str:
    """``llmperf history`` as a page of its own. Raises ``ConfigError`` without jinja2."""
    return _render("history.html", histories=histories)


def tails(session: SessionRecord, root: Path) -> dict[str, str]:
    """The ends of the logs that the session's launches left under ``root``; one that cannot be read is left out."""
    out = {}
    for launch in (x for s in session.servers for x in s.launches if x.log):
        try:
            with (root / str(launch.log)).open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
                out[launch.id] = tail(file.read().decode("utf-8", "replace"))
        except (OSError, ValueError):
            continue
    return out


def tail(log: str) -> str:
    """The last ``TAIL_LINES`` lines, cleaned, long ones cut."""
    lines = words.clean(log[-_TAIL_BYTES:], lines=True).rstrip("\n").split("\n")[-TAIL_LINES:]
    return "\n".join(line if len(line) <= TAIL_WIDTH else f"{line[:TAIL_WIDTH]} …" for line in lines)


def _facts(session: SessionRecord) -> list[tuple[str, str]]:
    """What the head of the page says of the run, as far as it is known."""
    info = session.session
    duration = info.get("duration_s")
    facts = [
        ("started", summary.when(session)),
        ("duration", words.seconds(duration) if duration is not None else ""),
        ("host", info.get("host") or ""),
        ("hardware", summary.hardware(session)),
        ("gate", summary.gating(session)),
        ("versions", ", ".join(f"{k} {v}" for k, v in (info.get("versions") or {}).items())),
        ("command", info.get("command") or ""),
    ]
    return [(name, str(value)) for name, value in facts if value]


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


def _environment() -> jinja2.Environment:
    try:
        import jinja2
        from markupsafe import Markup, escape

        from pytest_llmperf.report import plots, tuning_plots
    except ImportError as e:
        raise ConfigError(
            "an HTML report needs jinja2: python -m pip install 'pytest-llmperf[report]', or ask for none"
        ) from e

    def inert(value: Any) -> Any:
        return value if hasattr(value, "__html__") else words.clean(value)  # as markupsafe tells markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pytest_llmperf.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=inert,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = resources.files("pytest_llmperf.report").joinpath("templates/style.css").read_text(encoding="utf-8")
    environment.globals.update(
        style=Markup(style),
        lines=lambda text: Markup(escape(words.clean(text, lines=True))),
        soft=lambda text: Markup(_BREAKS.sub(r"\g<0><wbr>", str(escape(words.clean(text))))),
        grids=grids,
        plots=plots,
        tuning_plots=tuning_plots,
        summary=summary,
        words=words,
        reproduce=summary.reproduce,
        facts_of=_evidence,
    )
    return environment


def _evidence(result: Result) -> list[tuple[str, list[tuple[str, str]]]]:
    """The small print of a result: what it measured, against what it may be compared, what may explain it."""
    parts = (
        ("workload", result.workload),
        ("fingerprint", result.fingerprint),
        ("provenance", result.provenance),
    )
    return [(title, words.settings(values)) for title, values in parts if values]
