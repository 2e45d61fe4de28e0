"""What tests of an engine adapter can use, in this project and in a plugin of your own."""

from pytest_llmperf.testing.engine_contract import EngineContract

__all__ = ["EngineContract"]
