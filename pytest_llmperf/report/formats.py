"""The forms of a session that have a name (``llmperf export``, ``--llmperf-export``). Others are added through the hook
``pytest_llmperf_report_formats``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from pytest_llmperf.records.results import SessionRecord
from pytest_llmperf.report import export, github, html

#: What a session is as text.
ReportFormat: TypeAlias = Callable[[SessionRecord], str]


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def page(session: SessionRecord, previous: SessionRecord | None = None) -> str:
    """The HTML report of a stored session, with the logs that this folder still has."""
    return html.page(session, logs=html.tails(session, Path.cwd()), previous=previous)


FORMATS: Mapping[str, ReportFormat] = {
    "bencher": lambda s: _json(export.bencher(s)),
    "customBiggerIsBetter": lambda s: _json(export.github_action_benchmark(s)["customBiggerIsBetter"]),
    "customSmallerIsBetter": lambda s: _json(export.github_action_benchmark(s)["customSmallerIsBetter"]),
    "html": page,
    "markdown": github.summary,
}
