"""What a third party writes for an engine of its own, and what it gets for that."""

from __future__ import annotations

import re

from pytest_llmperf.engines import command_flags
from pytest_llmperf.engines.base import Command, EffectiveConfig, Endpoint, Engine, EngineSettings, Probe
from pytest_llmperf.engines.effective_reader import Reading
from pytest_llmperf.server_config import ServerConfig


class TGI(Engine):
    name = "tgi"
    portable = frozenset({"tp", "dtype", "max_running_requests"})
    progress_patterns = ((re.compile("Downloading|Starting shard"), "loading weights"),)

    def command(self, config: ServerConfig, settings: EngineSettings, endpoint: Endpoint) -> Command:
        own = {
            "model_id": config.model,
            "port": endpoint.port,
            "num_shard": config.tp,
            "dtype": config.dtype,
            "max_concurrent_requests": config.max_running_requests,
        }
        program = settings.command or ("text-generation-launcher",)
        return Command(
            (*program, *command_flags.argv(own | command_flags.normal(config.flags))), {**config.nccl, **config.env}
        )

    def effective(self, config: ServerConfig, probe: Probe) -> EffectiveConfig:
        r = Reading()
        info = probe.json("/info") or {}
        r.take("/info", engine_version=info.get("version"), max_running_requests=info.get("max_concurrent_requests"))
        return r.result()


class Answers:
    log = ""

    def json(self, path: str) -> object:
        return {"version": "3.0", "max_concurrent_requests": 64} if path == "/info" else None

    def text(self, path: str) -> None:
        return None


def test_a_small_adapter_checks_keys_and_compares() -> None:
    engine = TGI()
    config = ServerConfig(engine="tgi", model="m", tp=2, max_running_requests=128, flags={"quantize": "eetq"})
    command = engine.command(config, EngineSettings(), Endpoint("127.0.0.1", 80))
    assert command.argv == (
        *("text-generation-launcher", "--model-id", "m", "--port", "80", "--num-shard", "2"),
        *("--max-concurrent-requests", "128", "--quantize", "eetq"),
    )
    assert engine.problems(config) == []
    assert engine.gpu_count(config) == 2
    (problem,) = engine.problems(ServerConfig(engine="tgi", model="m", attention_backend="x"))
    assert problem == "tgi cannot honour attention_backend='x'; of these keys it takes dtype, max_running_requests, tp"
    (mismatch,) = engine.mismatches(config, engine.effective(config, Answers()))
    assert (mismatch.field, mismatch.declared, mismatch.effective) == ("max_running_requests", "128", "64")
