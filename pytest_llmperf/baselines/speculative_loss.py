"""What speculative decoding lost: tokens per step (the drafter) or steps per second (the kernels).

tok/s = acceptance length x steps/s, so that the loss of a launch falls apart into the two exactly, in logs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_llmperf.baselines.series import StoredLaunch
from pytest_llmperf.records.text import number, percent
from pytest_llmperf.stats import location

LENGTH = "acceptance_length"
#: Metrics that are acceptance length x steps/s.
SPEEDS = frozenset({"decode_tok_s", "stream_tok_s"})
#: Who bears at least this part of a loss is named alone.
_MOST = 0.75


def blame(metric: str, stored: Sequence[StoredLaunch], fresh: Sequence[StoredLaunch]) -> str | None:
    """Which of the two made ``metric`` slower, in a sentence; None without speculation or for another metric."""
    if metric not in SPEEDS:
        return None
    now = [x for x in fresh if LENGTH in x.metrics]
    was = [x for x in stored if LENGTH in x.metrics]
    if not now:
        return None
    if not was:
        return "the baseline holds no acceptance_length, so nothing tells the drafter from the kernels"
    length = _mean(now, LENGTH) - _mean(was, LENGTH)
    steps = _mean(now, metric) - _mean(now, LENGTH) - _mean(was, metric) + _mean(was, LENGTH)
    loss = length + steps
    if loss >= 0:
        return None
    share = length / loss
    who = "the drafter" if share >= _MOST else "the kernels" if share <= 1 - _MOST else "drafter and kernels both"
    tokens = f"{number(math.exp(_mean(now, LENGTH)))} tokens/step ({percent(math.expm1(length), signed=True)})"
    rate = math.exp(_mean(now, metric) - _mean(now, LENGTH))
    return f"{who} lost it: {tokens}, {number(rate)} steps/s ({percent(math.expm1(steps), signed=True)})"


def _mean(launches: Sequence[StoredLaunch], metric: str) -> float:
    """Mean over launches of the log of their values."""
    return sum(math.log(location(x.metrics[metric])) for x in launches) / len(launches)
