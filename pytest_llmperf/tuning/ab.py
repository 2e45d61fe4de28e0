"""A/B of two builds or configs: which side to launch next, and when the answer is clear.

Launches alternate ABBA ABBA ..., so that a linear drift cancels over every block of four. After each complete pair the
launches so far are judged by a rule whose error stays within its level however often one looks (``stats.trial``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_llmperf.stats import Launch, Prior, Trial, abba, trial


@dataclass(frozen=True)
class Step:
    """What to do next. ``side`` is ``a`` or ``b``, None when the trial is over; ``trial`` is where it stands."""

    side: str | None
    trial: Trial


def step(
    a: Sequence[Launch],
    b: Sequence[Launch],
    *,
    budget: int,
    higher_is_better: bool = True,
    level: float = 0.95,
    prior: Prior | None = None,
    min_effect: float = 0.01,
) -> Step:
    """The next step after these launches (each its repetitions, or one value), made in the order that steps asked for.

    ``budget`` is the most launches of each side; never is more asked for. Raises ``ValueError`` for unusable launches
    or when the launches are not those of the order.
    """
    made = len(a) + len(b)
    planned = abba(budget)
    done = planned[:made]
    if (done.count("A"), done.count("B")) != (len(a), len(b)):
        raise ValueError(f"{len(a)} launches of a and {len(b)} of b are not the start of {planned}")
    judged = trial(
        a,
        b,
        budget=budget,
        higher_is_better=higher_is_better,
        level=level,
        prior=prior,
        min_effect=min_effect,
    )
    between = len(a) != len(b)
    if between or (not judged.done and made < len(planned)):
        return Step(planned[made].lower(), judged)
    return Step(None, judged)
