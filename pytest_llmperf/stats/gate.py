"""The verdict on one metric of one test: fresh launches against the stored ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .levels import POWER, Design, quantile
from .location import Array, Launch, launch_logs, log_location, squared_error, stack
from .prior import Prior
from .reference import HOST_SPREAD, Reference, Shift, reference, shift
from .stability import MODES_APART, modes, too_spread
from .verdict import VERDICTS, Outcome, first_stage, last_stage

#: More launches than this are never asked for.
MOST_LAUNCHES = 60


class Gate:
    """Judges fresh launches of one metric against the stored ones (docs/concepts/how-the-gate-decides.md).

    ``baseline_launches``: the accepted launches, oldest first. ``alpha``: probability that an unchanged test fails,
    over both stages. ``min_effect``: the least relative loss that matters. ``max_regression``: the loss that must not
    go unseen; the verdict says when the evidence is too thin for it. ``confirm_launches``: fresh launches that a
    suspect is confirmed on. ``hosts`` names the host of each stored launch, ``host`` that of the fresh ones.

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
        logs = [launch_logs(launch) for launch in baseline_launches]
        if not logs:
            raise ValueError("a gate needs at least one stored launch")
        bad = [i for i, x in enumerate(logs) if x is None]
        if bad:
            raise ValueError(f"stored launch {bad[0] + 1} holds a value that is not positive and finite, or none")
        self.higher_is_better, self.alpha, self.min_effect = higher_is_better, alpha, min_effect
        self.prior = prior or Prior()
        self.max_regression, self.confirm_launches = max_regression, confirm_launches
        self.hosts, self.host = hosts, host
        self._sign = 1.0 if higher_is_better else -1.0
        sound = [x for x in logs if x is not None]
        self._stored = self._sign * np.array([float(log_location(x)) for x in sound])
        self.wander = math.sqrt(float(np.median([float(squared_error(x)) for x in sound])))
        self._ref = reference(self._stored, self.prior, wander=self.wander**2, hosts=hosts, host=host)
        self._least = -math.log1p(-min_effect) if higher_is_better else math.log1p(min_effect)

    @property
    def k(self) -> int:
        """Stored launches."""
        return int(self._stored.size)

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
    def prior_only(self) -> bool:
        """Whether the spread is the prior's alone."""
        return self._ref.own_df == 0

    @property
    def other_host(self) -> bool:
        """Whether the fresh side runs on a host that no stored launch ran on."""
        return self.host is not None and self.hosts is not None and self.host not in self.hosts

    @property
    def band(self) -> tuple[float, float]:
        """Limits of one fresh launch at the screen: suspect beyond the guarding one, improved beyond the other."""
        return self._band(self._ref, 1, self._design(1).screen, self._design(1).confirm)

    @property
    def mde(self) -> float:
        """Smallest relative loss that both stages together see with 80 % power."""
        return self._mde(self._design(1))

    def requiredstack(self, max_regression: float) -> int | None:
        """Stored launches needed to see a loss of ``max_regression`` with 80 % power, should the spread stay as it is.

        None when ``MOST_LAUNCHES`` would not do.
        """
        for k in range(self.k, MOST_LAUNCHES + 1):
            nu = self.nu + k - self.k
            if self._mde(Design(1 / k, 1, self.confirm_launches, nu, self.alpha)) <= max_regression:
                return k
        return None

    def screen(self, values: Launch | Sequence[Launch]) -> Outcome:
        """Judge the session's first launch (or launches: a sequence of sequences) of this test."""
        logs = stack(values)
        if logs is None:
            return self._invalid(0)
        design = self._design(logs.size)
        seen = shift(self._ref, self._sign * logs, pooled=False)
        verdict = VERDICTS[int(first_stage(seen, design, self._least))]
        band = self._band(self._ref, logs.size, design.screen, design.confirm)
        return self._outcome(verdict, logs, seen, band, design)

    def confirm(self, launches: Sequence[Launch], *, screened: int = 1) -> Outcome:
        """Judge the fresh launches that a suspect was confirmed on, and only those.

        ``screened`` is the number of launches that the screen saw.
        """
        logs = stack(launches, flat_is_one=False)
        if logs is None:
            return self._invalid(len(launches))
        design = Design(float(self._ref.share), screened, logs.size, self.nu, self.alpha)
        return self._decide(logs, design.confirm, design)

    def single(self, launches: Launch | Sequence[Launch]) -> Outcome:
        """Judge at one stage, where no confirmation is possible (a server that cannot be launched anew)."""
        logs = stack(launches)
        if logs is None:
            return self._invalid(0)
        design = self._design(logs.size)
        return self._decide(logs, quantile(self.alpha, self.nu + logs.size - 1), design)

    def _decide(self, logs: Array, critical: float, design: Design) -> Outcome:
        seen = shift(self._ref, self._sign * logs, pooled=True)
        verdict = VERDICTS[int(last_stage(seen, critical, self._least))]
        size = max(critical * float(seen.error), self._least)
        return self._outcome(verdict, logs, seen, self._limits(size, size), design)

    def _design(self, screened: int) -> Design:
        return Design(float(self._ref.share), screened, self.confirm_launches, self.nu, self.alpha)

    def _band(self, ref: Reference, r: int, guard: float, improve: float) -> tuple[float, float]:
        error = float(ref.spread * np.sqrt(ref.share + 1 / r))
        return self._limits(max(guard * error, self._least), max(improve * error, self._least))

    def _limits(self, worse: float, better: float) -> tuple[float, float]:
        ends = sorted((self._sign * -worse, self._sign * better))
        return self.center * math.exp(ends[0]), self.center * math.exp(ends[1])

    def _mde(self, design: Design) -> float:
        errors = [self.spread * math.sqrt(design.share + 1 / r) for r in (design.screened, design.confirmed)]
        criticals = (design.screen, design.confirm)
        log = max(
            max(c * e, self._least) + quantile(1 - POWER, design.nu) * e for c, e in zip(criticals, errors, strict=True)
        )
        return -math.expm1(-log) if self.higher_is_better else math.expm1(log)

    def _invalid(self, launches: int) -> Outcome:
        reason = "a launch holds a value that is not positive and finite, or none"
        return Outcome(
            "invalid", None, self.center, None, None, None, None, self.nu, launches, self.mde, None, (reason,)
        )

    def _outcome(self, verdict: str, logs: Array, seen: Shift, band: tuple[float, float], design: Design) -> Outcome:
        value = math.exp(float(np.mean(logs)))
        reasons: list[str] = []
        unstable = self._unstable()
        mde = self._mde(design)
        if unstable and verdict == "passed" and not (self.max_regression and mde <= self.max_regression):
            verdict = "inconclusive"
            reasons.append(unstable)
        required = None
        if self.max_regression is not None and mde > self.max_regression:
            required = self.requiredstack(self.max_regression)
            wish = f"{required} stored launches would" if required else f"not even {MOST_LAUNCHES} launches would"
            reasons.append(
                f"underpowered: the smallest loss seen with 80 % power is {mde:.1%}, more than the "
                f"{self.max_regression:.1%} asked for; {wish} mend it"
            )
        if self.prior_only:
            reasons.append(f"prior-only: one launch stored, its spread is assumed ({self.prior.source} prior)")
        if self.other_host:
            reasons.append(
                f"other host: no stored launch ran here, so hosts' own spread ({HOST_SPREAD:.1%}) widens the band; "
                "record launches on this host to tighten it"
            )
        if self.wander > self.prior.s0:
            reasons.append(
                f"repetitions wander inside the stored launches: a launch's value is known to {self.wander:.1%} only, "
                f"so the expected launch spread is raised from {self.prior.s0:.1%} to that"
            )
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
            reasons=tuple(reasons),
        )

    def _unstable(self) -> str | None:
        """Why no band should be drawn around the stored launches, if so."""
        expected = float(self._ref.prior_spread)
        gap, size = (float(x) for x in modes(self._stored, self.prior.d0, expected))
        if size > MODES_APART and gap > self._least:
            return f"stored launches fall into two groups {math.expm1(gap):.1%} apart"
        own = math.sqrt(float(self._ref.own_squares) / max(self._ref.own_df, 1))
        if bool(too_spread(self._ref, self.prior.d0)) and own > self._least:
            return f"stored launches spread by {own:.1%}, where {expected:.1%} is usual"
        return None


def _check(alpha: float, min_effect: float, confirm_launches: int, max_regression: float | None) -> None:
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha must lie between 0 and 0.5, got {alpha!r}")
    if not 0 <= min_effect < 1:
        raise ValueError(f"min_effect must lie between 0 and 1, got {min_effect!r}")
    if confirm_launches < 1:
        raise ValueError(f"confirm_launches must be 1 at least, got {confirm_launches!r}")
    if max_regression is not None and not 0 < max_regression < 1:
        raise ValueError(f"max_regression must lie between 0 and 1, got {max_regression!r}")
