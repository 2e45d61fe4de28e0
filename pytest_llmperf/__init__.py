"""pytest-llmperf: did my change make SGLang or vLLM slower, by how much, and why?"""

import pytest

from pytest_llmperf.measure.metrics import Metric

__all__ = ["Metric", "perf"]

#: ``@perf`` or ``@perf(target=82.5, metric="decode_tok_s", ...)``: gate a test's metrics against its baseline.
perf: pytest.MarkDecorator = pytest.mark.perf
