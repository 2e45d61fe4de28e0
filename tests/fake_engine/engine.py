"""The pretended inference engine: admission, decode steps on their schedule, prefix cache and counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Protocol

from . import schedule
from .commandline import Options
from .loop import Loop
from .settings import Settings, hit
from .tokens import PrefixCache


class Job(Protocol):
    """One request in the engine's hands."""

    number: int
    prompt: tuple[int, ...]
    tokens: int
    arrived: float
    cached: int
    done: int
    planned: bool
    plan: schedule.Plan

    def on_start(self, start: float) -> None:
        """Prefill begins at ``start``."""

    def on_chunk(self, index: int, due: float) -> bool:
        """Chunk ``index`` of the plan is due; False ends the job here."""

    def on_end(self, due: float) -> None:
        """The last token was due at ``due``."""


def moment(job: Job, due: float) -> float:
    """When to do what is due at ``due``: then, or at once for a job that only says its times."""
    return 0.0 if job.planned else due


class Counters:
    """What /metrics shows."""

    def __init__(self) -> None:
        self.requests = self.prompt = self.cached = self.preemptions = 0
        self.given = 0  # output tokens so far
        self.generation = 0  # output tokens of requests that have ended
        self.drafts = self.draft_tokens = self.accepted = 0
        self.accepted_at = [0] * 32
        self.passes = {"prefill_none": 0, "decode_none": 0, "decode_cuda_graph": 0}


def planted(settings: Settings, options: Options, environ: Mapping[str, str]) -> float:
    """Product of the planted speed effects whose condition holds: ``flag=value``, ``VARIABLE=value`` or ``flag``."""
    factor = 1.0
    for condition, effect in settings.effects:
        name, _, value = condition.partition("=")
        seen = environ.get(name, options.given.get(name, ""))
        seen = {"attention_backend": options.backend, "engine": options.dialect}.get(name, seen)
        if str(seen) == value if value else seen:
            factor *= effect
    return factor


def acceptance(settings: Settings, options: Options, environ: Mapping[str, str]) -> float:
    """Tokens per verify step: forced by the engine's own means, by draft model, by default; 0 without speculation."""
    draft = options.draft
    if draft is None:
        return settings.spec_accept
    forced = environ.get("SGLANG_SIMULATE_ACC_LEN") or draft.get("synthetic_acceptance_length")
    if forced:
        return float(forced)
    by_model = dict(settings.spec_accept_by)
    return by_model.get(str(draft.get("model")), settings.spec_accept or 2.5)


