"""What reading an engine found, as values: text and JSON are made from these and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pytest_llmperf.inspection.declared_flags import Flag
from pytest_llmperf.inspection.environment import EnvironmentWrite
from pytest_llmperf.inspection.paths import Outcomes, PathOutcome
from pytest_llmperf.inspection.source import Place

SCHEMA = 1


@dataclass(frozen=True)
class Choice:
    """One thing the engine lets one choose: ``kind`` in words, the flag (empty when there is none) and the options."""

    kind: str
    flag: str
    default: str
    options: tuple[str, ...]
    at: Place


@dataclass(frozen=True)
class Default:
    """What the engine would take for ``model`` on ``gpu``. ``fields`` names what was asked, the main one first."""

    gpu: str
    model: str
    fields: tuple[str, ...]
    outcomes: Outcomes

    @property
    def settled(self) -> PathOutcome | None:
        """The one outcome, when the source leaves nothing open."""
        ways = self.outcomes
        return ways.all[0] if len(ways.all) == 1 and ways.complete else None


@dataclass(frozen=True)
class Running:
    """What a live server says it resolved to: settings as text, each with where it was read."""

    url: str
    settings: Mapping[str, str]
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Inspection:
    """Everything found. ``silent`` says what the source could not answer, in sentences; ``assumed`` what every
    default rests on. ``given`` are flags that the launch is taken to set."""

    engine: str
    version: str | None
    origin: str
    choices: tuple[Choice, ...]
    defaults: tuple[Default, ...]
    flags: tuple[Flag, ...]
    environment: tuple[EnvironmentWrite, ...]
    assumed: str
    given: Mapping[str, str] = field(default_factory=dict)
    running: Running | None = None
    silent: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; places are ``file:line``."""
        return {
            "schema": SCHEMA,
            "engine": self.engine,
            "version": self.version,
            "origin": self.origin,
            "given": dict(self.given),
            "choices": [{**asdict(c), "options": list(c.options), "at": str(c.at)} for c in self.choices],
            "defaults": [_default(d) for d in self.defaults],
            "flags": [
                {"name": f.name, "default": f.default, "choices": list(f.choices), "help": f.help, "at": str(f.at)}
                for f in self.flags
            ],
            "environment": [{**asdict(e), "conditions": list(e.conditions), "at": str(e.at)} for e in self.environment],
            "assumed": self.assumed,
            "running": asdict(self.running) if self.running else None,
            "silent": list(self.silent),
        }


def _default(default: Default) -> dict[str, Any]:
    return {
        "gpu": default.gpu,
        "model": default.model,
        "fields": list(default.fields),
        "complete": default.outcomes.complete,
        "notes": list(default.outcomes.notes),
        "outcomes": [
            {
                "values": o.answer,
                "at": {name: str(at) for name, at in o.places.items()},
                "because": [{"at": str(d.at), "condition": d.text, "holds": d.holds} for d in o.because],
                "depends_on": [{"at": str(d.at), "condition": d.text, "holds": d.holds} for d in o.depends],
                "refused": o.refused,
            }
            for o in default.outcomes.all
        ],
    }
