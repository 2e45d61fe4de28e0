"""Launches of SGLang 0.5.17 and vLLM 0.26.0 measured on an H200: the verdict is right for each of three behaviours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scipy import stats

from pytest_llmperf.stats import Gate, Prior, location, ratio_interval

DATA = json.loads((Path(__file__).parents[2] / "benchmarks" / "data" / "h200-launches.json").read_text())


def blocks(engine: str, model: str, host: str) -> list[list[float]]:
    found = (x for x in DATA["launches"] if (x["engine"], x["model"], x["host"]) == (engine, model, host))
    return [block for launch in found for block in launch["blocks"]]


SGLANG, VLLM_8B, VLLM_3B = blocks("sglang", "3b", "C"), blocks("vllm", "8b", "C"), blocks("vllm", "3b", "A")


def scaled(values: list[float], factor: float) -> list[float]:
    return [v * factor for v in values]


@pytest.mark.parametrize("launches", [SGLANG, VLLM_8B, VLLM_3B], ids=["SGLang 3B", "vLLM 8B", "vLLM 3B"])
def test_every_launch_agrees_with_the_others(launches: list[list[float]]) -> None:
    """SGLang's with its one slow request, the 8B's cold one, the 3B's slow stretches: none is a regression."""
    for i, launch in enumerate(launches):
        others = launches[:i] + launches[i + 1 :]
        for stored in (others, others[:1]):
            gate = Gate(stored)
            outcome = gate.screen(launch)
            if outcome.verdict == "suspect":
                outcome = gate.confirm(others[-2:])
            assert outcome.verdict == "passed"


def test_pooled_repetitions_would_have_failed_the_warm_cache() -> None:
    cold, warm = VLLM_8B[0], VLLM_8B[1]
    assert stats.ttest_ind(cold, warm, equal_var=False, alternative="greater").pvalue < 1e-9
    assert stats.mannwhitneyu(cold, warm, alternative="greater").pvalue < 1e-3


@pytest.mark.parametrize("k", [1, 2, 4])
def test_overlap_scheduling_off_fails(k: int) -> None:
    """SGLang without it was 27 % slower."""
    gate, slow = Gate(SGLANG[:k]), [scaled(x, 0.73) for x in SGLANG[2:]]
    assert gate.screen(slow[2]).verdict == "suspect"
    assert gate.confirm(slow[:2]).verdict == "regressed"


def test_eager_mode_fails_even_where_launches_wander() -> None:
    for stored, launches in ((VLLM_3B[:1], VLLM_3B), (VLLM_8B, VLLM_8B)):
        gate, slow = Gate(stored), [scaled(x, 0.15) for x in launches]
        assert gate.screen(slow[1]).verdict == "suspect"
        assert gate.confirm(slow[:2]).verdict == "regressed"


def test_one_cold_launch_against_warm_ones_fails_nothing() -> None:
    """vLLM 8B: the launch that compiled was 1.6 % faster, mirrored here; its fellows load what it compiled."""
    warm = [scaled(x, VLLM_8B[0][0] / VLLM_8B[1][0]) for x in VLLM_8B[1:]]
    gate = Gate(warm, prior=Prior(4.0, 0.002))
    cold = scaled(warm[0], 0.93)
    assert gate.screen(cold).verdict == "suspect"
    assert gate.confirm(warm[1:3]).verdict == "passed"


def test_a_loss_of_three_percent_is_caught_where_launches_agree() -> None:
    gate = Gate(SGLANG)
    assert gate.screen(scaled(SGLANG[0], 0.97)).verdict == "suspect"
    assert gate.confirm([scaled(SGLANG[1], 0.97), scaled(SGLANG[2], 0.97)]).verdict == "regressed"


def test_another_attention_backend_is_told_from_noise() -> None:
    """triton gave 411.8 where fa3 gave 409.9 on the same host: too little to matter."""
    host_a = blocks("sglang", "3b", "A")
    assert Gate(host_a).screen([411.8]).verdict == "passed"


def test_wandering_is_said_and_widens_the_band() -> None:
    gate = Gate(VLLM_3B[:3])
    assert gate.wander > 0.012
    assert gate.mde > Gate(SGLANG[:3]).mde * 1.3
    assert any("wander" in r for r in gate.screen(VLLM_3B[4]).reasons)
    assert not any("wander" in r for r in Gate(SGLANG).screen(SGLANG[0]).reasons)


def test_one_slow_request_does_not_move_a_launch() -> None:
    hiccup = SGLANG[4]
    assert min(hiccup) < 406
    assert location(hiccup) == pytest.approx(413.9, abs=0.5)


def test_another_host_of_the_same_gpu_model_is_no_regression() -> None:
    """vLLM 8B: 224.6 on one host, 213-216 on another; a machine whose launches agree would call that a loss."""
    prior = Prior(4.0, 0.006)
    unaware, aware = Gate([224.6], prior=prior), Gate([224.6], prior=prior, hosts=["B"], host="C")
    assert unaware.confirm(VLLM_8B[1:3]).verdict == "regressed"
    assert aware.confirm(VLLM_8B[1:3]).verdict == "passed"
    assert aware.other_host


def test_the_gap_between_engines_has_its_interval() -> None:
    gap = ratio_interval(VLLM_3B, SGLANG)
    assert gap.credible
    assert 1.03 < gap.low < gap.ratio < gap.high < 1.2
