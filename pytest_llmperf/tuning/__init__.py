"""Planning a hunt for speed: what to vary, in which order to launch, when to stop, what the launches say.

Pure: nothing here starts a server or measures. ``plan`` expands ``@pytest.mark.llm_sweep``, ``order`` says which
config to launch when, ``ab`` runs two sides against each other until the answer is clear, ``knee`` reads a load curve,
``results`` turns launches into the values that every report draws, ``presets`` holds named settings with their reason.
"""

from __future__ import annotations

from pytest_llmperf.tuning.ab import Step, step
from pytest_llmperf.tuning.knee import Knee, find_knee
from pytest_llmperf.tuning.order import Slot, launch_order
from pytest_llmperf.tuning.plan import SweepPlan, Variation, plan
from pytest_llmperf.tuning.presets import Preset, Presets, expand, load_presets
from pytest_llmperf.tuning.ratios import curve, gap, nccl_note, sweep

__all__ = [
    "Knee",
    "Preset",
    "Presets",
    "Slot",
    "Step",
    "SweepPlan",
    "Variation",
    "curve",
    "expand",
    "find_knee",
    "gap",
    "launch_order",
    "load_presets",
    "nccl_note",
    "plan",
    "step",
    "sweep",
]
