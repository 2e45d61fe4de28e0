"""What the gate goes by, for commands that look at stored series or reports without a session: metrics and priors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_llmperf.baselines import fitted_priors
from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.fitted_priors import Priors
from pytest_llmperf.cli.project_plugins import ask
from pytest_llmperf.engines.base import Engine
from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.measure.metrics import METRICS, Metric
from pytest_llmperf.server.state import state_dir
from pytest_llmperf.session import extensions
from pytest_llmperf.stats import Prior


class StoredPriors:
    """Fits each prior over the baselines in ``folder`` once. ``used`` are the engines and metrics at hand, by name:
    plugins are asked only where one is none of ours."""

    def __init__(self, folder: Path, used: set[str]) -> None:
        self._folder = folder
        self._engines: Mapping[str, Engine] = builtin()
        self.metrics: Mapping[str, Metric] = METRICS
        if used - self._engines.keys() - METRICS.keys():
            self._engines, self.metrics = ask(_known)
        self._fitted: dict[tuple[str, str], Priors] = {}

    def of(self, engine: str, fingerprint: Fingerprint, metric: str) -> Prior:
        """Of launches of ``engine`` on the hardware of ``fingerprint``; their usual one where nothing is stored yet."""
        usual = self._engines[engine].launch_spread if engine in self._engines else Engine.launch_spread
        machine = Fingerprint(fingerprint.hardware)
        kind = engine, machine.key
        if kind not in self._fitted:
            cache = state_dir() / "priors"
            self._fitted[kind] = fitted_priors.fit(self._folder, engine, machine, usual, cache, self.metrics)
        return self._fitted[kind].of(self.metrics.get(metric) or Metric(metric, "", True, ""), usual)


def _known(config: pytest.Config) -> tuple[Mapping[str, Engine], Mapping[str, Metric]]:
    return extensions.engines(config), extensions.metrics(config)
