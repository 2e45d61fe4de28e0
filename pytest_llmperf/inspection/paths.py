"""Every way an evaluation can go: one run per combination of the conditions that the source leaves open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_llmperf.inspection.calls import EngineError
from pytest_llmperf.inspection.execution import Choices, Decision, Interpreter, OutOfStepsError
from pytest_llmperf.inspection.source import Place
from pytest_llmperf.inspection.values import Member, Text, Unknown, describe

_MOST_PATHS = 48


@dataclass(frozen=True)
class PathOutcome:
    """One way it can go. ``answer`` maps each field asked for to its value's text (None: left unset); ``places``
    to the line that wrote it. ``because``: the conditions met in the function that holds that line, in order.
    ``depends``: the open conditions that were assumed. ``refused`` when the engine would raise instead."""

    answer: dict[str, str | None]
    places: dict[str, Place]
    because: tuple[Decision, ...] = ()
    depends: tuple[Decision, ...] = ()
    refused: str | None = None


@dataclass(frozen=True)
class Outcomes:
    """All outcomes; ``complete`` is False when there were too many to follow, ``notes`` say what was not followed."""

    all: tuple[PathOutcome, ...]
    complete: bool
    notes: tuple[str, ...]

    def values(self, name: str) -> list[str | None]:
        """The distinct values a field can take, in the order met; refusals left out."""
        return list(dict.fromkeys(o.answer.get(name) for o in self.all if o.refused is None))


def explore(
    make: Callable[[Choices], Interpreter],
    run: Callable[[Interpreter], dict[str, Any]],
    most: int = _MOST_PATHS,
) -> Outcomes:
    """Run ``run`` on a fresh interpreter for every combination of open conditions, at most ``most`` of them.

    ``run`` returns the value of every field that was asked for.
    """
    found: list[PathOutcome] = []
    notes: dict[str, None] = {}
    queue: list[tuple[bool, ...]] = [()]
    for _ in range(most):
        if not queue:
            break
        wanted = queue.pop()
        choices = Choices(wanted)
        interpreter = make(choices)
        try:
            outcome = _outcome(interpreter, run(interpreter))
        except EngineError as error:
            outcome = PathOutcome({}, {}, (), _assumed(interpreter), f"{error.kind}: {error.text} ({error.at})")
        except OutOfStepsError:
            notes["the engine's code is too long to follow to its end"] = None
            break
        found.append(outcome)
        notes.update(dict.fromkeys(interpreter.notes))
        taken = tuple(side for _, _, side in choices.taken)
        queue.extend((*taken[:i], not taken[i]) for i in range(len(wanted), len(taken)))
    return Outcomes(_merged(found), not queue, tuple(notes))


def _assumed(interpreter: Interpreter) -> tuple[Decision, ...]:
    return tuple(Decision(at, text, side, True) for text, at, side in interpreter.choices.taken)


def _outcome(interpreter: Interpreter, values: dict[str, Any]) -> PathOutcome:
    answer: dict[str, str | None] = {}
    places: dict[str, Place] = {}
    for name, value in values.items():
        answer[name] = None if value is None else str(value) if isinstance(value, str) else describe(value)
        if isinstance(value, Unknown):
            answer[name] = f"unknown: {value.text}"
        written = next((at for field, v, at in reversed(interpreter.writes) if field == name and v is value), None)
        at = value.at if isinstance(value, (Text, Member)) else written
        if at is not None:
            places[name] = at
    because = _reasons(interpreter.trail, next(iter(places.values()), None))
    return PathOutcome(answer, places, because, _assumed(interpreter))


def _reasons(trail: list[Decision], at: Place | None) -> tuple[Decision, ...]:
    """The conditions just before the answer's line, in its function: what led to that line."""
    if at is None:
        return ()
    inside = [d for d in trail if d.at.file == at.file and d.lines[0] <= at.line <= d.lines[1] and d.at.line <= at.line]
    start = max((i for i, d in enumerate(inside) if i and d.at.line <= inside[i - 1].at.line), default=0)
    return tuple(inside[start:])


def _merged(outcomes: list[PathOutcome]) -> tuple[PathOutcome, ...]:
    """Outcomes that differ in nothing but an assumption made no difference to that assumption: it is dropped."""
    merged = list(outcomes)
    changed = True
    while changed:
        changed = False
        for i, one in enumerate(merged):
            for other in merged[i + 1 :]:
                difference = _only_difference(one, other)
                if difference is not None:
                    depends = tuple(d for d in one.depends if d.text != difference)
                    merged[i] = PathOutcome(one.answer, one.places, one.because, depends, one.refused)
                    merged.remove(other)
                    changed = True
                    break
            if changed:
                break
    return tuple(merged)


def _only_difference(one: PathOutcome, other: PathOutcome) -> str | None:
    if one.answer != other.answer or (one.refused is None) != (other.refused is None):
        return None
    mine, theirs = ({d.text: d.holds for d in o.depends} for o in (one, other))
    differing = [t for t in mine if mine[t] != theirs.get(t)]
    return differing[0] if mine.keys() == theirs.keys() and len(differing) == 1 else None
