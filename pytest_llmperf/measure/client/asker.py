"""Builds the requests of one measurement and plays them one at a time, each on a connection of its own."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import replace
from types import TracebackType
from typing import Any

from pytest_llmperf.measure.client.body import parse_http
from pytest_llmperf.measure.client.compiler import Call, Compiler, proxy_for, target_of
from pytest_llmperf.measure.client.connection import Connection
from pytest_llmperf.measure.client.raw import RawSender
from pytest_llmperf.measure.client.request_outcome import RequestOutcome, finish
from pytest_llmperf.measure.client.wire import Read, Recording, connect, exchange, hold_stamps, stamped
from pytest_llmperf.measure.limits import Limits
from pytest_llmperf.measure.prompts import PromptLedger, TextPrompts, TokenPrompts
from pytest_llmperf.measure.tokenizer import Tokenizer, ordinary_ids
from pytest_llmperf.measure.workloads import Workload

#: Between connecting and the start of the clock: the server accepts meanwhile, so that no request pays for it.
_ACCEPT_S = 0.002


class Asker:
    """Life cycle: made before the warm-up, closed after the last request (a context manager)."""

    def __init__(
        self, connection: Connection, workload: Workload, *, seed: str, ledger: PromptLedger, limits: Limits
    ) -> None:
        self.connection, self.workload, self.limits = connection, workload, limits
        self.key = ledger.open(seed)
        self.continuous_usage = False
        self._made: Counter[str] = Counter()
        self.target = target_of(connection.endpoint)
        traits = connection.engine.traits
        with ExitStack() as parts:
            parts.enter_context(hold_stamps())
            self._compiler = parts.enter_context(closing(Compiler(connection.endpoint)))
            self._raw: RawSender | None = None
            if proxy_for(connection.endpoint):
                self._raw = parts.enter_context(closing(RawSender(connection.endpoint, limits)))
            tokenizer: Tokenizer | None = None
            if traits.tokenize_path:
                reached = Tokenizer(connection.endpoint, traits.tokenize_path, connection.model)
                tokenizer = parts.enter_context(closing(reached))
            self._prompts: TokenPrompts | TextPrompts
            if traits.token_ids and not workload.chat:
                self._prompts = TokenPrompts(ordinary_ids(tokenizer), ledger, self.key)
            else:
                self._prompts = TextPrompts(ledger, self.key, tokenizer.count if tokenizer else None)
            self._parts = parts.pop_all()

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._parts.close()

    @property
    def transport(self) -> str:
        """How requests travel: ``socket`` (ours), ``tls`` (ours), ``raw`` (openai's client, through a proxy)."""
        if self._raw is not None:
            return "raw"
        return "tls" if self.target.tls is not None else "socket"

    @property
    def evidence(self) -> dict[str, Any]:
        """JSON-ready: how requests were made and sent."""
        return {"transport": self.transport, "continuous_usage": self.continuous_usage, "prompts": self.key}

    def call(self, role: str) -> Call:
        """The next request of its role (``warmup``, ``measured``), ready to be sent."""
        index = self._made[role]
        self._made[role] += 1
        work, engine, config = self.workload, self.connection.engine, self.connection.config
        prompt = self._prompts.draw(role, index, work.prompt_tokens)
        arguments: dict[str, Any] = {
            "model": self.connection.model,
            "max_tokens": work.output_tokens,
            "temperature": 0.0,
            "stream_options": {"include_usage": True},
            "extra_body": engine.request_body(config, work.output_tokens),
        }
        if self.continuous_usage:
            arguments["stream_options"]["continuous_usage_stats"] = True
        if work.chat:
            arguments["messages"] = [{"role": "user", "content": prompt}]
        else:
            arguments["prompt"] = prompt
        return self._compiler.compile(
            f"{self.connection.launch_id}-{role}-{index}",
            arguments,
            prompt_tokens=work.prompt_tokens,
            output_tokens=work.output_tokens,
        )

    def ask(self, call: Call) -> RequestOutcome:
        """Play one request to its end. Raises ``ServerDiedError`` when the server is gone; any other failure is in
        the outcome. No socket stays open, whatever ends this."""
        to = self.connection
        outcome = self._raw.send(call, to) if self._raw is not None else finish(call, self._exchange(call), to)
        if outcome.problems:
            self.connection.check()
        return outcome

    def _exchange(self, call: Call) -> Recording:
        try:
            line = connect(self.target, self.limits.connect_s)
        except OSError as error:
            return Recording(0, (), (0, 0), error=f"cannot connect: {error.strerror or error}")
        with line:
            time.sleep(_ACCEPT_S)  # before the clock runs; a server tells nobody when it has accepted
            return exchange(line, call.payload, self._silent)

    def _silent(self, seconds: float, reads: list[Read]) -> str | None:
        """Why a silent stream ends now: it was complete (``""``), it timed out, or (raised) the server died."""
        if reads and parse_http(stamped(Recording(0, tuple(reads), (0, 0)))).complete:
            return ""
        self.connection.check()
        limit = self.limits.idle_s if reads else self.limits.first_token_s
        return f"timed out: nothing came for {seconds:.0f} s" if seconds >= limit else None

    def calibrate(self) -> list[RequestOutcome]:
        """The first request of all, which learns what the server adds to a text prompt (BOS, chat template) and
        whether usage is wanted in every chunk. Returns the outcomes that count: a prompt of the wrong length is the
        lesson, not a failure."""
        outcome = self.ask(self.call("warmup"))
        told = outcome.answer.prompt_tokens
        if isinstance(self._prompts, TextPrompts) and told is not None and told != outcome.call.prompt_tokens:
            self._prompts = replace(self._prompts, overhead=max(told - outcome.call.prompt_tokens, 0))
            outcome = self.ask(self.call("warmup"))
        self.learn(outcome)
        return [outcome]

    def learn(self, outcome: RequestOutcome) -> None:
        """Ask for usage in every chunk from now on when chunks were not tokens and the engine offers it."""
        if outcome.timing is not None and outcome.timing.slack:
            self.continuous_usage = self.connection.engine.traits.continuous_usage
