"""Launches become effects, gaps and curves: planted ones are found, absent ones are not, intervals cover."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_llmperf.measure.metrics import METRICS
from pytest_llmperf.records.gaps_and_sweeps import CurvePoint, Sweep
from pytest_llmperf.records.results import SessionRecord
from pytest_llmperf.report import terminal
from pytest_llmperf.tuning.order import launch_order
from pytest_llmperf.tuning.plan import plan
from pytest_llmperf.tuning.ratios import curve, gap, nccl_note, sweep

SPEED, TTFT = METRICS["decode_tok_s"], METRICS["ttft_ms"]
PLAN = plan(
    {"attention_backend": ["flashinfer", "fa3"], "nccl__proto": ["Simple"], "sglang__steps": [4]},
    {"model": "m", "attention_backend": "triton", "nccl": {"proto": "LL"}},
)
TRUE = {
    "attention_backend=flashinfer": 1.30,
    "attention_backend=fa3": 0.85,
    "nccl.proto=Simple": 1.0,
    "sglang.steps=4": 1.0,
}


def launched(seed: int, between: float = 0.01, drift: float = 0.0) -> dict[str, list[list[float]]]:
    """Launches in the planned order, with the planted effects and a drift from launch to launch."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[list[float]]] = {}
    for i, slot in enumerate(launch_order([v.name for v in PLAN.variations], 2)):
        level = 63.6 * TRUE.get(slot.name, 1.0) * np.exp(rng.normal(0, between) + drift * i)
        found.setdefault(slot.name, []).append([float(v) for v in level * np.exp(rng.normal(0, 0.003, 5))])
    return found


def made(seed: int, **more: float) -> Sweep:
    return sweep(PLAN, launched(seed, **more), {}, SPEED, engine="sglang")


def test_planted_effects_are_found_best_first_and_absent_ones_are_not() -> None:
    for seed in range(40):
        rows = {(e.knob, e.setting): e for e in made(seed).effects}
        assert rows["attention_backend", "flashinfer"].credible
        assert rows["attention_backend", "fa3"].credible
    found = made(1)
    first = found.effects[0]
    assert found.base_value is not None
    assert first.value == pytest.approx(found.base_value * (first.ratio or 0))
    assert (first.knob, first.setting) == ("attention_backend", "flashinfer")


def test_each_launch_is_told() -> None:
    found, launches = made(1), launched(1)
    assert found.base_launch_values == pytest.approx([np.mean(x) for x in launches["base"]], rel=0.005)
    for effect in found.effects:
        values = [np.mean(x) for x in launches[f"{effect.knob}={effect.setting}"]]
        assert effect.launch_values == pytest.approx(values, rel=0.005)


def test_an_absent_effect_is_seldom_called_one() -> None:
    wrong = sum(e.credible for seed in range(150) for e in made(seed).effects if TRUE[f"{e.knob}={e.setting}"] == 1.0)
    assert wrong <= 12  # simultaneous over all four: at most 5 % of 150 sweeps


def test_a_drift_is_not_an_effect() -> None:
    quiet = [e for e in made(5, drift=-0.01, between=0.001).effects if e.knob in ("nccl.proto", "sglang.steps")]
    for e in quiet:
        assert e.ratio == pytest.approx(1.0, abs=0.005)


def test_the_intervals_cover_the_truth_together() -> None:
    hits = 0
    for seed in range(150):
        rows = made(seed).effects
        hits += all(e.interval and e.interval[0] <= TRUE[f"{e.knob}={e.setting}"] <= e.interval[1] for e in rows)
    assert hits >= 135  # 95 % of 150 are 142; below 135 would be a chance of 1 in 200


def test_lower_is_better_turns_the_order_round() -> None:
    found = sweep(PLAN, launched(1), {}, TTFT, engine="sglang")
    assert (found.effects[0].knob, found.effects[0].setting) == ("attention_backend", "fa3")
    assert not found.higher_is_better


