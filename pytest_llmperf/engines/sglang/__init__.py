"""SGLang: what is known of it."""

from pytest_llmperf.engines.sglang.sglang_adapter import SGLang

__all__ = ["SGLang"]
