"""Totals out of a Prometheus exposition: one number per metric, summed over labels (ranks, models, positions)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_BORN = re.compile(r"^process_start_time_seconds(?:\{[^}]*\})? ([0-9.e+]+)", re.MULTILINE)


def born(text: str) -> str | None:
    """When the process began that published ``text``, in Unix seconds, where it says so."""
    found = _BORN.search(text)
    return found.group(1) if found else None


class Metrics:
    """One body of ``/metrics``; empty when the text is not an exposition (half a body, an HTML error page)."""

    def __init__(self, text: str) -> None:
        # here, because it brings an HTTP server with it that the start of a pytest session can do without
        from prometheus_client.parser import text_string_to_metric_families

        try:
            self._samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        except ValueError:
            self._samples = []

    def total(self, *names: str, **labels: str) -> float | None:
        """Sum over the samples of the first of ``names`` that is there, newer names before older ones."""
        values = self._values(names, labels)
        return sum(values) if values else None

    def _values(self, names: Sequence[str], labels: Mapping[str, str]) -> list[float]:
        for name in names:
            found = [s for s in self._samples if s.name == name and labels.items() <= s.labels.items()]
            if found:
                return [s.value for s in found]
        return []
