"""What the client sends, as a value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pytest_llmperf.errors import ConfigError

_COUNTS = frozenset(
    {"prompt_tokens", "output_tokens", "repetitions", "max_repetitions", "concurrency", "requests"},
)
_OPTIONAL = frozenset({"requests", "seconds", "rate"})
#: How long one measures the same: no part of a baseline's identity.
HOW_LONG = frozenset({"repetitions", "max_repetitions", "precision"})


@dataclass(frozen=True)
class Workload:
    """What the client sends. Every field but those in ``HOW_LONG`` is part of a baseline's identity.

    ``repetitions`` is the least number of measured requests; more follow until the launch mean is known to
    ``precision`` (relative standard error; 0 turns that off) or ``max_repetitions`` is reached.
    ``rate`` (requests/s) makes an open loop with Poisson arrivals; else ``concurrency`` streams in a closed loop.
    """

    prompt_tokens: int = 128
    output_tokens: int = 256
    repetitions: int = 5
    max_repetitions: int = 20
    precision: float = 0.005
    concurrency: int = 1
    requests: int | None = None
    seconds: float | None = None
    rate: float | None = None
    chat: bool = False

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for a value that cannot be."""
        for problem in problems(asdict(self)):
            raise ConfigError(problem)

    def identity(self) -> dict[str, Any]:
        """JSON-ready fields that are not None and make it another workload."""
        return {k: v for k, v in asdict(self).items() if v is not None and k not in HOW_LONG}


def problems(given: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each of ``given`` (fields of ``Workload`` by name) that has a value that cannot be."""
    for name, value in given.items():
        if name in _COUNTS:
            fits, wanted = type(value) is int and value >= 1, "a whole number from 1"
        elif name == "chat":
            fits, wanted = isinstance(value, bool), "True or False"
        else:
            real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if name == "precision":
                fits, wanted = real and 0 <= value < 1, "a fraction below 1 (0.005 is 0.5 %)"
            else:
                fits, wanted = real and value > 0, "a number above 0"
        if not fits and not (value is None and name in _OPTIONAL):
            yield f"{name}={value!r} must be {wanted}"
