"""The main job, as a user runs it: record, gate, see a regression fail. Fake engine, real processes."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import SUITE, Project

WORKERS = pytest.mark.parametrize("workers", [0, 2], ids=["serial", "xdist"])


@WORKERS
def test_an_unchanged_engine_passes(recorded: Project, workers: int) -> None:
    result = recorded.run(workers=workers)
    assert result.ret == 0, result.outlines
    result.assert_outcomes(passed=1)
    assert recorded.launches == 1
    assert recorded.result["verdict"] == "passed"
    assert recorded.result["baseline"]["launches"] == 3


@WORKERS
def test_a_slower_engine_fails_and_says_why(recorded: Project, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setenv("FAKE_SLOWDOWN", "0.7")
    monkeypatch.setenv("FAKE_VERSION", "0.6.0")
    result = recorded.run(workers=workers) if workers else recorded.run_here()
    assert result.ret == pytest.ExitCode.TESTS_FAILED, result.outlines
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([
        ">*assert run.decode_tok_s in baseline",
        "E * decode_tok_s regressed: *% below the baseline, beyond its band",
        "E * measured *tok/s*",
        "*- llmperf -*",
        "  measured * tok/s*",
        "  baseline * tok/s (-*%), sglang/test_perf/test_decode/*.toml",
        "  band * to * tok/s: passes at * or more, level 1.0%",
        "  launches  1 screened, 2 confirming, against 3 stored*",
        "  sees * a loss of *% or more with 80% power",
        "differs from the baseline:",
        "  engine version*0.5.17 -> 0.6.0",
        "*= llmperf =*",
        "*test_decode *regressed*",
        "FAILED test_perf.py::test_decode?sglang?*",
    ])  # fmt: skip
    found = recorded.result
    assert found["verdict"] == "regressed"
    assert found["change"] < -0.15  # 30 % by the schedule, which a busy machine runs behind
    assert {"name": "engine version", "baseline": "0.5.17", "now": "0.6.0"} in found["differences"]


def test_record_with_three_launches_then_gate(project: Project) -> None:
    result = project.run("--update-baselines", "--launches", "3")
    assert result.ret == 0, result.outlines
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_perf.py mm.*", "*recorded 3 launches (first recording)*", "*1 recorded*"])
    assert project.launches == 3
    assert [x["role"] for x in project.result["launches"]] == ["record"] * 3
    assert len(project.baselines) == 1
    result = project.run_here()
    assert result.ret == 0, result.outlines
    assert project.result["baseline"]["launches"] == 3
    assert project.launches == 4


def test_two_engines_in_one_run(project: Project) -> None:
    """Each has its own baseline and its name in the id; a marker may restrict a test to some engines."""
    project.suite(
        SUITE
        + """

@pytest.mark.llm_server(engine="vllm")
@perf(repetitions=3, max_repetitions=3)
def test_only_vllm(llm_server, baseline, engine):
    assert engine == llm_server.config.engine == "vllm"
    assert llm_server.stream(output_tokens=24).decode_tok_s in baseline
"""
    )
    result = project.run_here("--engine", "vllm", "--update-baselines", "-v")
    assert result.ret == 0, result.outlines
    assert project.verdicts == {
        "test_decode[sglang]": "no_baseline",
        "test_decode[vllm]": "no_baseline",
        "test_only_vllm[vllm]": "no_baseline",
    }
    assert sorted(p.split("/")[0] for p in project.baselines) == ["sglang", "vllm", "vllm"]
    assert project.launches == 2
    result = project.run_here()
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(["*1 test for other engines than sglang, so deselected*"])
    assert "unused" not in project.messages  # vllm's baselines are another day's
