"""Statistics of the gate: pure numpy/scipy, no pytest, no I/O."""

from .change_points import Drift, Segment, drift, segments
from .compare import Ratio, RatioEffect, effects, ratio_interval
from .gate import Gate
from .levels import session_alpha
from .location import Launch, location
from .prior import Prior
from .prior_fit import fit_prior, two_groups
from .sequential import Trial, abba, trial
from .stability import far_apart
from .target import TargetOutcome, target_outcome
from .verdict import Outcome

__all__ = [
    "Drift",
    "Gate",
    "Launch",
    "Outcome",
    "Prior",
    "Ratio",
    "RatioEffect",
    "Segment",
    "TargetOutcome",
    "Trial",
    "abba",
    "drift",
    "effects",
    "far_apart",
    "fit_prior",
    "location",
    "ratio_interval",
    "segments",
    "session_alpha",
    "target_outcome",
    "trial",
    "two_groups",
]
