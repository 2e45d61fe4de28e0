"""What a third party writes for an engine of its own, and what it gets for that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from pytest_llmperf.engines.base import EffectiveConfig, Endpoint, Engine, EngineSettings, Probe, Starting, Translation
from pytest_llmperf.engines.effective_reader import Reading
from pytest_llmperf.server_config import ServerConfig
from pytest_llmperf.testing import EngineContract


class TGI(Engine):
    name = "tgi"
    program = ("text-generation-launcher",)
    flags: ClassVar[Mapping[str, Translation]] = {
        "tp": "num_shard",
        "dtype": "dtype",
        "max_running_requests": "max_concurrent_requests",
    }
    progress_patterns = ((re.compile("Downloading|Starting shard"), "loading weights"),)

    def own_flags(self, start: Starting) -> Mapping[str, Any]:
        return {"model_id": start.model, "hostname": start.settings.bind, "port": start.endpoint.port}

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
        *("text-generation-launcher", "--model-id", "m", "--hostname", "127.0.0.1", "--port", "80"),
        *("--num-shard", "2"),
        *("--max-concurrent-requests", "128", "--quantize", "eetq"),
    )
    assert engine.problems(config) == []
    assert engine.gpu_count(config) == 2
    (problem,) = engine.problems(ServerConfig(engine="tgi", model="m", attention_backend="x"))
    assert (
        problem
        == "tgi cannot honour attention_backend='x'; of these keys it takes dtype, max_running_requests, nccl, tp"
    )
    (mismatch,) = engine.mismatches(config, engine.effective(config, Answers()))
    assert (mismatch.field, mismatch.declared, mismatch.effective) == ("max_running_requests", "128", "64")


class TestItsContract(EngineContract):
    engine = TGI()
