"""Every adapter that comes with the plugin keeps the contract, and the contract sees an adapter that does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from pytest_llmperf.engines.base import (
    Command,
    EffectiveConfig,
    Endpoint,
    Engine,
    EngineSettings,
    Starting,
    Translation,
)
from pytest_llmperf.engines.effective import Counters, Probe
from pytest_llmperf.engines.llamacpp.llamacpp_adapter import LlamaCpp
from pytest_llmperf.engines.sglang.sglang_adapter import SGLang
from pytest_llmperf.engines.vllm.vllm_adapter import VLLM
from pytest_llmperf.server_config import ServerConfig
from pytest_llmperf.testing import EngineContract


class TestSGLang(EngineContract):
    engine = SGLang()


class TestVLLM(EngineContract):
    engine = VLLM()


class TestLlamaCpp(EngineContract):
    engine = LlamaCpp()
    model = "model.gguf"


class Sound(Engine):
    name = "sound"
    program = ("serve",)
    flags: ClassVar[Mapping[str, Translation]] = {"tp": "tp_size", "dtype": "dtype"}

    def own_flags(self, start: Starting) -> Mapping[str, Any]:
        return {"host": start.settings.bind, "port": start.endpoint.port}

    def effective(self, config: ServerConfig, probe: Probe) -> EffectiveConfig:
        return EffectiveConfig()


class DropsAKey(Sound):
    flags: ClassVar[Mapping[str, Translation]] = {**Sound.flags, "tokenizer": lambda config: {}}


class DropsFlagsAndVariables(Sound):
    """What an adapter of one's own command line is apt to forget."""

    def command(
        self, config: ServerConfig, settings: EngineSettings, endpoint: Endpoint, model: str | None = None
    ) -> Command:
        words = ("--host", settings.bind, "--port", str(endpoint.port), f"--tp={config.tp}", f"--dtype={config.dtype}")
        return Command(("serve", *words))


class Guesses(Sound):
    def effective(self, config: ServerConfig, probe: Probe) -> EffectiveConfig:
        return EffectiveConfig(tp=config.tp)

    def counters(self, metrics: str) -> Counters:
        return Counters(preemptions=0)


class Deaf(Sound):
    def own_flags(self, start: Starting) -> Mapping[str, Any]:
        return {}


def broken(engine: Engine) -> set[str]:
    """Names of the contract's tests that ``engine`` fails."""
    contract = type("Contract", (EngineContract,), {"engine": engine})()
    failed = set()
    for name in (n for n in dir(contract) if n.startswith("test_")):
        try:
            getattr(contract, name)()
        except AssertionError:
            failed.add(name.removeprefix("test_"))
    return failed


@pytest.mark.parametrize(
    ("engine", "failed"),
    [
        (Sound(), set()),
        (DropsAKey(), {"a_portable_key_arrives_or_is_refused_by_name", "portable_keys_arrive_together"}),
        (
            DropsFlagsAndVariables(),
            {
                *("a_portable_key_arrives_or_is_refused_by_name", "portable_keys_arrive_together"),  # nccl
                *("its_own_flags_arrive", "its_own_flags_win_over_portable_keys"),
                *("variables_arrive_in_the_documented_order", "the_users_command_comes_first"),
            },
        ),
        (
            Guesses(),
            {"what_a_silent_server_resolved_to_is_unknown", "counters_that_are_not_there_are_unknown"},
        ),
        (Deaf(), {"it_listens_where_it_is_told"}),
    ],
    ids=lambda v: v.__class__.__name__ if isinstance(v, Engine) else "",
)
def test_the_contract_sees_what_is_wrong(engine: Engine, failed: set[str]) -> None:
    assert broken(engine) == failed
