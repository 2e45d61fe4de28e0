"""What a verdict says for itself: the lines of a failed assertion."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_llmperf.records.results import Result
from pytest_llmperf.records.text import WORDS, clean, number, percent
from pytest_llmperf.report import summary

_WIDTH = 10


def explain(result: Result) -> list[str]:
    """The lines that explain ``result``: measured, band, target, launches, what could have been seen, differences."""
    return list(_lines(result))


def _lines(r: Result) -> Iterator[str]:
    yield f"{r.metric} {WORDS[r.verdict]}" + (f": {r.reasons[0]}" if r.reasons else "")
    if r.value is not None:
        yield _row("measured", f"{_value(r, r.value)}{_spread(r)}")
    if r.baseline is not None:
        change = f" ({percent(r.change, signed=True)})" if r.change is not None else ""
        yield _row("baseline", f"{_value(r, r.baseline.value)}{change}, {r.baseline.path}")
    if r.band is not None:
        guard = f"{number(r.band[0])} or more" if r.higher_is_better else f"{number(r.band[1])} or less"
        alpha = f", level {percent(r.alpha)}" if r.alpha else ""
        yield _row("band", f"{number(r.band[0])} to {number(r.band[1])} {r.unit}: passes at {guard}{alpha}")
    if r.target is not None:
        yield _row("target", _value(r, r.target))
    yield _row("launches", _launches(r))
    if r.mde is not None:
        yield _row("sees", f"a loss of {percent(r.mde)} or more with 80% power")
    for text in summary.remarks(r):
        if text not in map(clean, r.reasons[:1]):
            yield _row("note", text)
    if r.differences:
        yield "differs from the baseline:"
        names = max(len(d.name) for d in r.differences)
        yield from (f"  {d.name:<{names}}  {d.baseline} -> {d.now}" for d in r.differences)
    elif r.baseline is not None and r.verdict in ("regressed", "improved"):
        yield "nothing recorded differs from the baseline (versions, driver, effective config)"


def _row(name: str, text: str) -> str:
    return f"  {name:<{_WIDTH}}{text}"


def _value(r: Result, value: float) -> str:
    return f"{number(value)} {r.unit}"


def _spread(r: Result) -> str:
    return f" (launches: {', '.join(number(x.value) for x in r.launches)})" if len(r.launches) > 1 else ""


def _launches(r: Result) -> str:
    confirming = sum(x.role == "confirm" for x in r.launches)
    count = len(r.launches) - confirming
    fresh = f"{count} fresh" if not confirming else f"{count} screened, {confirming} confirming"
    if r.baseline is None:
        return fresh
    age = f", newest {r.baseline.age_days:.0f} days old" if r.baseline.age_days is not None else ""
    spread = ", spread assumed" if r.baseline.prior_only else ""
    return f"{fresh}, against {r.baseline.launches} stored{age}{spread}"
