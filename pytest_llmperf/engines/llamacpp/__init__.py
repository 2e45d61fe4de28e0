"""LlamaCpp: what is known of it."""

from pytest_llmperf.engines.llamacpp.llamacpp_adapter import LlamaCpp

__all__ = ["LlamaCpp"]
