"""Evaluating engine-like code in tests."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from pytest_llmperf.inspection import Source, machine
from pytest_llmperf.inspection.execution import Choices, Interpreter
from pytest_llmperf.inspection.expressions import Frame
from pytest_llmperf.inspection.facts import GpuFacts
from pytest_llmperf.inspection.paths import Outcomes, explore
from pytest_llmperf.inspection.relevance import Relevance
from pytest_llmperf.inspection.source import Place
from pytest_llmperf.inspection.values import Object

H200 = GpuFacts("sm_90", "nvidia", (9, 0))


def in_memory(files: Mapping[str, str]) -> Source:
    """A source from texts; no file is written."""

    return Source("pkg", "memory", "1", {f"pkg/{name}": text.encode for name, text in files.items()})


def interpreter(source: Source, choices: Choices, matters: Relevance, gpu: GpuFacts = H200) -> Interpreter:
    natives: dict[str, Any] = {}
    made = Interpreter(source, matters, natives, machine.externals(gpu), choices)
    natives.update(machine.builtins(made))
    return made


def value(text: str, module: str = "", gpu: GpuFacts = H200) -> Any:
    """The value of an expression in a module of this text."""
    made = interpreter(in_memory({"m.py": module}), Choices(), Relevance(frozenset(), frozenset()), gpu)
    found = made.names.file("pkg/m.py")
    assert found is not None
    return made.evaluate(ast.parse(text, mode="eval").body, Frame(found, "test"))


def outcomes(module: str, *, target: str = "backend", answers: tuple[str, ...] = (), most: int = 48) -> Outcomes:
    """What ``choose(args)`` may leave in ``args.<target>``; every other field of ``args`` is open."""
    source = in_memory({"m.py": module})
    matters = Relevance(frozenset({target}), frozenset(answers))

    def run(made: Interpreter) -> dict[str, Any]:
        args = Object("args", {target: None})
        found = made.names.file("pkg/m.py")
        assert found is not None
        made.call(found.lookup("choose"), [args], {}, Place("pkg/m.py", 0))
        return {target: args.attributes[target]}

    return explore(lambda choices: interpreter(source, choices, matters), run, most)


def ways(found: Outcomes) -> dict[tuple[str, ...], str | None]:
    """Each outcome's value by what it depends on (``not x`` for the false side)."""
    return {
        tuple(d.text if d.holds else f"not {d.text}" for d in o.depends): o.refused or o.answer["backend"]
        for o in found.all
    }
