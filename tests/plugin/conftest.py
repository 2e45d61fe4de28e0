"""A perf project whose verdicts do not depend on how busy this machine is: effects of 30 %, bands of 15 % or more."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pytest_llmperf.baselines import store
from pytest_llmperf.baselines.series import Epoch
from tests.conftest import PLANNED, STAMPS, PerfProject, alive, wait_for

# pytester drops what a run in this process imports: numpy cannot be imported twice, and the rest takes its time each
# time it is imported
for _name in ("session.hooks", "session.verdicts", "session.ab_fixture", "measure.load", "tuning.gaps", "report.html"):
    importlib.import_module(f"pytest_llmperf.{_name}")

#: Guards that watch this machine rather than the server; a busy test machine would trip them.
HOST_GUARDS = ("server starved", "host load", "client delay", "client cpu", "drift")
#: Other plugins of the test environment: they cost start-up time and say nothing here.
QUIET = "-p no:hypothesispytest -p no:anyio"

SETTINGS = f"""
[tool.llmperf]
ignore_guards = {list(HOST_GUARDS)}
min_effect = 0.15
"""

SUITE = """
import pytest
from pytest_llmperf import perf

pytestmark = pytest.mark.llm_server(model="fake-model")


@perf(repetitions=3, max_repetitions=3)
def test_decode(llm_server, baseline):
    run = llm_server.stream(output_tokens=24, prompt_tokens=16)
    assert run.decode_tok_s in baseline
"""
#: What every repetition of a stored launch is made to say, tok/s at FAKE_ITL_MS=4.
USUAL = 250.0


@dataclass
class Project:
    """Runs pytest in a project and reads what it left."""

    base: PerfProject

    @property
    def path(self) -> Path:
        return self.base.path

    def suite(self, text: str, name: str = "test_perf.py") -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def config(self, extra: str = "") -> None:
        self.base.write_config(SETTINGS + extra)

    def run(self, *args: str, engine: str | None = "sglang", workers: int = 0) -> pytest.RunResult:
        """pytest in a process of its own."""
        (self.path / "out.json").unlink(missing_ok=True)
        return self.base.run("--llmperf-json", "out.json", *args, engine=engine, workers=workers, timeout=180)

    def run_here(self, *args: str, engine: str | None = "sglang") -> pytest.RunResult:
        """pytest in this process, without the seconds that its imports take; the servers are real all the same."""
        (self.path / "out.json").unlink(missing_ok=True)
        chosen = ["--engine", engine] if engine else []
        return self.base.pytester.runpytest_inprocess("--llmperf-json", "out.json", *chosen, *args)

    def record(self, *args: str) -> None:
        """Record baselines of three launches, as a machine with nothing else to do would have measured them."""
        result = self.run_here("--update-baselines", "--launches", "3", *args)
        assert result.ret == 0, result.outlines
        self.spread(1, 1, 1)
        for log in ("fake-launches.jsonl", "fake-counter"):
            (self.path / log).unlink()

    def spread(self, *factors: float) -> None:
        """Make the stored launches say ``USUAL`` times these factors."""
        folder = self.path / "baselines"
        for path in store.files(folder):
            series = store.read(path)
            exact = [
                replace(
                    x, metrics={m: (USUAL * f,) * len(v) if m == "decode_tok_s" else v for m, v in x.metrics.items()}
                )
                for x, f in zip(series.current.launches, factors, strict=True)
            ]
            store.write(path, replace(series, epochs=(Epoch(series.current.reason, tuple(exact)),)))

    def clone(self, *tests: str) -> None:
        """Give these tests, whose server and workload are those of ``SUITE``, its baseline too."""
        folder = self.path / "baselines"
        [series] = store.find(folder, "test_perf.py::test_decode", "sglang")
        for test in tests:
            store.write(store.path_of(folder, test, "sglang", series.fingerprint), replace(series, test=test))

    @property
    def report(self) -> dict[str, Any]:
        """What ``--llmperf-json`` of the last run says; it is as the schema has it."""
        found: dict[str, Any] = json.loads((self.path / "out.json").read_text())
        schema = resources.files("pytest_llmperf.records").joinpath("schema.json").read_text()
        jsonschema.validate(found, json.loads(schema))
        return found

    @property
    def results(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.report["results"]
        return found

    @property
    def result(self) -> dict[str, Any]:
        """The only result of the last run."""
        [found] = self.results
        return found

    @property
    def verdicts(self) -> dict[str, str]:
        """Test name to verdict."""
        return {r["nodeid"].rpartition("::")[2]: r["verdict"] for r in self.results}

    @property
    def messages(self) -> str:
        return "\n".join(f"{m['kind']}: {m['text']}" for m in self.report["session"]["messages"])

    @property
    def launches(self) -> int:
        """Servers started since the last baselines were recorded."""
        return len(self.base.launches)

    @property
    def models(self) -> list[str]:
        """Model of every server started, in the order of the starts."""
        said = [re.search(r"--model-path[ =](\S+)", " ".join(x["argv"])) for x in self.base.launches]
        return [m.group(1) if m else "?" for m in said]

    @property
    def baselines(self) -> dict[str, str]:
        """Path to content of every baseline file."""
        folder = self.path / "baselines"
        return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*.toml"))}

    def running(self) -> list[int]:
        """Stand-ins and their children that live."""
        return [pid for pids in self.base.pids.values() for pid in pids if alive(pid)]

    def wait_until_nothing_runs(self) -> None:
        wait_for(lambda: not self.running(), "every server to be gone", 10)


@pytest.fixture
def project(perf_project: PerfProject, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.setenv("FAKE_ITL_MS", "4")
    # measurements of one host take turns: not with whatever else runs on this one
    monkeypatch.setenv("LLMPERF_STATE_DIR", str(perf_project.path / "state"))
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{QUIET} {PLANNED}")
    monkeypatch.setenv("PYTHONPATH", str(STAMPS))
    monkeypatch.syspath_prepend(STAMPS)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    made = Project(perf_project)
    made.config()
    made.suite(SUITE)
    yield made
    assert not made.running(), "servers were left behind"


@pytest.fixture
def real_time(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens come when they are due: for what happens in the midst of a stream."""
    monkeypatch.setenv("LLMPERF_TEST_REAL_TIME", "1")


@pytest.fixture(scope="session")
def _store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recorded")


@pytest.fixture
def recorded(project: Project, _store: Path) -> Project:
    """``project`` with the baseline of ``SUITE``: recorded once, then copied."""
    kept = _store / "baselines"
    if not kept.exists():
        project.record()
        shutil.copytree(project.path / "baselines", kept)
    else:
        shutil.copytree(kept, project.path / "baselines")
    return project


@pytest.fixture
def wobbly(recorded: Project) -> Project:
    """Stored launches that differ by 8 %: a loss of 21 % is then suspect on one launch, and certain on three."""
    recorded.spread(0.92, 1, 1.087)
    return recorded
