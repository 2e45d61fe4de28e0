"""What ``--update-baselines`` records: the rules (pure) and their application (atomic, under a lock).

The rules look at the verdicts of one test's metrics together, because a launch is stored whole:

=============================  =====================================================================
any invalid or inconclusive    nothing is stored
any regressed, or suspect      refused, unless a reason is given: then a new epoch with that reason
after such a session at the    the same
same source
any improved                   a new epoch; the old one stays as history
passed, or no baseline yet     the launches are added to the epoch (all of them: leaving the suspect
                               ones out would make the baseline look steadier than it is)
=============================  =====================================================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pytest_llmperf.baselines import provenance, store
from pytest_llmperf.baselines.attempts import SUSPECT, Attempt
from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.series import Epoch, Series, StoredLaunch
from pytest_llmperf.errors import BaselineError

FIRST = "first recording"
_LOCK_WAIT = 60.0


@dataclass(frozen=True)
class Fresh:
    """What a session found of one test under one fingerprint: its launches and the verdict of each gated metric."""

    test: str
    engine: str
    fingerprint: Fingerprint
    launches: tuple[StoredLaunch, ...]
    verdicts: Mapping[str, str]

    @property
    def label(self) -> str:
        return f"{self.test} [{self.engine}]"

    @property
    def source(self) -> str | None:
        """What was under test; None where that is not known."""
        return provenance.source(self.launches[-1].provenance) if self.launches else None

    @property
    def slower(self) -> str:
        """``decode_tok_s regressed``: what makes this a failed attempt; empty when it is none."""
        found = sorted((m, v) for m, v in self.verdicts.items() if v in ("regressed", SUSPECT))
        return ", ".join(f"{metric} {verdict}" for metric, verdict in found)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form: how an xdist worker hands it to the process that writes."""
        return {**asdict(self), "fingerprint": dict(self.fingerprint.fields)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Fresh:
        """Inverse of ``to_json``."""
        launches = tuple(
            StoredLaunch(**{**x, "metrics": {k: tuple(v) for k, v in x["metrics"].items()}}) for x in data["launches"]
        )
        return cls(**{**data, "fingerprint": Fingerprint(data["fingerprint"]), "launches": launches})


@dataclass(frozen=True)
class Change:
    """Launches to record. ``base`` holds the launch ids of the epoch they were judged against, empty without one;
    ``reason`` starts a new epoch."""

    fresh: Fresh
    base: frozenset[str] = frozenset()
    reason: str | None = None

    def onto(self, series: Series | None) -> tuple[Series, str]:
        """``series``, as it is on disk now, with this change, and what changed in a sentence.

        Another run may have written since the change was planned. Its launches stay: an epoch that it started from
        the same base takes ours too, and launches that agree with an older epoch go into that one.
        """
        fresh = self.fresh
        if series is None:
            epoch = Epoch(self.reason or FIRST, ()).plus(fresh.launches)
            made = Series(fresh.test, fresh.engine, fresh.fingerprint, (epoch,))
            return made, f"{fresh.label}: recorded {_count(epoch.launches)} ({epoch.reason})"
        stored = frozenset(x.id for e in series.epochs for x in e.launches)
        new = [x for x in fresh.launches if x.id not in stored]
        if not new:
            return series, f"{fresh.label}: nothing new, these launches are stored already"
        if self.reason and series.current.ids & self.base:
            return series.starting(Epoch(self.reason, ()).plus(new)), (
                f"{fresh.label}: new epoch with {_count(new)} ({self.reason}); the old one is kept"
            )
        grown = series.extending(frozenset() if self.reason else self.base, new)
        return grown, f"{fresh.label}: added {_count(new)}"


@dataclass(frozen=True)
class Refusal:
    """Nothing is recorded, and why."""

    fresh: Fresh
    why: str

    def __str__(self) -> str:
        return f"{self.fresh.label}: not recorded: {self.why}"


def plan(
    series: Series | None,
    fresh: Fresh,
    *,
    accept_regression: str | None = None,
    ci: bool = False,
    force: bool = False,
    attempts: Sequence[Attempt] = (),
) -> Change | Refusal:
    """What to record of ``fresh``, given the stored series of the same fingerprint and the failed attempts at the same
    source. Reads and writes nothing."""
    if ci and not force:
        return Refusal(fresh, "CI is set; baselines are recorded there only with --update-baselines=force")
    if not fresh.launches:
        return Refusal(fresh, "it has no launch")
    faults = [x.fault for x in fresh.launches if x.fault]
    if faults:
        return Refusal(fresh, faults[0])
    by_verdict = {v: sorted(m for m, x in fresh.verdicts.items() if x == v) for v in fresh.verdicts.values()}
    for verdict in ("invalid", "inconclusive"):
        if verdict in by_verdict:
            return Refusal(fresh, f"{', '.join(by_verdict[verdict])} {verdict}; run it again when that is mended")
    base = series.current.ids if series else frozenset()
    accepted = (accept_regression or "").strip()
    regressed, improved = by_verdict.get("regressed", []), by_verdict.get("improved", [])
    if why := _slower(fresh, by_verdict, attempts):
        what = ", ".join(regressed + by_verdict.get(SUSPECT, [])) or f"what regressed on {attempts[0].when[:10]}"
        return Change(fresh, base, f"accepted regression of {what}: {accepted}") if accepted else Refusal(fresh, why)
    return Change(fresh, base, f"{', '.join(improved)} improved" if improved else None)


def _slower(fresh: Fresh, by_verdict: Mapping[str, Sequence[str]], attempts: Sequence[Attempt]) -> str:
    """Why ``fresh`` must not be recorded as normal; empty when it may."""
    accept = "to accept that, add --accept-regression 'why it is right'"
    if "regressed" in by_verdict:
        return f"{', '.join(by_verdict['regressed'])} regressed; {accept}"
    if SUSPECT in by_verdict:
        return (
            f"{', '.join(by_verdict[SUSPECT])} looks slower: no fresh launches have proven it, but all launches "
            f"together are too slow to be recorded as normal; {accept}"
        )
    if attempts:
        return (
            f"attempt {len(attempts) + 1} at the same source ({attempts[0].source}), and on {attempts[0].when} "
            f"{attempts[0].found}: measuring again until it is green would record a loss as normal. Find the cause and "
            "commit what mends it; where it was the machine, or the engine was rebuilt under the same version, "
            f"`llmperf baselines forget '{fresh.test}'`; {accept}"
        )
    return ""


def apply(folder: Path, changes: Sequence[Change], state: Path) -> list[str]:
    """Write ``changes`` under ``folder`` and say what was done, one sentence per change.

    ``state`` is a private folder outside the repository: the lock lives there. Every file is read again under the
    lock, so that what another run wrote meanwhile stays. Raises ``BaselineError`` after the last change when some
    could not be written; their files are as they were.
    """
    done: list[str] = []
    failed: list[str] = []
    with lock(folder, state):
        for change in changes:
            try:
                done.append(_apply(folder, change))
            except BaselineError as error:
                failed.append(str(error))
    if failed:
        written = f"\nrecorded nevertheless:\n  {chr(10).join(done)}" if done else ""
        raise BaselineError(
            f"{len(failed)} of {len(changes)} baselines not recorded:\n  " + "\n  ".join(failed) + written
        )
    return done


def _apply(folder: Path, change: Change) -> str:
    fresh = change.fresh
    path = store.path_of(folder, fresh.test, fresh.engine, fresh.fingerprint)
    series, message = change.onto(store.read(path) if path.exists() else None)
    store.write(path, series)
    return message + _mixed(series.current.launches)


def _mixed(launches: Sequence[StoredLaunch]) -> str:
    """What follows on the news of a recording whose launches did not all begin alike; mostly nothing."""
    cold = [x for x in launches if x.cache == "cold"]
    if not cold or all(x.cache != "warm" for x in launches):
        return ""
    return (
        f"; it now has {_count(launches)}, of which {len(cold)} compiled their kernels, others loaded them, and that "
        f"alone can change the speed: `llmperf baselines drop {cold[0].id}` removes one of the former"
    )


@contextmanager
def lock(folder: Path, state: Path) -> Iterator[None]:
    """Hold the right to write under ``folder``, against every process of this user on this host.

    Raises ``BaselineError`` when another run holds it for longer than a minute.
    """
    name = hashlib.sha256(str(folder.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    path = state / f"baselines-{name}.lock"
    holding = FileLock(path, timeout=_LOCK_WAIT)
    try:
        state.mkdir(parents=True, exist_ok=True)
        holding.acquire()
    except Timeout as error:
        raise BaselineError(f"another run has been writing {folder} for {_LOCK_WAIT:g} s; try again later") from error
    except OSError as error:
        raise BaselineError(f"the lock {path} cannot be taken ({error.strerror}); check that folder") from error
    try:
        yield
    finally:
        holding.release()


def _count(launches: Sequence[StoredLaunch]) -> str:
    return f"{len(launches)} launch{'es' if len(launches) != 1 else ''}"
