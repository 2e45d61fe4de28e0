"""Servers that a run left up for the next one (``--keep-servers``): their records, their reuse, their end."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import psutil

from pytest_llmperf.engines.base import Endpoint
from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.server.identity import birth, runs
from pytest_llmperf.server.launch import Launch
from pytest_llmperf.server.process import MARGIN_S, EngineProcess, Remains
from pytest_llmperf.server.state import Lock, private_dir, try_lock, write_private


@dataclass(frozen=True)
class Kept:
    """One server left up: who it is, and enough to prove later that a PID is still the same process. What the record
    of another version of this plugin lacks is empty, so that the server is listed and stopped, and never reused."""

    id: str
    supervisor: int
    born: str
    key: str = ""
    digest: str = ""
    engine: str = ""
    label: str = "?"
    host: str = "?"
    port: int = 0
    started_at: float = 0.0
    startup_s: float = 0.0
    model: str = "?"
    log: str = ""
    grace: float = 5.0
    gpus: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    circumstances: Mapping[str, str] = field(default_factory=dict)
    api_key: str | None = field(default=None, repr=False)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.host, self.port, self.api_key)

    @property
    def process(self) -> psutil.Process | None:
        """The supervisor, when it is still the very process that was recorded."""
        if birth(self.supervisor) != self.born:
            return None
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(self.supervisor)
            return found if runs(found) else None
        return None

    def tree(self) -> list[psutil.Process]:
        """The engine's processes now."""
        process = self.process
        if process is not None:
            with contextlib.suppress(psutil.Error):
                return process.children(recursive=True)
        return []


@dataclass(frozen=True)
class KeptLife:
    """Holds up a server that an earlier session started."""

    kept: Kept
    state_dir: Path

    def ended(self, wait: float) -> str | None:
        process = self.kept.process
        if process is not None and wait:
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(wait)
        return None if self.kept.process is not None else "it ended after the run that left it up"

    def ask_to_stop(self) -> None:
        with contextlib.suppress(psutil.Error):
            if process := self.kept.process:
                process.send_signal(signal.SIGTERM)

    def stop(self) -> Remains:
        return end(self.kept, self.state_dir)


def of(launch: Launch, process: EngineProcess, digest: str, grace: float) -> Kept:
    """What to write down about a running launch."""
    return Kept(
        id=launch.id,
        key=launch.config.key,
        digest=digest,
        engine=launch.config.engine,
        label=launch.config.label,
        host=launch.endpoint.host,
        port=launch.endpoint.port,
        supervisor=process.supervisor_pid,
        born=birth(process.supervisor_pid) or "",
        started_at=launch.started_at,
        startup_s=launch.startup_s,
        model=launch.model,
        log=str(launch.log_path),
        grace=grace,
        gpus=launch.gpus,
        notes=launch.notes,
        circumstances=launch.circumstances,
        api_key=launch.endpoint.api_key,
    )


def record(kept: Kept, state_dir: Path) -> None:
    """Write ``kept`` down for later runs."""
    write_private(_folder(state_dir) / f"{kept.id}.json", json.dumps(asdict(kept), indent=1))


def claim(state_dir: Path, key: str, digest: str) -> tuple[Kept, Lock] | None:
    """A living kept server of that identity that no other run is using, with the lock that holds the claim."""
    for kept in list_kept(state_dir):
        if kept.key == key and kept.digest == digest:
            lock = try_lock(_folder(state_dir) / f"{kept.id}.lock")
            if lock is not None:
                return kept, lock
    return None


def list_kept(state_dir: Path) -> list[Kept]:
    """Servers that are up, oldest first. Records of servers that have ended are removed."""
    found = []
    for path in sorted(_folder(state_dir).glob("*.json")):
        try:
            kept = _read(json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            continue
        if kept.process is None:
            _forget(kept, state_dir)
        else:
            found.append(kept)
    return found


def in_use(kept: Kept, state_dir: Path) -> bool:
    """True while a run holds the server."""
    lock = try_lock(_folder(state_dir) / f"{kept.id}.lock")
    if lock is not None:
        lock.close()
    return lock is None


def stop_kept(state_dir: Path, ids: Sequence[str] = ()) -> list[str]:
    """Stop the servers with these launch ids (a unique beginning will do), or all that no run is using.

    Returns the ids that were stopped.

    Raises ``LlmperfError`` when an id fits no server or several.
    """
    up = list_kept(state_dir)
    chosen = [_one(up, wanted) for wanted in ids] or [k for k in up if not in_use(k, state_dir)]
    for kept in chosen:
        KeptLife(kept, state_dir).ask_to_stop()
    for kept in chosen:
        end(kept, state_dir)
    return [kept.id for kept in chosen]


def end(kept: Kept, state_dir: Path) -> Remains:
    """Stop one kept server and wait until its tree is gone."""
    process, tree = kept.process, kept.tree()
    left: list[psutil.Process] = []
    if process is not None:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(kept.grace + MARGIN_S + 10.0)
        left = [p for p in tree if runs(p)]
    _forget(kept, state_dir)
    return Remains(left=tuple(p.pid for p in left))


def _one(up: Sequence[Kept], wanted: str) -> Kept:
    found = [k for k in up if k.id.startswith(wanted)]
    if len(found) != 1:
        ids = ", ".join(k.id for k in (found or up)) or "none"
        raise LlmperfError(f"{wanted!r} fits {'several' if found else 'no'} kept servers (there are: {ids})")
    return found[0]


def _forget(kept: Kept, state_dir: Path) -> None:
    for suffix in (".json", ".lock"):
        (_folder(state_dir) / f"{kept.id}{suffix}").unlink(missing_ok=True)


def _read(data: Mapping[str, Any]) -> Kept:
    known = {f.name for f in fields(Kept)} & data.keys()
    values: dict[str, Any] = {k: tuple(data[k]) if isinstance(data[k], list) else data[k] for k in known}
    return Kept(**values)


def _folder(state_dir: Path) -> Path:
    return private_dir(state_dir / "kept")
