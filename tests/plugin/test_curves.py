"""Loads of several concurrencies: one curve a test with its knee, whatever form the test has. Fake engine."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project

HEAD = """
import pytest
from pytest_llmperf import perf
pytestmark = pytest.mark.llm_server(model="m", max_running_requests=4)
"""
LOOP = (
    HEAD
    + """
def test_peak(llm_server):
    for concurrency in (1, 2, 3, 4, 6, 8, 12):
        llm_server.load(concurrency=concurrency, output_tokens=24, prompt_tokens=16)
"""
)
PARAMETRIZED = (
    HEAD
    + """
@pytest.mark.parametrize("concurrency", [1, 2])
@perf(metric="output_tok_s", repetitions=1)
def test_peak(llm_server, baseline, concurrency):
    run = llm_server.load(concurrency=concurrency, output_tokens=24, prompt_tokens=16)
    assert run.output_tok_s in baseline
"""
)


def test_a_loop_finds_the_planted_knee(project: Project) -> None:
    """Four run at once and the others wait: throughput rises up to four and then stands still."""
    project.suite(LOOP)
    result = project.run_here("--llmperf-html", "out.html")
    assert result.ret == 0, result.outlines
    [curve] = project.report["curves"]
    assert (curve["test"], curve["engine"]) == ("test_perf.py::test_peak", "sglang")
    assert [p["concurrency"] for p in curve["points"]] == [1, 2, 3, 4, 6, 8, 12]
    assert curve["knee"] == 4
    assert curve["max_running_requests"] == 4
    speeds = [p["output_tok_s"] for p in curve["points"]]
    assert speeds[3] > 3 * speeds[0]
    assert speeds[6] < 1.5 * speeds[3]
    assert all(p["stream_tok_s"] and p["ttft_ms"] for p in curve["points"])
    result.stdout.fnmatch_lines(["│ load on sglang, *test_peak: peak * tok/s, knee at 4 streams, *", "*4 *knee*"])
    assert "knee at 4 streams" in (project.path / "out.html").read_text()
    assert project.launches == 1


def test_without_a_bend_there_is_no_knee(project: Project) -> None:
    project.suite(LOOP.replace("max_running_requests=4", "max_running_requests=64").replace("3, 4, 6, 8, 12", "4, 8"))
    assert project.run_here().ret == 0
    [curve] = project.report["curves"]
    assert curve["knee"] is None
    assert curve["max_running_requests"] == 64


@pytest.mark.parametrize("workers", [0, 2], ids=["serial", "xdist"])
def test_a_parametrized_test_is_gated_at_each_point_and_one_curve(project: Project, workers: int) -> None:
    project.suite(PARAMETRIZED)
    if workers:
        result = project.run("--update-baselines", workers=workers)
    else:
        result = project.run_here("--update-baselines", "--launches", "2")
    assert result.ret == 0, result.outlines
    result.assert_outcomes(passed=2)
    [curve] = project.report["curves"]
    assert curve["test"] == "test_perf.py::test_peak"
    assert [p["concurrency"] for p in curve["points"]] == [1, 2]
    assert {r["workload"]["concurrency"] for r in project.results} == {1, 2}
    measured = {r["workload"]["concurrency"]: r["value"] for r in project.results}
    for point in curve["points"]:  # every launch's point is in it, as it is in the results
        assert point["output_tok_s"] == pytest.approx(measured[point["concurrency"]], rel=0.001)


def test_a_point_that_lost_speed_fails_alone(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.suite(PARAMETRIZED.replace("[1, 2]", "[1, 3]"))
    assert project.run_here("--update-baselines", "--launches", "3").ret == 0
    monkeypatch.setenv("FAKE_LOCKSTEP", "1")
    monkeypatch.setenv("FAKE_PER_STREAM", "1")
    result = project.run_here()
    result.assert_outcomes(passed=1, failed=1)
    assert project.verdicts == {"test_peak[sglang-1]": "passed", "test_peak[sglang-3]": "regressed"}
    assert len(project.report["curves"]) == 1


def test_one_load_is_no_curve(project: Project) -> None:
    project.suite(HEAD + "\ndef test_one(llm_server): llm_server.load(concurrency=2, output_tokens=8)\n")
    assert project.run_here().ret == 0
    assert project.report["curves"] == []
