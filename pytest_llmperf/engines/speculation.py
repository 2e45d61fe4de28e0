"""The portable ``speculative`` key: ``{"method": "eagle3", "model": "org/drafter", "num_tokens": 3}``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pytest_llmperf.errors import did_you_mean

#: Tokens that prompt lookup must find again before it guesses on, where an engine leaves that to us.
LOOKUP = 4


@dataclass(frozen=True)
class Speculation:
    """Speculative decoding as declared; ``None`` leaves a choice to the engine.

    ``num_tokens`` are drafted per step (on one path). ``num_steps`` and ``topk`` shape a draft tree where the engine
    has one. ``acceptance_length`` forces that many tokens per step on average, to measure kernels apart from a drafter.
    """

    method: str
    model: str | None = None
    num_tokens: int | None = None
    num_steps: int | None = None
    topk: int | None = None
    acceptance_length: float | None = None

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> Speculation:
        """Reads what ``problems`` found nothing to say about."""
        return cls(**mapping)

    @staticmethod
    def problems(
        engine: str,
        mapping: Mapping[str, Any],
        methods: Collection[str],
        *,
        unsupported: Sequence[str] = (),
        needed: Sequence[str] = (),
    ) -> list[str]:
        """What ``engine``, which offers ``methods``, cannot honour in ``mapping``, one sentence each."""
        known = [f.name for f in fields(Speculation) if f.name not in unsupported]
        found = [
            f"{engine} has no speculative key {key!r}{did_you_mean(str(key), known)}; it takes {', '.join(known)}"
            for key in mapping
            if key not in known
        ]
        method = str(mapping.get("method") or "")
        if not method:
            found.append(f"{engine} needs a speculative method: one of {', '.join(sorted(methods))}")
        elif method not in methods:
            found.append(
                f"{engine} has no speculative method {method!r}{did_you_mean(method, methods)}; "
                f"it has {', '.join(sorted(methods))}"
            )
        if mapping.get("model") is None and method in ("eagle", "eagle3", "draft_model"):
            found.append(f"speculative method {method!r} needs a model: speculative={{'model': ...}}")
        found += [f"{engine} needs speculative={{{key!r}: ...}}" for key in needed if mapping.get(key) is None]
        for key in ("num_tokens", "num_steps", "topk"):
            value = mapping.get(key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                found.append(f"speculative {key}={value!r} must be a whole number above 0")
        length = mapping.get("acceptance_length")
        if length is not None and (isinstance(length, bool) or not isinstance(length, (int, float)) or length < 1):
            found.append(f"speculative acceptance_length={length!r} must be a number of tokens per step, 1 or more")
        return found
