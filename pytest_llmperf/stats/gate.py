"""The verdict on one metric of one test: fresh launches against the stored ones."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .levels import POWER, Design, design_of, quantile
from .location import Array, Launch, launch_logs, log_location, stack, wander
from .prior import Prior
from .reference import Shift, reference, shift
from .stability import GROUPED, SPREAD, disagree, modes, outliers, unsteadiness
from .verdict import FASTER, REGRESSED, VERDICTS, Outcome, each_limit, first_stage, last_stage

#: More stored launches than this are never asked for.
MOST_LAUNCHES = 40
#: A pass that would not have seen a loss of this much is weak, where no ``max_regression`` says otherwise.
WEAK = 0.10
#: Level at which all launches of a session together are too slow to be recorded as normal, failed or not. At 5 % the
#: series of vLLM that are never recorded after a slow session gain .09 % in half a year, at 1 % half of that.
DOUBTFUL = 0.01
#: Levels below this are beyond what any distribution of launches is known to.
LEAST_ALPHA = 1e-9


class Gate:
    """Judges fresh launches of one metric against the stored ones (docs/concepts/how-the-gate-decides.md).

    ``baseline_launches``: the accepted launches, each its repetitions or its value alone. ``alpha``: probability that
    an unchanged test fails, over both stages. ``min_effect``: the least relative loss that matters.
    ``max_regression``: the loss that must not go unseen; the outcome says when the evidence is too thin for it.
    ``confirm_launches``: fresh launches that a suspect is confirmed on. ``hosts`` names the host of each stored
    launch, ``host`` that of the fresh ones; without them hosts are taken to be alike. A host with three stored
    launches is judged by its own alone.

    A session screens one launch; nothing fails or is called improved on it. ``confirm`` judges fresh launches of a
    suspect, or of a ``faster`` one before a new epoch begins: their mean must lie beyond its limit, and each of them
    beyond the screen's.

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
        self._stored = self._sign * np.array([float(log_location(x)) for x in logs])
        self.wander = math.sqrt(wander(baseline_launches))
        self._ref = reference(self._stored, self.prior, wander=self.wander**2, hosts=hosts, host=host)

    @property
    def k(self) -> int:
        """Stored launches that the judgement rests on."""
        return len(self._ref.used)

    @property
    def nu(self) -> float:
        """Degrees of freedom behind the launch spread."""
        return float(self._ref.nu)

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
        """Limits of one fresh launch at the screen: suspect beyond the guarding one, faster beyond the other."""
        return self._screen_band(self._design(1))

    @property
    def outliers(self) -> tuple[int, ...]:
        """Stored launches that lie far from all others, by index into ``baseline_launches``. They count for less than
        the others; without them the band is tighter. None is told apart where hosts stand in for each other."""
        if not self._ref.one_host:
            return ()
        odd = outliers(self._stored[[*self._ref.used]], self.prior, self._least, wander=self.wander**2)
        return tuple(self._ref.used[i] for i in odd)

    @property
    def mde(self) -> float:
        """Smallest relative loss that both stages together fail with 80 % power, the spread being what it seems."""
        return self._mde(self._design(1))

    @property
    def tolerated(self) -> float:
        """Loss that must not go unseen: ``max_regression``, else ``WEAK``."""
        return WEAK if self.max_regression is None else self.max_regression

    @property
    def weak(self) -> bool:
        """Whether a pass says little: the smallest detectable loss exceeds ``tolerated``."""
        return self.mde > self.tolerated

    def required_launches(self, max_regression: float) -> int | None:
        """Stored launches needed to see a loss of ``max_regression`` with 80 % power, should the spread stay as it is
        (and, where other hosts' launches stand in now, all of them be this host's).

        None when ``MOST_LAUNCHES`` would not do.
        """
        counts = range(self.k if self._ref.one_host else 1, max(MOST_LAUNCHES, self.k) + 1)
        nu = self.prior.d0 - 1
        designs = [Design(1 / n, 1, self.confirm_launches, nu + n, self.alpha) for n in counts]
        found = bisect_left(designs, True, key=lambda d: self._mde(d) <= max_regression)
        return counts[found] if found < len(counts) else None

    def screen(self, values: Launch | Sequence[Launch]) -> Outcome:
        """Judge the session's first launch (or launches: a sequence of sequences) of this test."""
        logs = stack(values)
        if logs is None:
            return self._invalid()
        design = self._design(logs.size)
        seen = shift(self._ref, self._sign * logs, pooled=False)
        code = int(first_stage(seen, design.screen, self._least))
        outcome = self._outcome(VERDICTS[code], logs, seen, self._screen_band(design), self._mde(design))
        if code != FASTER or outcome.verdict != "passed":
            return outcome
        return replace(outcome, faster=True, reasons=("faster, unconfirmed", *outcome.reasons))

    def confirm(self, launches: Sequence[Launch], *, screened: int = 1) -> Outcome:
        """Judge the fresh launches that a suspect, or a faster one, was confirmed on, and only those.

        ``screened`` is the number of launches that the screen saw. A flat sequence holds one value per launch.
        """
        logs = stack(launches, flat_is_one=False)
        if logs is None:
            return self._invalid()
        design = self._design(screened, logs.size)
        seen = shift(self._ref, self._sign * logs, pooled=True)
        limit = each_limit(self._ref, design.each, self._least)
        verdict = VERDICTS[int(last_stage(seen, design.confirm, self._least, limit))]
        band = self._band(max(design.confirm * float(seen.error), float(limit)))
        return self._outcome(verdict, logs, seen, band, self._mde(design))

    def single(self, launches: Launch | Sequence[Launch]) -> Outcome:
        """Judge at one stage, where no confirmation is possible: regressed and improved are ``unconfirmed``."""
        logs = stack(launches)
        if logs is None:
            return self._invalid()
        seen = shift(self._ref, self._sign * logs, pooled=True)
        critical = quantile(self.alpha, float(seen.nu))
        verdict = VERDICTS[int(last_stage(seen, critical, self._least))]
        error = self.spread * math.sqrt(float(self._ref.share) + 1 / logs.size)
        reach = max(critical * error, self._least) + quantile(1 - POWER, float(seen.nu)) * error
        outcome = self._outcome(verdict, logs, seen, self._band(critical * float(seen.error)), self._loss(reach))
        if verdict == "passed":
            return outcome
        many = f"{logs.size} launch{'es' if logs.size > 1 else ''}"
        said = f"unconfirmed: judged on {many}, which no fresh one confirmed"
        return replace(outcome, unconfirmed=True, reasons=(said, *outcome.reasons))

    def doubts(self, launches: Sequence[Launch]) -> bool:
        """Whether all launches of a session together, those that were suspect and those that confirmed, lie so far on
        the worse side that they must not be recorded as normal, even where they have proven nothing."""
        logs = stack(launches, flat_is_one=False)
        if logs is None:
            return True
        seen = shift(self._ref, self._sign * logs, pooled=False)
        return int(last_stage(seen, quantile(DOUBTFUL, self.nu), self._least)) == REGRESSED

    def _design(self, screened: int, confirmed: int | None = None) -> Design:
        share, confirmed = float(self._ref.share), confirmed or self.confirm_launches
        return design_of(share, self.nu, screened, confirmed, self.alpha, one_host=self._ref.one_host)

    def _screen_band(self, design: Design) -> tuple[float, float]:
        return self._band(design.screen * self.spread * math.sqrt(float(self._ref.share) + 1 / design.screened))

    def _band(self, reach: float) -> tuple[float, float]:
        factor = math.exp(max(reach, self._least))
        return self.center / factor, self.center * factor

    def _mde(self, design: Design) -> float:
        return self._loss(design.detectable(self._least / self.spread) * self.spread)

    def _loss(self, log: float) -> float:
        return -math.expm1(-log) if self.higher_is_better else math.expm1(log)

    def _invalid(self) -> Outcome:
        reason = "a fresh launch holds a value that is not positive and finite, or none at all"
        return Outcome("invalid", center=self.center, nu=self.nu, reasons=(reason,))

    def _outcome(self, verdict: str, logs: Array, seen: Shift, band: tuple[float, float], mde: float) -> Outcome:
        value = math.exp(float(np.mean(logs)))
        weak = mde > self.tolerated
        unstable = self._unstable(logs)
        trusted = self.max_regression is not None and not weak
        if unstable and verdict == "passed" and not trusted:
            verdict = "inconclusive"
        required = self.required_launches(self.tolerated) if weak else None
        return Outcome(
            verdict=verdict,
            value=value,
            center=self.center,
            band=band,
            change=value / self.center - 1,
            p=float(seen.p),
            t=float(seen.t),
            nu=float(seen.nu),
            launches=int(logs.size),
            mde=mde,
            required_launches=required,
            weak=weak,
            reasons=tuple(r for r in (unstable, *self._caveats(mde, weak, required)) if r),
        )

    def _unstable(self, logs: Array) -> str | None:
        """Why no band should be trusted, if so: a wide one would pass a loss unseen."""
        code = int(unsteadiness(self._ref, self.prior.d0, self._least))
        if code == GROUPED:
            gap, _ = modes(self._ref.residuals, self.prior.d0, self._ref.expected)
            return f"stored launches fall into two groups {math.expm1(float(gap)):.1%} apart"
        if code == SPREAD:
            shown = math.sqrt(float(self._ref.shown))
            return f"stored launches spread by {shown:.1%}, where {float(self._ref.expected):.1%} is usual"
        if bool(disagree(self._ref, logs, self._least)):
            return f"fresh launches spread by {float(np.std(logs, ddof=1)):.1%}, where {self.spread:.1%} is usual"
        return None

    def _caveats(self, mde: float, weak: bool, required: int | None) -> list[str]:
        """What a reader must know to weigh the verdict."""
        said = []
        if weak:
            needed = (
                f"{required} stored launch{'' if required == 1 else 'es'}{' of this host' if self.other_host else ''}"
            )
            cure = f"{needed} would see it" if required else f"{MOST_LAUNCHES} would not do either"
            asked = "asked for" if self.max_regression is not None else "that should not go unseen"
            said.append(
                f"underpowered: {self.k} stored launches see a loss of {mde:.1%} (80 % power), "
                f"not the {self.tolerated:.1%} {asked}; {cure}"
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
