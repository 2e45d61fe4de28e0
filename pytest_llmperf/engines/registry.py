"""The engines that come with the plugin. Others are added through the hook ``pytest_llmperf_engines``."""

from __future__ import annotations

from pytest_llmperf.engines.base import Engine
from pytest_llmperf.engines.llamacpp.llamacpp_adapter import LlamaCpp
from pytest_llmperf.engines.sglang.sglang_adapter import SGLang
from pytest_llmperf.engines.vllm.vllm_adapter import VLLM


def builtin() -> dict[str, Engine]:
    """A fresh adapter of each built-in engine by its name."""
    return {engine.name: engine for engine in (LlamaCpp(), SGLang(), VLLM())}
