"""pytest-llmperf: did my change make SGLang or vLLM slower, by how much, and why?"""

import pytest

__all__ = ["perf"]

#: ``@perf`` or ``@perf(target=82.5, metric="decode_tok_s", ...)``: gate a test's metrics against its baseline.
perf: pytest.MarkDecorator = pytest.mark.perf
