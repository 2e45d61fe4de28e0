"""What there is, ours and other plugins': the hooks of ``hookspecs``, asked once and checked."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_llmperf.engines.base import Engine
from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.measure.metrics import METRICS, Metric
from pytest_llmperf.report.formats import FORMATS, ReportFormat


def engines(config: pytest.Config) -> dict[str, Engine]:
    """Every engine by name. Raises ``ConfigError`` for what is no engine."""
    known = builtin()
    for found in config.hook.pytest_llmperf_engines(config=config):
        for engine in [found] if isinstance(found, Engine) else found:
            if not isinstance(engine, Engine):
                raise ConfigError(f"the hook pytest_llmperf_engines must give Engine instances, not {engine!r}")
            known[engine.name] = engine
    return known


def metrics(config: pytest.Config) -> dict[str, Metric]:
    """Every metric by name, ours first. Raises ``ConfigError`` for what is none and for a name that is taken."""
    known = dict(METRICS)
    for found in config.hook.pytest_llmperf_metrics(config=config):
        for metric in [found] if isinstance(found, Metric) else found:
            if not isinstance(metric, Metric) or not metric.name.isidentifier() or metric.compute is None:
                raise ConfigError(
                    "the hook pytest_llmperf_metrics must give Metric(name, unit, higher_is_better, what, compute=...) "
                    f"whose name is one in Python, not {metric!r}"
                )
            if metric.name in known:
                raise ConfigError(f"the hook pytest_llmperf_metrics gives {metric.name!r}, which there is: rename it")
            known[metric.name] = metric
    return known


def report_formats(config: pytest.Config) -> dict[str, ReportFormat]:
    """Every report format by name. Raises ``ConfigError`` for what is none and for a name that is taken."""
    known = dict(FORMATS)
    for found in config.hook.pytest_llmperf_report_formats(config=config):
        if not isinstance(found, Mapping) or not all(map(callable, found.values())):
            raise ConfigError(
                f"the hook pytest_llmperf_report_formats must give functions of a SessionRecord by name, not {found!r}"
            )
        for name in sorted(known.keys() & found):
            raise ConfigError(f"the hook pytest_llmperf_report_formats gives {name!r}, which there is: rename it")
        known.update(found)
    return known
