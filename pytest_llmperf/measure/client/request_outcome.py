"""One finished request: its times, or the reason why it must not count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_llmperf.measure.client.answer import Answer, read_answer
from pytest_llmperf.measure.client.body import Response, parse_http, split_events
from pytest_llmperf.measure.client.compiler import Call
from pytest_llmperf.measure.client.connection import Connection
from pytest_llmperf.measure.client.timing import Timing, timing
from pytest_llmperf.measure.client.wire import Recording, stamped
from pytest_llmperf.server_config import MASK


@dataclass(frozen=True)
class RequestOutcome:
    """``problems`` is empty for a valid request, which then has a ``timing``. ``sent_ns`` is on the monotonic clock."""

    call: Call
    sent_ns: int
    answer: Answer
    timing: Timing | None
    problems: tuple[str, ...]
    merged: int = 0
    """Chunks that arrived in one read with a later one, and so carry its stamp."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """The problems with the request named."""
        return tuple(f"request {self.call.id}: {problem}" for problem in self.problems)


def finish(call: Call, recording: Recording, connection: Connection) -> RequestOutcome:
    """Parse a recording and check that the request is comparable: complete, whole, of the asked length and model."""
    reads = stamped(recording)
    return conclude(call, recording.sent_ns, parse_http(reads), recording.error, connection)


def conclude(call: Call, sent_ns: int, response: Response, error: str | None, connection: Connection) -> RequestOutcome:
    """The outcome of a response whose body pieces are stamped; ``error`` is how its connection failed."""
    answer = Answer()
    problems = _broken(response, error, connection.endpoint.api_key)
    if not problems or response.status == 200:
        answer = read_answer(split_events(response.pieces))
        problems = [answer.problem] if answer.problem else problems or _unlike(call, answer, connection.model)
    times = None if problems else timing(answer, sent_ns)
    if times is not None and len(times.at) < 2 and times.total > 1:
        # no rate at all, so not an outlier that the other repetitions could outvote
        cause = "the server did not stream, or they lay waiting while this process stood still: measure again"
        problems = [f"all {times.total:.0f} tokens came at once: {cause}"]
    return RequestOutcome(
        call=call,
        sent_ns=sent_ns,
        answer=answer,
        timing=None if problems else times,
        problems=tuple(problems),
        merged=len(answer.at_ns) - len(times.at) if times is not None else 0,
    )


def _broken(response: Response, error: str | None, secret: str | None) -> list[str]:
    if response.status is None:
        return [f"no answer: {error or response.error}"]
    if response.status != 200:
        said = response.text.replace(secret, MASK) if secret else response.text
        return [f"HTTP {response.status}: {' '.join(said.split())[:300]}"]
    if error or not response.complete:
        return [f"the stream was cut off: {error or response.error}"]
    if not response.content_type.startswith("text/event-stream"):
        return [f"the answer is {response.content_type or 'of no declared type'}, not an event stream"]
    return []


def _unlike(call: Call, answer: Answer, model: str) -> list[str]:
    """Every way in which a whole answer is not the one that was asked for."""
    out: list[str] = []
    if answer.finish_reason is None:
        out.append("the stream ended without a finish_reason")
    elif answer.finish_reason != "length":
        out.append(
            f"finish_reason is {answer.finish_reason!r} instead of 'length': the model stopped by itself "
            "(does the engine honour ignore_eos?)"
        )
    if answer.model != model:
        out.append(f"answered by model {answer.model!r}, asked for {model!r}")
    if answer.completion_tokens is None:
        out.append("the server sent no usage, so its tokens cannot be counted")
    elif answer.completion_tokens != call.output_tokens:
        out.append(f"{answer.completion_tokens} output tokens instead of {call.output_tokens}")
    if answer.prompt_tokens is not None and answer.prompt_tokens != call.prompt_tokens:
        out.append(f"the prompt had {answer.prompt_tokens} tokens instead of {call.prompt_tokens}")
    m, total = len(answer.at_ns), answer.completion_tokens or 0
    if not m:
        out.append("no chunk had any content")
    elif total and m > total:
        out.append(f"{m} chunks with content for {total} tokens: a chunk's time is not a token's time")
    return out


def delay_p99_ms(outcomes: Sequence[RequestOutcome]) -> float | None:
    """99th percentile of user minus kernel stamps over all chunks, None without kernel stamps."""
    delays = [d for o in outcomes for d in o.answer.delays_ns]
    return float(np.percentile(delays, 99)) / 1e6 if delays else None
