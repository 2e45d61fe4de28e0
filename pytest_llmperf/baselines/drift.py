"""Slow drift: many steps, each too small to fail, that add up."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmperf.baselines.series import KEEP_FIRST, Series, StoredLaunch
from pytest_llmperf.stats import Prior, drift

#: Level of a report about drift: it fails nothing, so that one false word in a hundred is bearable.
LEVEL = 0.01
#: Launches, the newest ones, whose mean stands for "now".
_NOW = 3


def check(
    series: Series,
    metric: str,
    fresh: Sequence[StoredLaunch],
    *,
    higher_is_better: bool = True,
    prior: Prior | None = None,
    min_effect: float = 0.01,
) -> str | None:
    """A sentence when the newest launches are credibly worse than the current epoch's first ones, else None.

    The first ``KEEP_FIRST`` launches stay in the file for this; the newest stored ones of the same host count as "now"
    with ``fresh``. Where the first ones ran elsewhere, the spread between hosts is no drift.
    """
    stored = series.launches(metric)
    if len(stored) <= KEEP_FIRST:
        return None
    ids = {x.id for x in stored}
    later = [*stored[KEEP_FIRST:], *(x for x in fresh if x.id not in ids and metric in x.metrics)]
    later = [x for x in later if x.host == later[-1].host][-_NOW:]
    if len(later) < _NOW:
        return None
    first = stored[:KEEP_FIRST]
    sides = ([x.metrics[metric] for x in side] for side in (first, later))
    seen = drift(
        *sides,
        higher_is_better=higher_is_better,
        level=LEVEL,
        prior=prior,
        min_effect=min_effect,
        hosts=[x.host for x in first],
        host=later[-1].host,
    )
    if not seen.drifted:
        return None
    return (
        f"slow drift: {metric} is {abs(seen.change):.1%} {'below' if higher_is_better else 'above'} the launches of "
        f"{first[0].recorded[:10]} to {first[-1].recorded[:10]} that this epoch began with"
    )
