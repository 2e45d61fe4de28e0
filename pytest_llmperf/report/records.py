"""What a session found, as values that JSON, terminal, Markdown, HTML and the baseline update all read.

Every report is made from these and from nothing else, so that all of them agree on every number. Workers send
``Result.to_json()`` with their test reports; the controller rebuilds them with ``Result.from_json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = 1

#: Every verdict a result may carry, worst first.
VERDICTS = ("invalid", "regressed", "inconclusive", "not_comparable", "no_baseline", "improved", "passed")
#: Verdicts that make the test fail.
FAILING = frozenset({"invalid", "regressed", "not_comparable", "no_baseline"})


@dataclass(frozen=True)
class LaunchValues:
    """One launch's repetitions of one metric. ``role``: ``screen`` or ``confirm`` (or ``record``)."""

    id: str
    values: tuple[float, ...]
    value: float
    role: str = "screen"


@dataclass(frozen=True)
class BaselineRef:
    """The baseline a result was judged against. ``path`` is relative to the baselines folder; ``age_days`` of its
    newest launch."""

    path: str
    launches: int
    value: float
    age_days: float | None = None
    prior_only: bool = False


@dataclass(frozen=True)
class Difference:
    """Something that differs between the baseline and this run (``engine version``: 0.5.16 -> 0.5.17)."""

    name: str
    baseline: str
    now: str


@dataclass(frozen=True)
class Result:
    """One metric of one test. ``value`` is over the launches that decided; ``band`` the limits they were held to;
    ``mde`` the smallest relative drop seen with 80 % power; ``change`` is value / baseline - 1."""

    nodeid: str
    test: str
    engine: str
    server: str
    metric: str
    unit: str
    higher_is_better: bool
    verdict: str
    value: float | None = None
    band: tuple[float, float] | None = None
    target: float | None = None
    mde: float | None = None
    change: float | None = None
    alpha: float | None = None
    nu: float | None = None
    baseline: BaselineRef | None = None
    launches: tuple[LaunchValues, ...] = ()
    reasons: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    guards: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    workload: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    location: str | None = None
    """``path:line`` of the test, for annotations."""
    measurement_s: float | None = None

    @property
    def direction(self) -> str:
        return "higher" if self.higher_is_better else "lower"

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form (DESIGN.md, Interface)."""
        out = asdict(self)
        out["direction"] = self.direction
        del out["higher_is_better"]
        out["launches"] = [{**asdict(x), "values": list(x.values)} for x in self.launches]
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        """Inverse of ``to_json``."""
        d = dict(data)
        d["higher_is_better"] = d.pop("direction") == "higher"
        d["band"] = tuple(d["band"]) if d.get("band") else None
        d["baseline"] = BaselineRef(**d["baseline"]) if d.get("baseline") else None
        d["launches"] = tuple(LaunchValues(**{**x, "values": tuple(x["values"])}) for x in d["launches"])
        d["differences"] = tuple(Difference(**x) for x in d["differences"])
        for name in ("reasons", "guards", "notes"):
            d[name] = tuple(d[name])
        return cls(**d)


@dataclass(frozen=True)
class LaunchRecord:
    """One life of one server."""

    id: str
    startup_s: float
    cache_state: str | None = None
    log: str | None = None
    reused: bool = False


@dataclass(frozen=True)
class ServerRecord:
    """One config and its launches in this session; a launch that failed is in ``failures`` with its cause."""

    key: str
    engine: str
    config: Mapping[str, Any]
    effective: Mapping[str, Any]
    launches: tuple[LaunchRecord, ...] = ()
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class SessionRecord:
    """Everything one pytest session found. ``session`` holds started, duration_s, command, gated, alpha, host,
    hardware, versions, and the messages said at the end (unused baselines, updates, refusals)."""

    session: Mapping[str, Any]
    servers: tuple[ServerRecord, ...] = ()
    results: tuple[Result, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "session": dict(self.session),
            "servers": [asdict(s) for s in self.servers],
            "results": [r.to_json() for r in self.results],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SessionRecord:
        """Inverse of ``to_json``. Raises ``ValueError`` for another schema."""
        if data.get("schema") != SCHEMA:
            raise ValueError(f"schema {data.get('schema')!r} is not {SCHEMA}")
        return cls(
            session=data["session"],
            servers=tuple(
                ServerRecord(**{**s, "launches": tuple(LaunchRecord(**x) for x in s["launches"])})
                for s in data["servers"]
            ),
            results=tuple(Result.from_json(r) for r in data["results"]),
        )
