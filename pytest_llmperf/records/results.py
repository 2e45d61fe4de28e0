"""What a session found, as values that JSON, terminal, Markdown, HTML and the baseline update all read.

Every report is made from these and from nothing else, so that all of them agree on every number. Workers send
``Result.to_json()`` with their test reports; the controller rebuilds them with ``Result.from_json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_llmperf.records.encode import build, numbers, pair, plain
from pytest_llmperf.records.gaps_and_sweeps import Curve, Gap, Sweep

SCHEMA = 1

#: Every verdict a result may carry, worst first.
VERDICTS = (
    "error", "invalid", "regressed", "below_target", "inconclusive", "not_comparable", "no_baseline", "improved",
    "passed",
)  # fmt: skip
#: Verdicts that make the test fail.
FAILING = frozenset({"error", "invalid", "regressed", "below_target", "not_comparable", "no_baseline"})
#: Days after which a baseline's age is said.
OLD_DAYS = 90


@dataclass(frozen=True)
class LaunchValues:
    """One launch's repetitions of one metric, in the order of the run. ``value`` is the launch's location.
    ``role``: ``screen``, ``confirm`` (fresh launches that decided) or ``record``."""

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
class Distribution:
    """Waits in ms over the launches that decided: ``ttft_ms`` by request, ``itl_ms`` by token. ``percentiles`` by name
    (``p0`` the least, ``p100`` the most). ``counts`` (b,) between ``edges`` (b + 1,); what lies beyond the last edge is
    in ``count`` alone."""

    metric: str
    count: int
    percentiles: Mapping[str, float]
    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Distribution:
        return build(cls, data, edges=tuple(data["edges"]), counts=tuple(data["counts"]))


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
    """``path:line`` of the test (line from 1), for annotations."""
    measurement_s: float | None = None
    host_known: bool | None = None
    """False when the baseline has no launch on this host (its band is then wider)."""
    drift: str | None = None
    """Said when the newest launches are credibly worse than those that the epoch began with, whatever the verdict."""
    weak: bool = False
    """``mde`` exceeds what must not go unseen (the test's ``max_regression``, else 10 %): a pass says little."""
    required_launches: int | None = None
    """Baseline launches that would mend that; None when it is no matter or when none would."""
    latencies: tuple[Distribution, ...] = ()

    @property
    def direction(self) -> str:
        return "higher" if self.higher_is_better else "lower"

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form, in built-in types only; ``direction`` stands for ``higher_is_better``."""
        out: dict[str, Any] = plain(self)
        out["direction"] = self.direction
        del out["higher_is_better"]
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        """Inverse of ``to_json``."""
        ref = data.get("baseline")
        return build(
            cls,
            data,
            higher_is_better=data["direction"] == "higher",
            band=pair(data.get("band")),
            baseline=build(BaselineRef, ref, value=numbers([ref["value"]])[0]) if ref else None,
            launches=tuple(
                build(LaunchValues, x, values=numbers(x["values"]), value=numbers([x["value"]])[0])
                for x in data["launches"]
            ),
            differences=tuple(build(Difference, x) for x in data.get("differences", ())),
            latencies=tuple(map(Distribution.from_json, data.get("latencies", ()))),
            **{name: tuple(data.get(name, ())) for name in ("reasons", "guards", "notes")},
        )


@dataclass(frozen=True)
class LaunchRecord:
    """One life of one server."""

    id: str
    startup_s: float
    cache_state: str | None = None
    log: str | None = None
    reused: bool = False
    spent: str = ""
    """Why nothing was measured on it: ``compiled, not recorded``."""


@dataclass(frozen=True)
class ServerRecord:
    """One config and its launches in this session; a launch that failed is in ``failures`` with its cause."""

    key: str
    engine: str
    config: Mapping[str, Any]
    effective: Mapping[str, Any]
    launches: tuple[LaunchRecord, ...] = ()
    failures: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ServerRecord:
        launches = tuple(build(LaunchRecord, x) for x in data["launches"])
        return build(cls, data, launches=launches, failures=tuple(data.get("failures", ())))


#: Kinds of ``SessionRecord.session["messages"]``, most pressing first.
MESSAGE_KINDS = ("error", "refused", "unused", "drift", "warning", "update", "note")


def message(kind: str, text: str) -> dict[str, str]:
    """One thing said at the end of the session. Raises ``ValueError`` for a kind that is not in MESSAGE_KINDS."""
    if kind not in MESSAGE_KINDS:
        raise ValueError(f"message kind {kind!r} is not one of {', '.join(MESSAGE_KINDS)}")
    return {"kind": kind, "text": text}


@dataclass(frozen=True)
class SessionRecord:
    """Everything one pytest session found.

    ``session`` holds, each optional: ``started`` (ISO 8601, UTC), ``duration_s``, ``command`` (as a shell would take
    it), ``gated`` (metrics gated), ``alpha`` (level of each), ``level`` (of the whole session), ``host``, ``hardware``
    (mapping, ``Hardware`` as a dict), ``versions`` (package to version), ``ignored_guards`` (names), ``interrupted``
    (true after Ctrl-C) and ``messages``, a list of ``message(kind, text)``: what is said at the end.
    """

    session: Mapping[str, Any]
    servers: tuple[ServerRecord, ...] = ()
    results: tuple[Result, ...] = ()
    gaps: tuple[Gap, ...] = ()
    sweeps: tuple[Sweep, ...] = ()
    curves: tuple[Curve, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form; ``schema.json`` describes it."""
        return {
            "schema": SCHEMA,
            "session": plain(self.session),
            "servers": plain(self.servers),
            "results": [r.to_json() for r in self.results],
            "gaps": plain(self.gaps),
            "sweeps": plain(self.sweeps),
            "curves": plain(self.curves),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SessionRecord:
        """Inverse of ``to_json``. Raises ``ValueError`` for another schema."""
        if data.get("schema") != SCHEMA:
            raise ValueError(f"schema {data.get('schema')!r} is not {SCHEMA}")
        return cls(
            session=data["session"],
            servers=tuple(ServerRecord.from_json(s) for s in data["servers"]),
            results=tuple(Result.from_json(r) for r in data["results"]),
            gaps=tuple(Gap.from_json(g) for g in data.get("gaps", ())),
            sweeps=tuple(Sweep.from_json(s) for s in data.get("sweeps", ())),
            curves=tuple(Curve.from_json(c) for c in data.get("curves", ())),
        )
