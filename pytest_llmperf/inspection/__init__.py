"""Reading an engine's source: what it offers, what it would take by default and from which line that follows.

``inspect(open_source("sglang", source=Path("sglang-0.5.23.whl")), gpu="sm_120")``. Nothing of the engine is imported
or run. The command is ``llmperf inspect``.
"""

from __future__ import annotations

from pytest_llmperf.inspection.facts import ModelFacts
from pytest_llmperf.inspection.findings import Inspection
from pytest_llmperf.inspection.reading import inspect
from pytest_llmperf.inspection.source import Source, open_source

__all__ = ["Inspection", "ModelFacts", "Source", "inspect", "open_source"]
