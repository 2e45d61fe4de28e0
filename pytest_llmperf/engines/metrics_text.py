"""Totals out of a Prometheus exposition: one number per metric, summed over labels (ranks, models, positions)."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families


def totals(text: str) -> dict[str, float]:
    """Sample name to the sum of its samples; empty when the text is not an exposition."""
    out: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                out[sample.name] = out.get(sample.name, 0.0) + sample.value
    except ValueError:  # half a body, or an HTML error page
        return {}
    return out


def first(values: Mapping[str, float], *names: str) -> float | None:
    """The value of the first of ``names`` that is there: newer names before older ones."""
    return next((values[n] for n in names if n in values), None)
