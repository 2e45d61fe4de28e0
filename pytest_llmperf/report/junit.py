"""One result as JUnit properties of its test (``user_properties``), which survive xdist."""

from __future__ import annotations

from pytest_llmperf.records.results import Result
from pytest_llmperf.records.text import clean, exact

#: The property that says why a test is not green: what a CI may retry (``infrastructure``) and what not.
KIND = "llmperf.kind"


def properties(result: Result) -> list[tuple[str, str]]:
    """(name, value) pairs named ``llmperf.<metric>.<what>``; what is unknown is left out. Numbers read back exactly."""
    low, high = result.band or (None, None)
    ref = result.baseline
    values = {
        "verdict": clean(result.verdict),
        "value": exact(result.value),
        "unit": clean(result.unit),
        "direction": result.direction,
        "band_low": exact(low),
        "band_high": exact(high),
        "baseline": exact(ref.value if ref else None),
        "baseline_launches": str(ref.launches) if ref else "",
        "baseline_path": clean(ref.path) if ref else "",
        "change": exact(result.change),
        "mde": exact(result.mde),
        "target": exact(result.target),
        "launches": str(len(result.launches)),
        "engine": clean(result.engine),
        "server": clean(result.server),
        "reasons": "; ".join(clean(r) for r in result.reasons),
    }
    return [(f"llmperf.{clean(result.metric)}.{name}", value) for name, value in values.items() if value]
