"""An inspection as text for a terminal: compact, wrapped to its width, made inert."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pytest_llmperf.inspection.environment import EnvironmentWrite
from pytest_llmperf.inspection.execution import Decision
from pytest_llmperf.inspection.findings import Choice, Default, Inspection
from pytest_llmperf.inspection.paths import PathOutcome
from pytest_llmperf.records.text import clean

_HOW = {"set": "set", "default": "when unset", "removed": "removed"}
_UNSET = "left to run time"


def show(found: Inspection, console: Console, *, verbose: bool = False) -> None:
    """Print everything; ``verbose`` adds each flag's help and every condition on the way."""
    for part in _page(found, verbose):
        console.print(part)


def _page(found: Inspection, verbose: bool) -> Iterator[RenderableType]:
    yield Text.assemble(
        (f"{found.engine} {clean(found.version or 'of unknown version')}", "bold"), "  ", (clean(found.origin), "dim")
    )
    if found.running:
        yield from _section(f"Running at {clean(found.running.url)}", _running(found))
    if found.defaults:
        title = "What it takes by default"
        if found.given:
            title += " with " + ", ".join(f"{clean(k)}={clean(v)}" for k, v in found.given.items())
        yield from _section(title, _defaults(found.defaults, verbose))
        yield Padding(Text(f"Assuming {found.assumed}.", "dim"), (0, 0, 0, 2))
    if found.choices:
        yield from _section("Backends to choose from", _choices(found.choices))
    if found.environment:
        yield from _section(
            "Variables it sets for itself when that code runs", _environment(found.environment, verbose)
        )
    if found.flags:
        yield from _section("Launch flags that matter for speed", _flags(found, verbose))
    if found.silent:
        yield from _section("What the source does not tell", Group(*(Text(f"- {clean(s)}") for s in found.silent)))


def _section(title: str, body: RenderableType) -> Iterator[RenderableType]:
    yield Text()
    yield Text(title, "bold cyan")
    yield Padding(body, (0, 0, 0, 2))


def _grid(*columns: str, header: bool = True) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=header, header_style="dim")
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _running(found: Inspection) -> RenderableType:
    table = _grid("setting", "value", "read from", header=False)
    running = found.running
    for name, value in (running.settings if running else {}).items():
        source = running.sources.get(name, "") if running else ""
        table.add_row(clean(name), Text(clean(value), "bold"), Text(clean(source), "dim"))
    return table


def _defaults(defaults: Sequence[Default], verbose: bool) -> RenderableType:
    """By setting where one model and one GPU were named, else by model and GPU; what is open stands below its row."""
    one = len({(d.model, d.gpu) for d in defaults}) == 1
    table = _grid("setting", "value", "from") if one else _grid("model", "GPU", _words(defaults[0].fields[0]), "from")
    before = ""
    for row in defaults:
        for i, outcome in enumerate(row.outcomes.all):
            names = [_words(row.fields[0])] if one else [row.model if row.model != before else "", row.gpu]
            if i:
                names = ["" for _ in names]
            table.add_row(*map(clean, names), _answer(row, outcome), _reason(outcome, row.fields[0], verbose or one))
            before = row.model
        for note in (*row.outcomes.notes, *([] if row.outcomes.complete else ["more ways than are shown here"])):
            table.add_row(*[""] * (2 if one else 3), Text(clean(note), "yellow"))
    if one:
        return Group(Text(f"{clean(defaults[0].model)} on {clean(defaults[0].gpu)}", "italic"), table)
    return table


def _words(name: str) -> str:
    return name.replace("_", " ")


def _answer(row: Default, outcome: PathOutcome) -> Text:
    if outcome.refused is not None:
        return Text("refuses to start", "red")
    text = Text(clean(outcome.answer.get(row.fields[0]) or _UNSET), "bold green" if row.settled else "bold yellow")
    for name in row.fields[1:]:
        if outcome.answer.get(name):
            text.append(f"\n{name.replace('_attention_backend', '')} {clean(outcome.answer[name])}", "green")
    return text


def _reason(outcome: PathOutcome, name: str, verbose: bool) -> Text:
    if outcome.refused is not None:
        return Text(clean(outcome.refused), "red")
    at = outcome.places.get(name) or next(iter(outcome.places.values()), None)
    text = Text(str(at) if at else "the flag's own default", "dim")
    for decision in outcome.depends:
        text.append(f"\nif {_condition(decision)}", "yellow")
        text.append(f"  {decision.at}", "dim")
    for decision in outcome.because if verbose else ():
        if not decision.assumed:
            text.append(f"\n{'is' if decision.holds else 'not'}: {clean(decision.text)}", "")
            text.append(f"  :{decision.at.line}", "dim")
    return text


def _condition(decision: Decision) -> str:
    text = clean(decision.text)
    if decision.holds:
        return text
    return text[5:-1] if text.startswith("not (") and text.endswith(")") else f"not ({text})"


def _choices(choices: Sequence[Choice]) -> RenderableType:
    """Flags that offer the same options share a row."""
    table = _grid("flag", "options (the flag's own default underlined)")
    for options, default in dict.fromkeys((c.options, c.default) for c in choices):
        alike = [c for c in choices if (c.options, c.default) == (options, default)]
        text = Text()
        for i, option in enumerate(options):
            text.append(", " if i else "")
            text.append(clean(option), "bold underline" if option == default else "")
        table.add_row(Text("\n".join(clean(c.flag or c.kind) for c in alike), "cyan"), text)
    return table


def _environment(writes: Sequence[EnvironmentWrite], verbose: bool) -> RenderableType:
    table = _grid("variable", "value", "when", "from")
    for write in writes:
        when = Text(_HOW[write.how], "bold red" if write.how == "set" and not write.conditions else "")
        for condition in write.conditions if verbose else write.conditions[-1:]:
            when.append(f"\nif {clean(condition)}", "dim")
        where = Text(clean(write.at), "dim")
        where.append(f"\nin {clean(write.function)}" if write.function else "")
        table.add_row(clean(write.name), clean(write.value or "-"), when, where)
    return table


def _flags(found: Inspection, verbose: bool) -> RenderableType:
    table = _grid("flag", "default", "help" if verbose else "what it does")
    for flag in found.flags:
        text = clean(flag.help)
        if not verbose and len(text) > 90:
            text = text[:87].rsplit(" ", 1)[0] + " ..."
        table.add_row(Text(clean(flag.name), "cyan"), clean(flag.default or "-"), text)
    return table
