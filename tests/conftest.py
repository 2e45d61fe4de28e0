"""Fixtures for every room: the stand-in engine as a command, as a running server, and inside a small perf project."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest

from tests.fake_engine import truth
from tests.stamps.planned_stamps import Planned

# a busy machine is slow now and then, and that is no failure
hypothesis.settings.register_profile("llmperf", deadline=None)
hypothesis.settings.load_profile("llmperf")

FAKE_ENGINE = Path(__file__).with_name("fake_engine") / "__main__.py"
#: Where the plugin of ``PLANNED`` lies, for sessions that are to judge what the stand-in planned.
STAMPS = Path(__file__).with_name("stamps")
PLANNED = "-p planned_stamps"
DEADLINE_S = 20.0
#: Where a fixture has the stand-in write what it did, by variable.
TRUTH_FILES = {"TRUTH": "truth.jsonl", "LAUNCH_LOG": "launches.jsonl", "COUNTER": "counter", "PIDS_FILE": "pids"}


@pytest.fixture(scope="session", autouse=True)
def interrupts() -> None:
    """Ctrl-C is heard here and in what is started from here, also where a shell has put this run in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_outer_xdist(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test starts is a run of its own, also where xdist runs the tests."""
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def planned_times() -> Iterator[None]:
    """Single streams measured here take the times that the stand-in planned."""
    planned = Planned()
    planned.pytest_configure()
    yield
    planned.pytest_unconfigure()


@pytest.fixture
def fake_engine_command() -> list[str]:
    """The words that start the stand-in from any folder; append ``sglang`` or ``vllm`` and that engine's flags."""
    return [sys.executable, str(FAKE_ENGINE)]


@dataclass
class FakeServer:
    """One running stand-in. ``truth`` and ``launches`` read what it really did."""

    process: subprocess.Popen[bytes]
    folder: Path
    dialect: str
    port: int = 0
    api_key: str | None = None
    model: str = "fake-model"

    @property
    def root_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"{self.root_url}/v1"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_bytes().decode(errors="replace")

    @property
    def truth(self) -> list[dict[str, Any]]:
        """One record per generation request that has ended, in the order in which they ended."""
        return truth.read(self.folder / "truth.jsonl")

    @property
    def launches(self) -> list[dict[str, Any]]:
        return truth.read(self.folder / "launches.jsonl")

    @property
    def pids(self) -> dict[str, list[int]]:
        """``main``, ``child`` and ``orphan`` processes that have reported themselves."""
        return read_pids(self.folder / "pids")

    def get(self, path: str) -> tuple[int, str]:
        """(status, body) of a GET."""
        request = urllib.request.Request(self.root_url + path)
        if self.api_key:
            request.add_header("Authorization", f"Bearer {self.api_key}")
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def wait_until_listening(self) -> None:
        """Until the log names the port; raises ``AssertionError`` with the log when it dies or takes too long."""
        found = wait_for(lambda: self._port_said() or self.process.poll() is not None, "the stand-in's port")
        assert found, self.log
        assert self.process.poll() is None, f"exit {self.process.returncode}\n{self.log}"
        self.port = int(self._port_said() or 0)

    def _port_said(self) -> str | None:
        said = re.search(r"(?:running|server) on https?://[^ ]*:(\d+)", self.log)
        return said.group(1) if said else None

    def wait_until_ready(self) -> None:
        self.wait_until_listening()
        wait_for(lambda: self.get("/health")[0] == 200, "/health to be 200")

    def stop(self) -> None:
        """Kill its process group and every process that it reported."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE_S)
        kill(pid for pids in self.pids.values() for pid in pids)


def wait_for(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Poll until ``condition`` is true and return its value; ``AssertionError`` after ``deadline_s`` seconds."""
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {deadline_s} s in vain for {what}"
        time.sleep(0.005)
    return value


def read_pids(path: Path) -> dict[str, list[int]]:
    """A FAKE_PIDS_FILE: kind of process -> pids."""
    found: dict[str, list[int]] = {"main": [], "child": [], "orphan": []}
    for line in path.read_text().splitlines() if path.exists() else ():
        kind, _, pid = line.partition(" ")
        found[kind].append(int(pid))
    return found


def alive(pid: int) -> bool:
    """True while the process runs (a zombie does not)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(pids: Iterable[int]) -> None:
    """Kill those of these processes that are stand-ins still (a pid may have gone to someone else)."""
    for pid in pids:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if str(FAKE_ENGINE) in psutil.Process(pid).cmdline():
                os.kill(pid, signal.SIGKILL)


StartFake = Callable[..., FakeServer]


@contextlib.contextmanager
def fake_servers(root: Path) -> Iterator[StartFake]:
    """A function that starts stand-ins, each with a folder of its own in ``root``; all are stopped at the end."""
    started: list[FakeServer] = []

    def start(
        dialect: str = "sglang",
        *flags: str,
        env: Mapping[str, object] | None = None,
        ready: bool = True,
        model: str = "fake-model",
        api_key: str | None = None,
    ) -> FakeServer:
        folder = root / f"fake-{len(started)}"
        folder.mkdir()
        named = {f"FAKE_{name}": str(folder / file) for name, file in TRUTH_FILES.items()}
        words = ["sglang", "--model-path", model] if dialect == "sglang" else ["vllm", "serve", model]
        words += ["--port", "0", *flags, *(["--api-key", api_key] if api_key else [])]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(FAKE_ENGINE), *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **named, **{k: str(v) for k, v in (env or {}).items()}},
                start_new_session=True,
            )
        server = FakeServer(process, folder, dialect, api_key=api_key, model=model)
        started.append(server)
        if ready:
            server.wait_until_ready()
        return server

    try:
        yield start
    finally:
        for server in started:
            server.stop()


@pytest.fixture
def fake_server(tmp_path: Path) -> Iterator[StartFake]:
    """``fake_server(dialect="sglang", *flags, env={...}, ready=True, model="fake-model", api_key=None)`` starts one
    stand-in on a port of the kernel's choice and gives a ``FakeServer``; all are stopped when the test ends."""
    with fake_servers(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def module_fake_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartFake]:
    """The same for a whole module, for tests that can share a server (a start costs more than a request)."""
    with fake_servers(tmp_path_factory.mktemp("fake")) as start:
        yield start


SUITE = """
import psutil
import pytest
from pytest_llmperf import perf

pytestmark = pytest.mark.llm_server(model="fake-model")


@perf
def test_decode(llm_server, baseline):
    run = llm_server.stream(output_tokens=32, prompt_tokens=16)
    assert run.decode_tok_s in baseline
"""


@dataclass
class PerfProject:
    """A project whose SGLang and vLLM are the stand-in. FAKE_* variables set with ``monkeypatch`` reach the servers."""

    pytester: pytest.Pytester
    command: list[str]

    @property
    def path(self) -> Path:
        return self.pytester.path

    def write_config(self, extra: str = "") -> Path:
        """pyproject.toml with both engines' commands; ``extra`` is TOML appended to it."""
        engines = "".join(
            f"[tool.llmperf.engines.{name}]\ncommand = {json.dumps([*self.command, name])}\n\n"
            for name in ("sglang", "vllm")
        )
        file = self.path / "pyproject.toml"
        file.write_text(f"[tool.pytest.ini_options]\n\n{engines}{extra}")
        return file

    def write_suite(self, text: str = SUITE, name: str = "test_perf.py") -> Path:
        file = self.path / name
        file.write_text(text)
        return file

    def run(self, *args: str, engine: str | None = "sglang", workers: int = 0, timeout: float = 60) -> pytest.RunResult:
        """pytest in a process of its own, with ``--engine`` unless None, with ``-n workers`` unless 0."""
        engine_args = ["--engine", engine] if engine else []
        spread = ["-n", str(workers)] if workers else []
        return self.pytester.runpytest_subprocess(*engine_args, *spread, *args, timeout=timeout)

    @property
    def truth(self) -> list[dict[str, Any]]:
        """One record per generation request of every server so far."""
        return truth.read(self.path / "fake-truth.jsonl")

    @property
    def launches(self) -> list[dict[str, Any]]:
        """One record per server started so far."""
        return truth.read(self.path / "fake-launches.jsonl")

    @property
    def pids(self) -> dict[str, list[int]]:
        return read_pids(self.path / "fake-pids")


@pytest.fixture
def perf_project(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, fake_engine_command: list[str]
) -> Iterator[PerfProject]:
    """A ``PerfProject`` with its config and a one-test suite written; servers it left behind are killed at the end."""
    for name in ("PYTEST_ADDOPTS", "CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    for variable, file in TRUTH_FILES.items():
        monkeypatch.setenv(f"FAKE_{variable}", str(pytester.path / f"fake-{file}"))
    monkeypatch.setenv("FAKE_LIFE_S", "120")
    project = PerfProject(pytester, fake_engine_command)
    project.write_config()
    project.write_suite()
    yield project
    kill(pid for pids in project.pids.values() for pid in pids)
