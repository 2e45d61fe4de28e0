"""Statistics of the gate: pure numpy/scipy, no pytest, no I/O."""

from .compare import Effect, Ratio, effects, ratio_interval
from .gate import Gate
from .history import Drift, Segment, drift, segments
from .levels import session_alpha
from .location import Launch, location
from .prior import Prior, fit_prior
from .sequential import Trial, abba, trial
from .target import TargetOutcome, judge_target
from .verdict import Outcome

__all__ = [
    "Drift",
    "Effect",
    "Gate",
    "Launch",
    "Outcome",
    "Prior",
    "Ratio",
    "Segment",
    "TargetOutcome",
    "Trial",
    "abba",
    "drift",
    "effects",
    "fit_prior",
    "judge_target",
    "location",
    "ratio_interval",
    "segments",
    "session_alpha",
    "trial",
]
