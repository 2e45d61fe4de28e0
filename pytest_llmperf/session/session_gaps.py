"""What a session says beside its verdicts: gaps between engines and sides, load curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.engines.base import Engine
from pytest_llmperf.measure.metrics import Metric
from pytest_llmperf.options import Options
from pytest_llmperf.records.gaps_and_sweeps import Curve, Gap
from pytest_llmperf.records.results import Result

if TYPE_CHECKING:
    from pytest_llmperf.stats import Prior
    from pytest_llmperf.tuning.loads import Load


class SessionGaps:
    """Gathers gaps and loads from the test reports, in the process that sees them all."""

    def __init__(
        self, options: Options, state_dir: Path, engines: Mapping[str, Engine], metrics: Mapping[str, Metric]
    ) -> None:
        self._options = options
        self._engines = engines
        self._metrics = metrics
        self._cache = state_dir / "priors"
        self._gaps: dict[str, list[Gap]] = {}
        self._loads: dict[str, list[Load]] = {}

    def take(self, payload: Mapping[str, Any]) -> None:
        """Take one report's payload. A later one of the same test replaces the earlier one: it holds that too."""
        from pytest_llmperf.tuning.loads import Load

        test = payload.get("nodeid", "")
        self._gaps[test] = [Gap.from_json(g) for g in payload.get("gaps", ())]
        self._loads[test] = [Load.from_json(x) for x in payload.get("loads", ())]

    def gaps(self, results: Sequence[Result]) -> tuple[Gap, ...]:
        """Those between the engines of ``results``, then those that tests measured on purpose."""
        from pytest_llmperf.tuning.gaps import gaps  # here: scipy is for sessions that judge

        between = gaps(results, self._options.engine, self.prior)
        return (*between, *(g for found in self._gaps.values() for g in found))

    def curves(self) -> tuple[Curve, ...]:
        from pytest_llmperf.tuning.loads import curves

        return tuple(curves(x for found in self._loads.values() for x in found))

    def usual(self, engine: str, metric: str) -> float:
        """The spread between launches (standard deviation of logs) that is usual."""
        from pytest_llmperf.baselines.fitted_priors import usual_spread

        spread, known = self._engines[engine].launch_spread, self._metrics.get(metric)
        return usual_spread(known, spread) if known else spread

    def prior(self, result: Result) -> Prior:
        """The launch spread that the stored series of the result's engine on its hardware show, else its usual one."""
        from pytest_llmperf.baselines import fitted_priors

        usual, mark = self._engines[result.engine].launch_spread, Fingerprint(result.fingerprint)
        fitted = fitted_priors.fit(self._options.baselines, result.engine, mark, usual, self._cache, self._metrics)
        return fitted.of(self._metrics[result.metric], usual)
