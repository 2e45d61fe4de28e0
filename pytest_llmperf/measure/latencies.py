"""How long the answers of a measurement let wait, request by request and token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_llmperf.measure.client.request_outcome import RequestOutcome
from pytest_llmperf.measure.client.timing import Floats


@dataclass(frozen=True)
class Latencies:
    """``ttft_ms`` (r,): of each valid request. ``itl_ms`` (g,): every gap between their chunks, per token; ``tokens``
    (g,): how many tokens came after it."""

    ttft_ms: Floats
    itl_ms: Floats
    tokens: Floats

    @classmethod
    def of(cls, outcomes: Sequence[RequestOutcome]) -> Latencies:
        timings = [o.timing for o in outcomes if o.timing is not None]
        tokens = [t.tokens[1:] for t in timings]
        return cls(
            np.array([t.ttft_ms for t in timings]),
            np.concatenate([np.empty(0), *(t.gaps_ms / n for t, n in zip(timings, tokens, strict=True))]),
            np.concatenate([np.empty(0), *tokens]),
        )

    @classmethod
    def pooled(cls, several: Sequence[Latencies]) -> Latencies:
        """Those of several launches as one."""
        none = np.empty(0)
        return cls(
            np.concatenate([none, *(x.ttft_ms for x in several)]),
            np.concatenate([none, *(x.itl_ms for x in several)]),
            np.concatenate([none, *(x.tokens for x in several)]),
        )
