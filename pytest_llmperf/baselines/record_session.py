"""The end of a session, as far as baselines go: what is recorded, what is refused, what is remembered, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pytest_llmperf.baselines import attempts, store
from pytest_llmperf.baselines.attempts import Attempt
from pytest_llmperf.baselines.series import Series
from pytest_llmperf.baselines.update import Change, Fresh, Refusal, apply, lock, plan
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.records.text import percent
from pytest_llmperf.stats import far_apart

#: Standard deviation (logs) between launches that is usual for (engine, metric).
Usual: TypeAlias = "Callable[[str, str], float]"


@dataclass(frozen=True)
class SessionRecording:
    """How a session records: not at all without ``update``; ``now`` is UTC as ``series.utc`` writes it."""

    folder: Path
    state: Path
    now: str
    update: bool
    accept_regression: str | None = None
    ci: bool = False
    force: bool = False

    def run(self, found: Sequence[Fresh], usual: Usual) -> Iterator[tuple[str, str]]:
        """Record what the rules allow of ``found``, remember what was slower, and give (kind of message, text).

        A baseline that is broken is an ``error`` and keeps no other from being recorded. Raises ``BaselineError`` at
        the end where something could not be written.
        """
        known = attempts.read(self.folder, self.state)
        changes: list[Change] = []
        failed: dict[str, Attempt] = {}
        for fresh in found:
            name, source = self._name(fresh), fresh.source
            before = [x for x in known.get(name, ()) if x.source == source]
            planned = None
            if self.update:
                try:
                    planned = self._plan(fresh, before)
                except BaselineError as error:
                    yield "error", str(error)
                    continue
            if isinstance(planned, Change):
                changes.append(planned)
            elif source and (fresh.slower or (self.update and before)):
                failed[name] = Attempt(source, self.now, fresh.slower or "it passed")
            if isinstance(planned, Refusal):
                yield "refused", str(planned)
        yield from self._written(changes, failed, usual)

    def _name(self, fresh: Fresh) -> str:
        path = store.path_of(self.folder, fresh.test, fresh.engine, fresh.fingerprint)
        return path.relative_to(self.folder).as_posix()

    def _plan(self, fresh: Fresh, before: Sequence[Attempt]) -> Change | Refusal:
        path = self.folder / self._name(fresh)
        return plan(
            store.read(path) if path.exists() else None,
            fresh,
            accept_regression=self.accept_regression,
            ci=self.ci,
            force=self.force,
            attempts=before,
        )

    def _written(
        self, changes: Sequence[Change], failed: dict[str, Attempt], usual: Usual
    ) -> Iterator[tuple[str, str]]:
        done = {self._name(c.fresh): c.fresh for c in changes}
        if failed or done:
            with lock(self.folder, self.state):
                known = dict(attempts.read(self.folder, self.state))
                for name, one in failed.items():
                    known[name] = (*known.get(name, ()), one)
                for name in done.keys() & known.keys():  # accepted: what follows at this source is normal
                    known[name] = tuple(x for x in known[name] if x.source != done[name].source)
                attempts.write(self.folder, self.state, known)
        if changes:
            for line in apply(self.folder, changes, self.state):
                yield "update", line
        for name in done:
            for line in unsteady(store.read(self.folder / name), usual):
                yield "warning", line


def unsteady(series: Series, usual: Usual) -> Iterator[str]:
    """A sentence for each metric and host whose recorded launches disagree far more than is usual for the engine: which
    launches lie off, and what to do."""
    launches = series.current.launches
    for metric, host in sorted({(m, x.host) for x in launches for m in x.metrics}):
        held = [x for x in launches if x.host == host and metric in x.metrics]
        expected = usual(series.engine, metric)
        seen = far_apart([x.metrics[metric] for x in held], expected)
        if seen is not None:
            spread, off = seen
            ids = [held[i].id for i in off]
            yield (
                f"{series.test} [{series.engine}]: {metric}: the {len(held)} launches now recorded spread by "
                f"{percent(spread)}, where {percent(expected)} is usual; {', '.join(ids)} "
                f"{'lies' if len(ids) == 1 else 'lie'} off. Losses of that size will pass unseen: "
                f"`llmperf baselines drop {' '.join(ids)}` and record again on a quiet host"
            )
