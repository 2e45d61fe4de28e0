"""VLLM: what is known of it."""

from pytest_llmperf.engines.vllm.vllm_adapter import VLLM

__all__ = ["VLLM"]
