"""The main job, as a user runs it: record, gate, see a regression fail. Fake engine, real processes."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project

WORKERS = pytest.mark.parametrize("workers", [0, 2], ids=["serial", "xdist"])


@WORKERS
def test_an_unchanged_engine_passes(project: Project, workers: int) -> None:
    project.record()
    assert project.launches == 3
    result = project.run(workers=workers)
    assert result.ret == 0, result.outlines
    result.assert_outcomes(passed=1)
    assert project.launches == 4
    [found] = project.results
    assert found["verdict"] == "passed"
    assert found["baseline"]["launches"] == 3


@WORKERS
def test_a_slower_engine_fails_and_says_why(
    project: Project, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    project.record()
    monkeypatch.setenv("FAKE_SLOWDOWN", "0.9")
    result = project.run(workers=workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED, result.outlines
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*decode_tok_s REGRESSED*below the baseline*", "*band*", "*3 stored*"])
    [found] = project.results
    assert found["verdict"] == "regressed"
    assert -0.12 < found["change"] < -0.08
