"""pytest-llmperf: did my change make SGLang or vLLM slower, by how much, and why?"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_llmperf.measure.metrics import Metric as Metric

__version__ = "0.1.0"
__all__ = ["Metric", "perf"]

#: ``@perf`` or ``@perf(target=82.5, metric="decode_tok_s", ...)``: gate a test's metrics against its baseline.
perf: pytest.MarkDecorator = pytest.mark.perf


def __getattr__(name: str) -> object:
    """``Metric`` once it is asked for: every pytest of the environment imports this package."""
    if name != "Metric":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_llmperf.measure.metrics import Metric

    return Metric
