"""A perf project whose verdicts do not depend on how busy this machine is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import PerfProject

#: Guards that watch this machine rather than the server; a busy test machine would trip them.
HOST_GUARDS = ("server starved", "host load", "client delay", "client cpu", "drift")

SETTINGS = f"""
[tool.llmperf]
ignore_guards = {list(HOST_GUARDS)}
min_effect = 0.05
"""

SUITE = """
import pytest
from pytest_llmperf import perf

pytestmark = pytest.mark.llm_server(model="fake-model")


@perf(repetitions=5, max_repetitions=5)
def test_decode(llm_server, baseline):
    run = llm_server.stream(output_tokens=40, prompt_tokens=16)
    assert run.decode_tok_s in baseline
"""


@dataclass
class Project:
    """Runs pytest in a project and reads what it left."""

    base: PerfProject

    def suite(self, text: str, name: str = "test_perf.py") -> None:
        self.base.write_suite(text, name)

    def config(self, extra: str = "") -> None:
        self.base.write_config(SETTINGS + extra)

    def run(self, *args: str, engine: str | None = "sglang", workers: int = 0) -> pytest.RunResult:
        return self.base.run("--llmperf-json", "out.json", *args, engine=engine, workers=workers, timeout=180)

    def record(self, *args: str) -> None:
        """Record baselines of three launches."""
        result = self.run("--update-baselines", "--launches", "3", *args)
        assert result.ret == 0, result.outlines

    @property
    def results(self) -> list[dict[str, Any]]:
        """Results of the last run."""
        found: list[dict[str, Any]] = json.loads((self.base.path / "out.json").read_text())["results"]
        return found

    @property
    def launches(self) -> int:
        """Servers started so far."""
        return len(self.base.launches)

    @property
    def baselines(self) -> dict[str, str]:
        """Path to content of every baseline file."""
        folder = self.base.path / "baselines"
        return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*.toml"))}


@pytest.fixture
def project(perf_project: PerfProject, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("FAKE_ITL_MS", "4")
    made = Project(perf_project)
    made.config()
    made.suite(SUITE)
    return made
