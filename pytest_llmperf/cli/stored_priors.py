"""The priors that the gate takes, for commands that look at stored series or reports without a session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from pytest_llmperf.baselines import fitted_priors
from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.fitted_priors import Priors
from pytest_llmperf.cli.project_plugins import ask
from pytest_llmperf.engines.base import Engine
from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.measure.metrics import METRICS, Metric
from pytest_llmperf.server.state import state_dir
from pytest_llmperf.session.extensions import engines
from pytest_llmperf.stats import Prior

#: The prior of (engine, fingerprint, metric).
StoredPriors: TypeAlias = "Callable[[str, Fingerprint, str], Prior]"


def stored_priors(folder: Path, used: Iterable[str]) -> StoredPriors:
    """Over the baselines in ``folder``, or of the spread that is usual where
    they say nothing yet. ``used`` names the engines: plugins are asked only for one that is none of ours."""
    known: Mapping[str, Engine] = builtin()
    if not known.keys() >= set(used):
        known = ask(engines)
    found: dict[tuple[str, str], Priors] = {}

    def prior(engine: str, mark: Fingerprint, metric: str) -> Prior:
        usual = known[engine].launch_spread if engine in known else Engine.launch_spread
        machine = Fingerprint(mark.hardware)
        kind = engine, machine.key
        if kind not in found:
            found[kind] = fitted_priors.fit(folder, engine, machine, usual, state_dir() / "priors")
        return found[kind].of(METRICS.get(metric) or Metric(metric, "", True, ""), usual)

    return prior
