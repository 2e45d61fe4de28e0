"""Speculative decoding: its acceptance is gated, and a lost speed is the drafter's or the kernels'. Fake engine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.plugin.conftest import Project

SPECULATIVE = """
import pytest
from pytest_llmperf import perf

pytestmark = pytest.mark.llm_server(
    model="fake-model",
    max_running_requests=64,
    speculative={{"method": "eagle3", "model": "drafter", "num_tokens": 3, {more}}},
)


@perf(metric={metric}, repetitions=3, max_repetitions=3)
def test_decode(llm_server, baseline):
    baseline.check(llm_server.stream(output_tokens=61, prompt_tokens=16))
"""


def suite(metric: str = '"decode_tok_s"', more: str = "") -> str:
    return SPECULATIVE.format(metric=metric, more=more)


@pytest.fixture(scope="session")
def _kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speculative")


@pytest.fixture
def drafted(project: Project, monkeypatch: pytest.MonkeyPatch, _kept: Path) -> Project:
    """A project whose server accepts 3 tokens a step, with its baseline, recorded once."""
    monkeypatch.setenv("FAKE_SPEC_ACCEPT_BY", "drafter:3")
    project.suite(suite())
    if not (_kept / "baselines").exists():
        result = project.run_here("--update-baselines", "--launches", "3")
        assert result.ret == 0, result.outlines
        shutil.copytree(project.path / "baselines", _kept / "baselines")
    else:
        shutil.copytree(_kept / "baselines", project.path / "baselines")
    return project


@pytest.mark.parametrize(
    ("accepted", "slowdown", "said"),
    [
        ("1.5", "1", "the drafter lost it: 1.* tokens/step (-*%), * steps/s (*%)"),
        ("3", "0.5", "the kernels lost it: * tokens/step (*%), * steps/s (-*%)"),
        ("2.1", "0.7", "drafter and kernels both lost it: 2.* tokens/step (-*%), * steps/s (-*%)"),
    ],
    ids=["drafter", "kernels", "both"],
)
def test_a_loss_says_who_lost_it(
    drafted: Project, monkeypatch: pytest.MonkeyPatch, accepted: str, slowdown: str, said: str
) -> None:
    monkeypatch.setenv("FAKE_SPEC_ACCEPT_BY", f"drafter:{accepted}")
    monkeypatch.setenv("FAKE_SLOWDOWN", slowdown)
    result = drafted.run_here()
    result.assert_outcomes(failed=1)
    assert drafted.verdicts == {"test_decode[sglang]": "regressed"}
    result.stdout.fnmatch_lines(["  note      " + said])


def test_what_kept_its_speed_blames_nobody(drafted: Project) -> None:
    result = drafted.run_here()
    assert result.ret == 0, result.outlines
    assert "lost it" not in str(result.stdout)


def test_acceptance_is_gated_by_its_own_baseline(drafted: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that guesses worse behind faster kernels: the speed passes, the acceptance does not."""
    drafted.suite(suite('("decode_tok_s", "acceptance_length")'))
    monkeypatch.setenv("FAKE_SPEC_ACCEPT_BY", "drafter:2")
    monkeypatch.setenv("FAKE_SLOWDOWN", "1.5")
    result = drafted.run_here()
    result.assert_outcomes(failed=1)
    verdicts = {r["metric"]: r["verdict"] for r in drafted.results}
    assert verdicts == {"decode_tok_s": "passed", "acceptance_length": "regressed"}


def test_forced_acceptance_is_another_server_and_shown(drafted: Project) -> None:
    drafted.suite(suite('("decode_tok_s", "acceptance_length")', '"acceptance_length": 2'))
    result = drafted.run_here()
    assert {r["verdict"] for r in drafted.results} == {"not_comparable"}
    assert "acceptance_length: - there, 2 here" in str(result.stdout)
    measured = next(r["value"] for r in drafted.results if r["metric"] == "acceptance_length")
    assert measured == pytest.approx(2, rel=0.03)
    result.stdout.fnmatch_lines(["*acceptance_length=2*"])
