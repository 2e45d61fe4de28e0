"""The verdict on one metric of one test: fresh launches against the stored ones."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from .levels import POWER, Design, quantile
from .location import Array, Launch, launch_logs, log_location, stack, wander
from .prior import Prior
from .reference import Shift, reference, shift
from .stability import GROUPED, SPREAD, disagree, modes, unsteadiness
from .verdict import VERDICTS, Outcome, first_stage, last_stage

#: More stored launches than this are never asked for.
MOST_LAUNCHES = 40
#: Levels below this are beyond what any distribution of launches is known to.
LEAST_ALPHA = 1e-9


class Gate:
    """Judges fresh launches of one metric against the stored ones (docs/concepts/how-the-gate-decides.md).

    ``baseline_launches``: the accepted launches, each its repetitions or its value alone. ``alpha``: probability that
    an unchanged test fails, over both stages. ``min_effect``: the least relative loss that matters.
    ``max_regression``: the loss that must not go unseen; the outcome says when the evidence is too thin for it.
    ``confirm_launches``: fresh launches that a suspect is confirmed on. ``hosts`` names the host of each stored
    launch, ``host`` that of the fresh ones; without them hosts are taken to be alike.

    Raises ``ValueError`` for an empty baseline, values that are not positive and finite, or settings out of range.
    """

    def __init__(
        self,
        baseline_launches: Sequence[Launch],
        higher_is_better: bool = True,
        alpha: float = 0.001,
        prior: Prior | None = None,
        min_effect: float = 0.01,
        confirm_launches: int = 2,
        *,
        max_regression: float | None = None,
        hosts: Sequence[str] | None = None,
        host: str | None = None,
    ) -> None:
        _check(alpha, min_effect, confirm_launches, max_regression)
        self.higher_is_better, self.alpha, self.min_effect = higher_is_better, alpha, min_effect
        self.prior = prior or Prior()
        self.max_regression, self.confirm_launches = max_regression, confirm_launches
        self.other_host = host is not None and hosts is not None and host not in hosts
        self._sign = 1.0 if higher_is_better else -1.0
        self._least = -math.log1p(-min_effect) if higher_is_better else math.log1p(min_effect)
        logs = _sound(baseline_launches)
        stored = self._sign * np.array([float(log_location(x)) for x in logs])
        self.wander = math.sqrt(wander(baseline_launches))
        self._ref = reference(stored, self.prior, wander=self.wander**2, hosts=hosts, host=host)

    @property
    def k(self) -> int:
        """Stored launches."""
        return int(self._ref.residuals.size)

    @property
    def nu(self) -> float:
        """Degrees of freedom behind the launch spread."""
        return self._ref.nu

    @property
    def spread(self) -> float:
        """Moderated standard deviation between launches, of logs."""
        return float(self._ref.spread)

    @property
    def center(self) -> float:
        """The baseline's value, in the metric's unit."""
        return math.exp(self._sign * float(self._ref.center))

    @property
    def learned(self) -> Prior:
        """What prior and stored launches together say about the spread: the prior of what comes next (a target)."""
        return Prior(self.nu, self.spread, f"{self.k} stored launches")

    @property
    def prior_only(self) -> bool:
        """Whether the spread is the prior's alone."""
        return self._ref.own_df == 0

    @property
    def band(self) -> tuple[float, float]:
        """Limits of one fresh launch at the screen: suspect beyond the guarding one, improved beyond the other."""
        return self._screen_band(self._design(1))

    @property
    def mde(self) -> float:
        """Smallest relative loss that both stages together fail with 80 % power, the spread being what it seems."""
        return self._mde(self._design(1))

    def required_launches(self, max_regression: float) -> int | None:
        """Stored launches needed to see a loss of ``max_regression`` with 80 % power, should the spread stay as it is.

        None when ``MOST_LAUNCHES`` would not do.
        """
        counts = range(self.k, max(MOST_LAUNCHES, self.k) + 1)
        designs = [Design(1 / n, 1, self.confirm_launches, self.nu + n - self.k, self.alpha) for n in counts]
        found = bisect_left(designs, True, key=lambda d: self._mde(d) <= max_regression)
        return counts[found] if found < len(counts) else None

    def screen(self, values: Launch | Sequence[Launch]) -> Outcome:
        """Judge the session's first launch (or launches: a sequence of sequences) of this test."""
        logs = stack(values)
        if logs is None:
            return self._invalid()
        design = self._design(logs.size)
        seen = shift(self._ref, self._sign * logs, pooled=False)
        verdict = VERDICTS[int(first_stage(seen, design, self._least))]
        return self._outcome(verdict, logs, seen, self._screen_band(design), design)

    def confirm(self, launches: Sequence[Launch], *, screened: int = 1) -> Outcome:
        """Judge the fresh launches that a suspect was confirmed on, and only those.

        ``screened`` is the number of launches that the screen saw. A flat sequence holds one value per launch.
        """
        logs = stack(launches, flat_is_one=False)
        if logs is None:
            return self._invalid()
        design = Design(float(self._ref.share), screened, logs.size, self.nu, self.alpha)
        return self._decide(logs, design.confirm, design)

    def single(self, launches: Launch | Sequence[Launch]) -> Outcome:
        """Judge at one stage, where no confirmation is possible (a server that cannot be launched anew)."""
        logs = stack(launches)
        if logs is None:
            return self._invalid()
        return self._decide(logs, quantile(self.alpha, self.nu + logs.size - 1), None)

    def _design(self, screened: int) -> Design:
        return Design(float(self._ref.share), screened, self.confirm_launches, self.nu, self.alpha)

    def _decide(self, logs: Array, critical: float, design: Design | None) -> Outcome:
        seen = shift(self._ref, self._sign * logs, pooled=True)
        verdict = VERDICTS[int(last_stage(seen, critical, self._least))]
        size = max(critical * float(seen.error), self._least)
        return self._outcome(verdict, logs, seen, self._limits(size, size), design)

    def _screen_band(self, design: Design) -> tuple[float, float]:
        error = self.spread * math.sqrt(design.share + 1 / design.screened)
        return self._limits(max(design.screen * error, self._least), max(design.confirm * error, self._least))

    def _limits(self, worse: float, better: float) -> tuple[float, float]:
        low, high = sorted((self._sign * -worse, self._sign * better))
        return self.center * math.exp(low), self.center * math.exp(high)

    def _mde(self, design: Design) -> float:
        error = self.spread * math.sqrt(design.share + 1 / design.confirmed)
        floor = self._least + quantile(1 - POWER, design.nu) * error
        return self._loss(max(design.detectable * self.spread, floor))

    def _single_mde(self, launches: int) -> float:
        nu = self.nu + launches - 1
        error = self.spread * math.sqrt(float(self._ref.share) + 1 / launches)
        limit = max(quantile(self.alpha, nu) * error, self._least)
        return self._loss(limit + quantile(1 - POWER, nu) * error)

    def _loss(self, log: float) -> float:
        return -math.expm1(-log) if self.higher_is_better else math.expm1(log)

    def _invalid(self) -> Outcome:
        reason = "a fresh launch holds a value that is not positive and finite, or none at all"
        return Outcome("invalid", center=self.center, nu=self.nu, reasons=(reason,))

    def _outcome(
        self, verdict: str, logs: Array, seen: Shift, band: tuple[float, float], design: Design | None
    ) -> Outcome:
        value = math.exp(float(np.mean(logs)))
        mde = self._mde(design) if design else self._single_mde(logs.size)
        thin = self.max_regression is not None and mde > self.max_regression
        trusted = self.max_regression is not None and not thin
        unstable = None if trusted else self._unstable(logs)
        if unstable and verdict == "passed":
            verdict = "inconclusive"
        required = self.required_launches(self.max_regression) if thin and self.max_regression else None
        return Outcome(
            verdict=verdict,
            value=value,
            center=self.center,
            band=band,
            change=value / self.center - 1,
            p=float(seen.p),
            t=float(seen.t),
            nu=seen.nu,
            launches=int(logs.size),
            mde=mde,
            required_launches=required,
            reasons=tuple(r for r in (unstable, *self._caveats(mde, thin, required)) if r),
        )

    def _unstable(self, logs: Array) -> str | None:
        """Why no band should be trusted, if so: a wide one would pass a loss unseen."""
        code = int(unsteadiness(self._ref, self.prior.d0, self._least))
        if code == GROUPED:
            gap, _ = modes(self._ref.residuals, self.prior.d0, self._ref.expected)
            return f"stored launches fall into two groups {math.expm1(float(gap)):.1%} apart"
        if code == SPREAD:
            own = math.sqrt(float(np.sum(self._ref.residuals**2)) / self._ref.own_df)
            return f"stored launches spread by {own:.1%}, where {float(self._ref.expected):.1%} is usual"
        if bool(disagree(self._ref, logs, self._least)):
            return f"fresh launches spread by {float(np.std(logs, ddof=1)):.1%}, where {self.spread:.1%} is usual"
        return None

    def _caveats(self, mde: float, thin: bool, required: int | None) -> list[str]:
        """What a reader must know to weigh the verdict."""
        said = []
        if thin:
            cure = f"{required} stored launches would see it" if required else f"{MOST_LAUNCHES} would not do either"
            said.append(
                f"underpowered: {self.k} stored launches see a loss of {mde:.1%} (80 % power), "
                f"not the {self.max_regression:.1%} asked for; {cure}"
            )
        if self.prior_only:
            said.append(
                f"prior-only: the spread between launches is assumed ({self.prior.s0:.1%}, {self.prior.source})"
            )
        if self.other_host:
            said.append(
                "other host: no stored launch ran on this one, so the band allows for the spread between hosts; "
                "launches recorded here would tighten it"
            )
        if self.wander > max(self.prior.s0, self._least / 2):
            said.append(
                f"repetitions wander: a stored launch pins its own value down to {self.wander:.1%} only, "
                f"so launches are expected to spread by that instead of {self.prior.s0:.1%}"
            )
        return said


def _sound(launches: Sequence[Launch]) -> list[Array]:
    logs = [launch_logs(launch) for launch in launches]
    if not logs:
        raise ValueError("a gate needs at least one stored launch")
    for number, values in enumerate(logs, 1):
        if values is None:
            raise ValueError(f"stored launch {number} holds a value that is not positive and finite, or none at all")
    return [x for x in logs if x is not None]


def _check(alpha: float, min_effect: float, confirm_launches: int, max_regression: float | None) -> None:
    if not LEAST_ALPHA <= alpha < 0.5:
        raise ValueError(f"alpha must lie between {LEAST_ALPHA:g} and 0.5, got {alpha!r}")
    if not 0 <= min_effect < 1:
        raise ValueError(f"min_effect must lie between 0 and 1, got {min_effect!r}")
    if confirm_launches < 1:
        raise ValueError(f"confirm_launches must be 1 at least, got {confirm_launches!r}")
    if max_regression is not None and not 0 < max_regression < math.inf:
        raise ValueError(f"max_regression must be a positive share, got {max_regression!r}")
