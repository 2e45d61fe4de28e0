"""TensorRT-LLM's ``trtllm-serve`` as an engine of pytest-llmperf."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.engines.base import Command, EffectiveConfig, Endpoint, Engine, EngineSettings, Probe, RequestTraits
from pytest_llmperf.server_config import ServerConfig


class TensorRTLLM(Engine):
    name = "trtllm"
    portable = frozenset({"tokenizer", "tp", "pp", "max_running_requests", "context_length", "nccl"})
    metrics_path = None  # its /metrics is JSON about iterations, not Prometheus
    traits = RequestTraits(token_ids=True, continuous_usage=True, cached_in_usage=True)
    progress_patterns = ((re.compile("weights", re.IGNORECASE), "loading weights"),)

    def command(self, config: ServerConfig, settings: EngineSettings, endpoint: Endpoint) -> Command:
        own = {
            "host": settings.bind,
            "port": endpoint.port,
            "tokenizer": config.tokenizer,
            "tp_size": config.tp,
            "pp_size": config.pp,
            "max_batch_size": config.max_running_requests,
            "max_seq_len": config.context_length,
        }
        program = settings.command or ("trtllm-serve", "serve")
        return Command((*program, config.model, *_flags(own | dict(config.flags))), {**config.nccl, **config.env})

    def model_name(self, config: ServerConfig) -> str:
        return Path(config.model).name if Path(config.model).is_dir() else config.model

    def effective(self, config: ServerConfig, probe: Probe) -> EffectiveConfig:
        version = (probe.json("/version") or {}).get("version")
        return EffectiveConfig(engine_version=version, sources={"engine_version": "/version"} if version else {})


def _flags(flags: Mapping[str, Any]) -> list[str]:
    """``--tp_size 2``: this engine spells flags with underscores, and switches without a value."""
    given = {f"--{name}": value for name, value in flags.items() if value is not None and value is not False}
    return [word for flag, value in given.items() for word in ((flag,) if value is True else (flag, str(value)))]


@pytest.hookimpl
def pytest_llmperf_engines() -> list[Engine]:
    return [TensorRTLLM()]
