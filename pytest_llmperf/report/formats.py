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


FORMATS: Mapping[str, ReportFormat] = {
    "bencher": lambda s: _json(export.bencher(s)),
    "customBiggerIsBetter": lambda s: _json(export.github_action_benchmark(s)["customBiggerIsBetter"]),
    "customSmallerIsBetter": lambda s: _json(export.github_action_benchmark(s)["customSmallerIsBetter"]),
    "html": lambda s: html.page(s, logs=html.tails(s, Path.cwd())),
    "markdown": github.summary,
}
