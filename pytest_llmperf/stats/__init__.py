"""Statistics of the gate: pure numpy/scipy, no pytest, no I/O."""

from .gate import Gate
from .levels import session_alpha
from .location import Launch, location
from .prior import Prior, fit_prior
from .target import TargetOutcome, judge_target
from .verdict import Outcome

__all__ = [
    "Gate",
    "Launch",
    "Outcome",
    "Prior",
    "TargetOutcome",
    "fit_prior",
    "judge_target",
    "location",
    "session_alpha",
]