def test_a_config_that_did_not_start_is_a_result() -> None:
    launches = launched(1)
    del launches["attention_backend=fa3"]
    found = sweep(PLAN, launches, {"attention_backend=fa3": "unsupported on this GPU"}, SPEED, engine="sglang")
    last = found.effects[-1]
    assert (last.setting, last.failure, last.ratio) == ("fa3", "unsupported on this GPU", None)
    assert len(found.effects) == 4


def test_without_a_base_nothing_is_compared_and_it_is_said() -> None:
    launches = launched(1)
    del launches["base"]
    found = sweep(PLAN, launches, {"base": "out of memory"}, SPEED, engine="sglang")
    assert found.base_value is None
    assert all(e.ratio is None and not e.credible for e in found.effects)
    assert all("out of memory" in (e.note or "") for e in found.effects)


def test_nothing_started() -> None:
    found = sweep(PLAN, {}, {"base": "no GPU"}, SPEED, engine="sglang")
    assert [e.failure for e in found.effects] == ["no GPU"] * 4


def test_notes_stand_by_their_variation() -> None:
    found = sweep(PLAN, launched(1), {}, SPEED, engine="sglang", notes={"nccl.proto=Simple": "a note"})
    assert {e.knob: e.note for e in found.effects if e.note} == {"nccl.proto": "a note"}


def test_an_nccl_knob_that_nothing_reads_is_pointed_out() -> None:
    knobs = {v.settings[0][0]: v for v in PLAN.variations}
    nccl, backend = knobs["nccl.proto"], knobs["attention_backend"]
    assert "custom all-reduce is on" in (nccl_note(nccl, gpus=8, custom_all_reduce=True) or "")
    assert nccl_note(nccl, gpus=1, custom_all_reduce=None) == "one GPU: NCCL carries nothing"
    assert nccl_note(backend, gpus=1, custom_all_reduce=True) is None
    assert nccl_note(nccl, gpus=8, custom_all_reduce=False) is None
    assert nccl_note(nccl, gpus=None, custom_all_reduce=None) is None


def test_a_sweep_survives_json_and_the_terminal() -> None:
    session = SessionRecord({}, sweeps=(made(1),))
    again = SessionRecord.from_json(session.to_json())
    assert again.sweeps == session.sweeps
    page = terminal.render(again, width=140, color=False)
    assert "base: launches at " in page
    assert "attention_backend=flashinfer" in page
    assert "no credible effect" in page


def test_the_gap_between_engines_covers_the_truth() -> None:
    """SGLang launches differ by 0.1 %, vLLM's by 1.5 %: each side has its own spread."""
    hits = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        sglang = [[float(63.6 * np.exp(rng.normal(0, 0.001)))] for _ in range(3)]
        vllm = [[float(82.5 * np.exp(rng.normal(0, 0.015)))] for _ in range(3)]
        found = gap("t", SPEED, "vllm", vllm, "sglang", sglang)
        assert found.interval is not None
        hits += found.interval[0] <= 82.5 / 63.6 <= found.interval[1]
    assert hits >= 182
    assert found.launches == (3, 3)
    assert found.value / found.reference_value == pytest.approx(found.ratio)


def test_a_load_curve_with_its_knee() -> None:
    points = [
        CurvePoint(c, 2370 * min(c / 32, 1) * (1 + 0.01 * launch), stream_tok_s=60.0, ttft_ms=None)
        for c in (1, 2, 4, 8, 16, 32, 48, 64)
        for launch in (0, 1)
    ]
    found = curve("t", "sglang", points, max_running_requests=48)
    assert found.knee == 32
    assert [p.concurrency for p in found.points] == [1, 2, 4, 8, 16, 32, 48, 64]
    assert found.points[-1].output_tok_s == pytest.approx(2370 * 1.005, rel=1e-3)
    assert found.points[0].stream_tok_s == pytest.approx(60.0)
    assert found.points[0].ttft_ms is None
    assert found.max_running_requests == 48
