"""Whose answers are these? One life of a server that somebody else runs, a later one, or several servers' by turns."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from pytest_llmperf.engines.base import Endpoint, Engine
from pytest_llmperf.server import http
from pytest_llmperf.server.launch import new_id
from pytest_llmperf.server.process import Remains

#: Looks at who answers, each on a connection of its own: a balancer gives them to its replicas by turns, or by chance.
LOOKS = 5
#: What is the same in each answer of one server about its models (``created`` and permissions are not).
_OF_A_MODEL = ("id", "root", "max_model_len", "owned_by")


@dataclass(frozen=True)
class Seen:
    """What several looks saw: birthmarks of servers, and lists of models. One of each where one server answers; none
    where it does not tell."""

    births: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()

    def __or__(self, other: Seen) -> Seen:
        return Seen(self.births | other.births, self.models | other.models)

    @property
    def disagreement(self) -> str | None:
        """How answers disagree about who gave them; None when they do not."""
        if len(self.births) > 1:
            return f"{len(self.births)} servers answer there"
        if len(self.models) > 1:
            return f"its answers name different models: {' or '.join(sorted(self.models))}"
        return None


@dataclass(frozen=True)
class AttachedLife:
    """Somebody else's server: it lives as long as it answers, and is never stopped from here."""

    endpoint: Endpoint
    engine: Engine
    seen: Seen

    def ended(self, wait: float) -> str | None:
        """That another launch answers now; an answer that does not come is the caller's to judge.

        It takes questions to know it, and time: without ``wait`` (in the midst of a measurement) none is asked.
        """
        if not wait or len(self.seen.births) != 1 or not look(self.endpoint, self.engine, 1).births - self.seen.births:
            return None
        if look(self.endpoint, self.engine).births & self.seen.births:
            return None  # both are up: a balancer's doing
        return (
            "it was restarted since this session attached to it, and is another launch now: what was measured "
            "meanwhile belongs to neither\nwhat to do: run again, and let nobody restart it"
        )

    def disagreement(self) -> str | None:
        """How answers until now disagree about who gave them, after another few looks; None when they do not."""
        return (self.seen | look(self.endpoint, self.engine)).disagreement

    def ask_to_stop(self) -> None:
        return

    def stop(self) -> Remains:
        return Remains()


def look(endpoint: Endpoint, engine: Engine, times: int = LOOKS) -> Seen:
    """Ask ``times`` times who answers."""
    probe = http.LiveProbe(endpoint, str, timeout=10.0)
    births: set[str | None] = set()
    models: set[str | None] = set()
    for turn in range(times):
        births.add(engine.birthmark(probe))
        if turn % 2 == 0:  # another request now and then, lest an even number a look always meets the same of two
            models.add(_models(probe.json("/v1/models")))
    return Seen(frozenset(filter(None, births)), frozenset(filter(None, models)))


def _models(body: object) -> str | None:
    entries = body.get("data") if isinstance(body, dict) else None
    if not isinstance(entries, list):
        return None
    return json.dumps([{k: e[k] for k in _OF_A_MODEL if k in e} for e in entries if isinstance(e, dict)])


def launch_id(endpoint: Endpoint, seen: Seen) -> str:
    """The same for every run that meets this life of the server, so that it never counts as two launches.

    Where the engine tells neither when it started nor anything else of its own, every visit to that URL counts as the
    same launch.
    """
    [born] = seen.births if len(seen.births) == 1 else ["attached"]
    try:
        stamp = mark = new_id(float(born)).rpartition("-")[0]
    except ValueError:
        stamp, mark = "attached", " ".join(sorted(seen.births)) or "attached"
    return f"{stamp}-{hashlib.sha256(f'{endpoint.root_url} {mark}'.encode()).hexdigest()[:8]}"
