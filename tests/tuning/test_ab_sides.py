"""What an A/B shows of its sides: what each says, in the form that it comes to, without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_llmperf.engines.declaration import server_config
from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.server_config import ServerConfig
from pytest_llmperf.tuning.ab_plan import AbPlan

ENGINES = builtin()


def config_of(side: Mapping[str, Any]) -> ServerConfig:
    return server_config({"model": "m", **side}, ENGINES["sglang"], frozenset(ENGINES))


def test_flags_are_shown_however_they_are_written() -> None:
    plan = AbPlan.of({"b": {"sglang": {"--stream-interval": "4", "hf_token": "topsecret"}, "tp": 2}}, config_of)
    assert plan.b.said == 'sglang={"hf_token":"***","stream_interval":4}, tp=2'
