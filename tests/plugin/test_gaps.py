"""Two engines in one run: the gap between them, per test and metric, in every report. Fake engine, planted gaps."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_llmperf.baselines import store
from pytest_llmperf.baselines.series import Epoch
from tests.plugin.conftest import USUAL, Project

SUITE = """
import pytest
from pytest_llmperf import perf

pytestmark = pytest.mark.llm_server(model="fake-model")


@perf(metric=("decode_tok_s", "ttft_ms"), repetitions=3, max_repetitions=3)
def test_decode(llm_server, baseline):
    baseline.check(llm_server.stream(output_tokens=24, prompt_tokens=16))


@pytest.mark.llm_server(engine="vllm")
@perf(repetitions=3, max_repetitions=3)
def test_only_vllm(llm_server, baseline):
    assert llm_server.stream(output_tokens=24, prompt_tokens=16).decode_tok_s in baseline
"""
BOTH = ("--engine", "vllm", "--update-baselines")


@pytest.mark.parametrize("workers", [0, 2], ids=["serial", "xdist"])
def test_a_planted_gap_is_in_every_report(project: Project, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setenv("FAKE_EFFECTS", "engine=vllm:1.5")
    summary = project.path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    project.suite(SUITE)
    args = (*BOTH, "--launches", "2", "--llmperf-html", "out.html")
    result = project.run(*args, workers=workers) if workers else project.run_here(*args)
    assert result.ret == 0, result.outlines
    gaps = {g["metric"]: g for g in project.report["gaps"]}
    assert set(gaps) == {"decode_tok_s", "ttft_ms"}  # what one engine alone was asked has no gap
    speed = gaps["decode_tok_s"]
    assert (speed["test"], speed["engine"], speed["reference"]) == ("test_perf.py::test_decode", "sglang", "vllm")
    assert speed["launches"] == [2, 2]
    assert speed["ratio"] == pytest.approx(1 / 1.5, rel=0.12)
    assert speed["value"] / speed["reference_value"] == pytest.approx(speed["ratio"], rel=0.001)
    assert speed["interval"][0] < speed["ratio"] < speed["interval"][1] < 1
    assert speed["note"] is None
    shown = {
        r["engine"]: r["value"] for r in project.results if r["metric"] == "decode_tok_s" and "decode[" in r["nodeid"]
    }
    assert speed["value"] == pytest.approx(shown["sglang"], rel=0.001)
    assert speed["reference_value"] == pytest.approx(shown["vllm"], rel=0.001)
    said = f"{speed['ratio']:.3f}x"
    result.stdout.fnmatch_lines(["│ gap of engine over reference", f"*test_decode*sglang*vllm*{said}*2 vs 2*"])
    assert said in summary.read_text()
    assert said in (project.path / "out.html").read_text()


def test_no_gap_is_none(project: Project) -> None:
    """TTFT is told apart by nothing; the engine named first stands over the second; one launch each says so."""
    project.suite(SUITE)
    result = project.run_here("--engine", "sglang", "--update-baselines", engine="vllm")
    assert result.ret == 0, result.outlines
    [speed] = [g for g in project.report["gaps"] if g["metric"] == "decode_tok_s"]
    assert (speed["engine"], speed["reference"]) == ("vllm", "sglang")
    assert speed["launches"] == [1, 1]
    assert abs(math.log(speed["ratio"])) < 0.15
    assert "the interval is as wide as launches are assumed to differ" in speed["note"]
    result.stdout.fnmatch_lines(["*one launch a side: the interval is as wide as launches are assumed to differ*"])


def test_one_engine_has_no_gap(project: Project) -> None:
    project.suite(SUITE)
    assert project.run_here("--update-baselines").ret == 0
    assert project.report["gaps"] == []


def test_what_could_not_be_measured_on_one_engine_has_no_gap(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_COUNTER", str(project.path / "counter-{engine}"))
    monkeypatch.setenv("FAKE_CRASH", "oom@1")
    project.suite(SUITE)
    result = project.run_here("--engine", "vllm")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert project.report["gaps"] == []


def test_each_engine_has_its_own_prior(project: Project) -> None:
    """Its stored series say how far launches of an engine differ: where that is far, so are the interval's ends."""
    project.suite(SUITE)
    assert project.run_here(*BOTH).ret == 0
    folder = project.path / "baselines"
    for path in store.files(folder):
        series = store.read(path)
        [launch] = series.current.launches
        for i in range(6):
            launches = [
                replace(launch, id=f"{i}-{j}", metrics={"decode_tok_s": (USUAL * factor,)})
                for j, factor in enumerate((0.8, 1, 1.25))
            ]
            test = f"test_other.py::test_{i}"
            other = replace(series, test=test, epochs=(Epoch("first recording", tuple(launches)),))
            store.write(store.path_of(folder, test, series.engine, series.fingerprint), other)
    assert project.run_here(*BOTH).ret == 0
    [speed] = [g for g in project.report["gaps"] if g["metric"] == "decode_tok_s"]
    assert speed["interval"][1] / speed["interval"][0] > 1.5  # the default prior alone gives 1.1
