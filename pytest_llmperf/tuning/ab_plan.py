"""What an A/B compares: two sides, each a config and, for another build, a command of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmperf.engines.command_flags import normal
from pytest_llmperf.errors import ConfigError, nearest
from pytest_llmperf.measure.metrics import METRICS, Metric
from pytest_llmperf.server_config import ServerConfig, mask
from pytest_llmperf.tuning.plan import label

_KEYS = frozenset({"a", "b", "metric", "budget", "min_effect"})
_USUAL = "decode_tok_s"


@dataclass(frozen=True)
class AbSide:
    """``command`` replaces the engine's own (another build); ``said`` is what the marker says of this side."""

    config: ServerConfig
    command: tuple[str, ...] | None
    said: str


@dataclass(frozen=True)
class AbPlan:
    """``@llm_ab(...)``. ``budget`` is the most launches of each side, ``min_effect`` a fraction."""

    a: AbSide
    b: AbSide
    metric: Metric
    budget: int = 6
    min_effect: float = 0.01

    @classmethod
    def of(
        cls,
        said: Mapping[str, Any],
        config_of: Callable[[Mapping[str, Any]], ServerConfig],
        metrics: Mapping[str, Metric] = METRICS,
    ) -> AbPlan:
        """The keywords of ``llm_ab``. ``config_of`` makes a config of what a side says over the test's ``llm_server``;
        ``metrics`` are those that may decide. Raises ``ConfigError`` that holds one problem a line."""
        problems = list(_problems(said, metrics))
        if problems:
            raise ConfigError("\n".join(problems))
        a, b = (_side(name, said.get(name, {}), config_of) for name in ("a", "b"))
        if a.config == b.config and a.command == b.command:
            raise ConfigError("llm_ab compares a server with itself: let a or b override something")
        rest = {k: v for k, v in said.items() if k in ("budget", "min_effect")}
        return cls(a, b, metrics[said.get("metric", _USUAL)], **rest)


def _problems(said: Mapping[str, Any], metrics: Mapping[str, Metric]) -> Iterator[str]:
    for key in said:
        if key not in _KEYS:
            yield f"llm_ab has no {key!r}{nearest(key, _KEYS)}"
    for name in ("a", "b"):
        side = said.get(name, {})
        if not isinstance(side, Mapping):
            yield f"llm_ab({name}={side!r}) must be a dict of llm_server's keywords"
            continue
        if "engine" in side:
            yield "llm_ab compares two of one engine; --engine X --engine Y tells the gap between two engines"
        command = side.get("command", ("x",))
        if not isinstance(command, (list, tuple)) or not command or not all(isinstance(w, str) for w in command):
            yield f"llm_ab({name}={{'command': {command!r}}}) must be the list of words that starts the engine"
    metric = said.get("metric", _USUAL)
    if not isinstance(metric, str) or metric not in metrics:
        yield f"llm_ab names no known metric: {metric!r}{nearest(str(metric), metrics)}"
    if type(said.get("budget", 1)) is not int or said.get("budget", 1) < 1:
        yield f"llm_ab(budget={said['budget']!r}) must be a whole number from 1: most launches of each side"
    effect = said.get("min_effect", 0.01)
    if isinstance(effect, bool) or not isinstance(effect, (int, float)) or not 0 < effect < 1:
        yield f"llm_ab(min_effect={effect!r}) must be a fraction between 0 and 1 (0.01 is 1 %)"


def _side(name: str, said: Mapping[str, Any], config_of: Callable[[Mapping[str, Any]], ServerConfig]) -> AbSide:
    command = said.get("command")
    try:
        config = config_of({k: v for k, v in said.items() if k != "command"})
    except ConfigError as error:
        raise ConfigError("\n".join(f"llm_ab({name}=...): {line}" for line in str(error).splitlines())) from error
    words = ", ".join(f"{k}={label(v)}" for k, v in _shown(said, config))
    return AbSide(config, tuple(command) if command else None, words or "as declared")


def _shown(said: Mapping[str, Any], config: ServerConfig) -> Iterator[tuple[str, Any]]:
    """What a side says, secrets masked as the config masks them."""
    shown = config.canonical()
    for key, value in said.items():
        if key == "command":
            yield key, " ".join(value)
        elif key == config.engine:
            yield key, mask(normal(value))
        else:
            yield key, shown.get(key, value if not isinstance(value, Mapping) else {})