class Engine:
    """Runs jobs. In lockstep every running job advances at the same ticks; else each has a schedule of its own."""

    def __init__(
        self, settings: Settings, options: Options, loop: Loop, launch: int, environ: Mapping[str, str]
    ) -> None:
        self.settings, self.options, self.loop, self.launch = settings, options, loop, launch
        self.speed = planted(settings, options, environ)
        self.accept = acceptance(settings, options, environ)
        drafted = settings.spec_draft or (options.draft or {}).get("num_speculative_tokens") or int(self.accept + 1)
        self.drafted = int(drafted) if self.accept else 0
        self.counters = Counters()
        self.cache = PrefixCache(options.block)
        self.running: dict[Job, float] = {}
        self.waiting: deque[Job] = deque()
        self.ready = False
        self.on_start: Callable[[Job], None] = lambda job: None
        self.on_step: Callable[[Job], None] = lambda job: None
        self._batch: dict[Job, tuple[int, int]] = {}  # (decode step, next chunk); step -1 while in prefill
        self._tick_at = 0.0

    # admission

    def submit(self, job: Job) -> None:
        if len(self.running) < self.options.max_running:
            self._start(job, job.arrived)
        else:
            self.waiting.append(job)

    def _start(self, job: Job, start: float) -> None:
        job.cached = self._cached(job.prompt)
        s = self.settings
        job.plan = schedule.plan(
            s,
            tokens=job.tokens,
            request=job.number,
            launch=self.launch,
            speed=self.speed,
            prompt=len(job.prompt),
            cached=job.cached,
            interval=self.options.interval,
            accept=self.accept,
            most=self.drafted + 1,
        )
        self.running[job] = start
        self.counters.requests += 1
        self.counters.passes["prefill_none"] += 1
        self.counters.prompt += len(job.prompt)
        self.counters.cached += job.cached
        if preempted := hit(s.preemptions, job.number):
            self.counters.preemptions += int(preempted)
        self.on_start(job)
        job.on_start(start)
        if not job.plan.chunks:
            due = start + job.plan.ttft
            self.loop.at(moment(job, due), lambda: self._nothing(job, due))
        elif s.lockstep and not job.planned:
            self._join(job, start + job.plan.due(0))
        else:
            self._schedule(job, 0)

    def _nothing(self, job: Job, due: float) -> None:
        """The model ended before its first token."""
        if job in self.running:
            job.on_end(due)
            self._leave(job, due)

    def _cached(self, prompt: tuple[int, ...]) -> int:
        if self.settings.always_cached:
            return int(self.settings.always_cached * len(prompt))
        return self.cache.lookup(prompt) if self.options.prefix_cache else 0

    def cancel(self, job: Job) -> None:
        """The client is gone."""
        if job in self.waiting:
            self.waiting.remove(job)
        self._leave(job, monotonic())

    def _leave(self, job: Job, due: float) -> None:
        if self.running.pop(job, None) is None:
            return
        self.counters.generation += job.done
        self._batch.pop(job, None)
        if self.waiting:
            following = self.waiting.popleft()
            self._start(following, max(due, following.arrived))

    @property
    def cold(self) -> bool:
        """This launch found its compile cache empty."""
        return hit(self.settings.cold, self.launch) is not None

    def captured(self, job: Job) -> bool:
        """True while this job's batches fit a captured graph."""
        return self.options.decode_graph and hit(self.settings.uncaptured, job.number) is None

    # every job on its own

    def _schedule(self, job: Job, index: int) -> None:
        due = self.running[job] + job.plan.due(job.plan.chunks[index].step)
        self.loop.at(moment(job, due), lambda: self._chunk_due(job, index, due))

    def _chunk_due(self, job: Job, index: int, due: float) -> None:
        if job in self.running and self._emit(job, index, due):
            self._schedule(job, index + 1)

    def _emit(self, job: Job, index: int, due: float) -> bool:
        """Give one chunk to the job; False when the job has ended."""
        going = job.on_chunk(index, due)
        if job not in self.running:
            return False
        chunk = job.plan.chunks[index]
        self._count(job, chunk.tokens, index)
        self.on_step(job)
        if going and index + 1 < len(job.plan.chunks):
            return True
        if going:
            job.on_end(due)
        self._leave(job, due)
        return False

    def _count(self, job: Job, tokens: int, index: int) -> None:
        counters = self.counters
        counters.given += tokens
        before, now = job.plan.chunks[index - 1].step if index else 0, job.plan.chunks[index].step
        counters.passes["decode_cuda_graph" if self.captured(job) else "decode_none"] += now - before
        if job.plan.accepted:
            steps = job.plan.accepted[before:now]
            counters.drafts += len(steps)
            counters.draft_tokens += len(steps) * self.drafted
            counters.accepted += sum(steps) - len(steps)
            for taken in steps:
                for place in range(taken - 1):
                    counters.accepted_at[place] += 1

    # all together

    def _join(self, job: Job, ready: float) -> None:
        self._batch[job] = (-1, 0)
        self.loop.at(ready, lambda: self._ready(job, ready))

    def _ready(self, job: Job, ready: float) -> None:
        if job not in self._batch:
            return
        idle = all(step < 0 for step, _ in self._batch.values())
        self._batch[job] = (0, 0)
        if idle:
            self._tick(ready)

    def _tick(self, tick: float) -> None:
        """Every job that decodes advances by one step; a job that is ready meanwhile joins at the next tick."""
        active = [(job, *place) for job, place in self._batch.items() if place[0] >= 0]
        if not active:
            return
        pause = max(job.plan.step_s for job, _, _ in active) * (1 + self.settings.per_stream * (len(active) - 1))
        for job, step, first in active:
            pause += sum(s for at, s in job.plan.stalls if at == step + 1)
            index = first
            while job in self._batch and job.plan.chunks[index].step <= step:
                if not self._emit(job, index, tick):
                    break
                index += 1
            if job in self._batch:
                self._batch[job] = (step + 1, index)
        self._tick_at = following = tick + pause
        self.loop.at(following, lambda: self._tick(following) if following == self._tick_at else None)
