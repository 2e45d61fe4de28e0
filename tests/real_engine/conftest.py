"""A user's project on a real engine, and the processes that its pytest starts."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import tomli
import tomli_w

from pytest_llmperf.baselines import store

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENTS = runpy.run_path(str(REPOSITORY / "tools" / "real_engines" / "__main__.py"))
#: These watch the machine, and a machine without a GPU that runs an engine is a busy one.
HOST_GUARDS = ("server starved", "host load", "client delay", "client cpu", "drift")
#: Seconds until something that must happen is given up; an engine may compile for minutes.
DEADLINE_S = 1800.0
TAG = "LLMPERF_TEST_TAG"


@dataclass
class EngineProject:
    """A folder with a perf test and the engine's command. Every process that it starts carries ``tag``."""

    path: Path
    engine: str
    tag: str = field(default_factory=lambda: uuid.uuid4().hex)
    seen: set[psutil.Process] = field(default_factory=set)

    def __post_init__(self) -> None:
        settings = tomli.loads(ENVIRONMENTS["settings"](self.engine))
        settings |= {"ignore_guards": list(HOST_GUARDS), "min_effect": 0.5}
        (self.path / "llmperf.toml").write_text(tomli_w.dumps(settings))

    def suite(self, text: str) -> None:
        (self.path / "test_suite.py").write_text(text)

    def example(self, name: str) -> None:
        shutil.copyfile(REPOSITORY / "examples" / name, self.path / "test_suite.py")

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "pytest", "test_suite.py", "-m", "perf", "--engine", self.engine, *args]
        with (self.path / "out.txt").open("wb") as out:
            return subprocess.Popen(
                [*words, "--llmperf-json", "out.json", "--llmperf-log-dir", "logs"],
                cwd=self.path,
                env={**os.environ, TAG: self.tag},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def run(self, *args: str) -> tuple[int, str]:
        """(exit status, output) of one pytest. Whatever is left of it afterwards is an error."""
        process = self.start(*args)
        wait_for(
            lambda: self.processes() is not None and process.poll() is not None, "the end of pytest", 2 * DEADLINE_S
        )
        wait_for(lambda: not self.processes(), "every process to be gone", 30)
        return process.returncode, self.out

    @property
    def out(self) -> str:
        """What the last pytest wrote."""
        return (self.path / "out.txt").read_text(errors="replace")

    @property
    def results(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.path / "out.json").read_text())["results"]
        return found

    @property
    def effective(self) -> dict[str, Any]:
        """What the last run's only server said it resolved to."""
        (server,) = json.loads((self.path / "out.json").read_text())["servers"]
        found: dict[str, Any] = server["effective"]
        return found

    @property
    def logs(self) -> list[str]:
        """The servers' logs in the order of launches."""
        return [p.read_text(errors="replace") for p in sorted((self.path / "logs").glob("*.log"))]

    def processes(self) -> list[psutil.Process]:
        """Those of ours that run, whoever is their parent by now. An engine that renames its workers wipes out their
        variables with it, so that whoever was once seen as a descendant of a tagged process stays one of ours."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process in self.seen or process.environ().get(TAG) == self.tag:
                    self.seen |= {process, *process.children(recursive=True)}
        return [p for p in self.seen if running(p)]

    def plant(self, metric: str, factors: Sequence[float]) -> None:
        """Make the stored launches of ``metric`` better than they were measured, each by a factor of its own."""
        (path,) = (self.path / "baselines").rglob("*.toml")
        series = store.read(path)
        planted = tuple(
            replace(x, metrics={**x.metrics, metric: tuple(v * f for v in x.metrics[metric])})
            for x, f in zip(series.current.launches, factors, strict=True)
        )
        store.write(path, replace(series, epochs=(replace(series.current, launches=planted),)))

    def end(self) -> None:
        """Kill what a failed test has left."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()


def running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {deadline_s:.0f} s in vain for {what}"
        time.sleep(0.2)
    return value


MakeProject = Callable[[str], EngineProject]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[MakeProject]:
    """``project(engine)``; skips where that engine is not installed."""
    made: list[EngineProject] = []

    def make(engine: str) -> EngineProject:
        if not ENVIRONMENTS["python_of"](engine).exists():
            pytest.skip(f"no {engine} here: python tools/real_engines {engine}")
        made.append(EngineProject(tmp_path, engine))
        return made[-1]

    yield make
    for one in made:
        one.end()
