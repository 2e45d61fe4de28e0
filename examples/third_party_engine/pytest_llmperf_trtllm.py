"""TensorRT-LLM's ``trtllm-serve`` as an engine of pytest-llmperf."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pytest_llmperf.engines.base import EffectiveConfig, Engine, Probe, RequestTraits, Spelling, Starting, Translation
from pytest_llmperf.server_config import ServerConfig


class TensorRTLLM(Engine):
    name = "trtllm"
    program = ("trtllm-serve", "serve")
    spelling = Spelling(dashes=False)  # --tp_size
    flags: ClassVar[Mapping[str, Translation]] = {
        "tokenizer": "tokenizer",
        "tp": "tp_size",
        "pp": "pp_size",
        "max_running_requests": "max_batch_size",
        "context_length": "max_seq_len",
    }
    metrics_path = None  # its /metrics is JSON about iterations, not Prometheus
    traits = RequestTraits(token_ids=True, continuous_usage=True)
    progress_patterns = ((re.compile("weights", re.IGNORECASE), "loading weights"),)

    def own_words(self, start: Starting) -> tuple[str, ...]:
        return (start.model,)

    def own_flags(self, start: Starting) -> Mapping[str, Any]:
        return {"host": start.settings.bind, "port": start.endpoint.port}

    def model_name(self, config: ServerConfig) -> str:
        return Path(config.model).name if Path(config.model).is_dir() else config.model

    def effective(self, config: ServerConfig, probe: Probe) -> EffectiveConfig:
        version = (probe.json("/version") or {}).get("version")
        return EffectiveConfig(engine_version=version, sources={"engine_version": "/version"} if version else {})


@pytest.hookimpl
def pytest_llmperf_engines() -> list[Engine]:
    return [TensorRTLLM()]
