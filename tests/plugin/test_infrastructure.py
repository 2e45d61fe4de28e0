"""What goes wrong around a measurement is an error, never a verdict on its speed, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.conftest import alive, wait_for
from tests.plugin.conftest import SUITE, Project

Start = Callable[..., subprocess.Popen[bytes]]

HEAD = "import os, pytest\nfrom pathlib import Path\nfrom pytest_llmperf import perf\n"
QUICK = """
@pytest.mark.llm_server(model="{model}")
@perf(repetitions=1, max_repetitions=1, target=1)
def test_{name}(llm_server, baseline):
    assert llm_server.stream(output_tokens=24, prompt_tokens=16).decode_tok_s in baseline
"""
#: Half a minute of tokens the first time, so that whatever happens happens in the midst of it.
ENDLESS = """
@pytest.mark.llm_server(model="slow")
@perf(repetitions=1, max_repetitions=1, target=1)
def test_endless(llm_server, baseline):
    mine = Path("measuring")
    tokens = 4 if mine.exists() else 8000
    Path("aside").write_text(str(os.getpid()))
    Path("aside").rename(mine)
    assert llm_server.stream(output_tokens=tokens, prompt_tokens=16).decode_tok_s in baseline
"""


def test_a_server_that_cannot_start(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's own words, an error, once for each of its tests; the other servers' tests run."""
    monkeypatch.setenv("FAKE_CRASH", "oom@1")
    project.suite(HEAD + QUICK.format(model="one", name="a") + QUICK.format(model="one", name="b")
                  + QUICK.format(model="two", name="c"))  # fmt: skip
    result = project.run_here("--junitxml", "junit.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(errors=2, passed=1)
    result.stdout.fnmatch_lines([
        "*ERROR at setup of test_a?sglang?*",
        "sglang one did not start *: *",
        "*CUDA out of memory. Tried to allocate 2.50 GiB.*",
        "full log: */.llmperf/logs/*",
        "ERROR test_perf.py::test_a?sglang?*",  # pytest 9 adds the reason
    ])  # fmt: skip
    assert "pytest_llmperf/" not in str(result.stdout)  # no traceback of ours
    assert project.models == ["one", "two"]
    assert project.verdicts == {"test_a[sglang]": "error", "test_b[sglang]": "error", "test_c[sglang]": "passed"}
    by_model = {s["config"]["model"]: s for s in project.report["servers"]}
    assert by_model["one"]["launches"] == []
    [failure] = by_model["one"]["failures"]
    assert failure.startswith("sglang one did not start")
    assert "; full log: " in failure
    assert "\n" not in failure
    cases = {
        c.get("name"): [x.tag for x in c if x.tag != "properties"]
        for c in ElementTree.parse(project.path / "junit.xml").iter("testcase")
    }
    assert cases["test_a[sglang]"] == cases["test_b[sglang]"] == ["error"]


def test_a_server_that_dies_in_the_midst(recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DIE", "5@4")
    monkeypatch.setenv("FAKE_DIE_TEXT", "oom")
    monkeypatch.setenv("FAKE_SLOWDOWN", "0.5")  # were it judged, it would be a regression
    result = recorded.run_here()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["test_perf.py E*", "*died: out of GPU memory", "ERROR test_perf.py::test_decode*"])
    assert "regressed" not in str(result.stdout)
    assert (recorded.result["verdict"], recorded.result["value"]) == ("error", None)
    assert "died: out of GPU memory" in recorded.result["reasons"][0]
    assert "could not start" not in str(result.stdout)
    assert recorded.launches == 1


@pytest.mark.parametrize(("fault", "said"), [("FAKE_CRASH", "did not start"), ("FAKE_DIE", "died: ")])
def test_of_several_servers_only_the_one_that_failed_is_blamed(project: Project, fault: str, said: str) -> None:
    project.suite(f"""
import pytest


@pytest.mark.llm_server(model="m")
@pytest.mark.llm_servers(well={{"seed": 1}}, ill={{"seed": 2, "env": {{{fault!r}: "3"}}}}, also={{"seed": 3}})
def test_both(llm_servers):
    for server in llm_servers.values():
        server.stream(output_tokens=8, prompt_tokens=8, repetitions=3, max_repetitions=3)
""")
    result = project.run_here()
    result.assert_outcomes(errors=1)
    failures = {s["config"].get("seed"): s["failures"] for s in project.report["servers"]}
    assert said in failures.pop(2)[0]
    assert not any(failures.values())


def test_not_what_was_declared(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that names both values; allow_mismatch makes it a note, which the report carries."""
    monkeypatch.setenv("FAKE_REPLACE_BACKEND", "triton")
    suite = SUITE.replace('"fake-model"', '"fake-model", attention_backend="fa3"').replace("@perf(", "@perf(target=1, ")
    project.suite(suite)
    result = project.run_here()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["sglang fake-model is up, but not as declared:",
                                 "*attention_backend: declared fa3, effective triton*"])  # fmt: skip
    project.suite(suite.replace('"fa3"', '"fa3", allow_mismatch=["attention_backend"]'))
    result = project.run_here()
    result.assert_outcomes(passed=1)
    assert "note: sglang fake-model: attention_backend: declared fa3, effective triton" in project.messages


@pytest.fixture
def endless(project: Project, real_time: None) -> Project:
    project.suite(HEAD + QUICK.format(model="quick", name="first") + ENDLESS + QUICK.format(model="last", name="last"))
    return project


@pytest.fixture
def start(endless: Project) -> Iterator[Start]:
    """pytest in a session of its own, once it is in the midst of the endless measurement."""
    started = []

    def run(*args: str) -> subprocess.Popen[bytes]:
        process = endless.base.pytester.popen(
            ["python", "-m", "pytest", "--engine", "sglang", "--llmperf-json", "out.json", *args],
            stdout=(endless.path / "out.txt").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        started.append(process)
        wait_for(lambda: (endless.path / "measuring").exists() or process.poll() is not None, "the measurement", 120)
        assert process.poll() is None, (endless.path / "out.txt").read_text()
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def end(project: Project, process: subprocess.Popen[bytes]) -> str:
    process.wait(60)
    return (project.path / "out.txt").read_text()


def test_ctrl_c_prints_what_was_measured(endless: Project, start: Start) -> None:
    process = start()
    process.send_signal(signal.SIGINT)
    out = end(endless, process)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, out
    assert "llmperf: interrupted, this is what was measured until then; 2 error, 1 passed" in out
    assert "KeyboardInterrupt" in out
    assert "INTERNAL" not in out
    assert endless.report["session"]["interrupted"]
    assert endless.verdicts == {
        "test_first[sglang]": "passed",
        "test_endless[sglang]": "error",
        "test_last[sglang]": "error",
    }
    endless.wait_until_nothing_runs()


def test_ctrl_c_under_xdist(endless: Project, start: Start) -> None:
    """To the whole foreground group, as a terminal sends it."""
    process = start("-n", "2", "-k", "first or endless", "--llmperf-parallel-measure")
    wait_for(lambda: b"." in (endless.path / "out.txt").read_bytes().partition(b"items]")[2], "the first verdict", 60)
    os.killpg(process.pid, signal.SIGINT)
    out = end(endless, process)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, out
    assert "interrupted, this is what was measured until then; 1 error, 1 passed" in out, out
    assert endless.verdicts == {"test_first[sglang]": "passed", "test_endless[sglang]": "error"}
    endless.wait_until_nothing_runs()


def test_kill_9_of_pytest_leaves_nothing(endless: Project, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CHILDREN", "2")
    monkeypatch.setenv("FAKE_ORPHANS", "1")
    process = start()
    process.kill()
    process.wait(10)
    endless.wait_until_nothing_runs()


def test_kill_9_of_a_worker(endless: Project, start: Start) -> None:
    """Its server goes, the crash is a failure of its test, the others' verdicts are there, the exit code is not 0."""
    process = start("-n", "2")
    worker = int((endless.path / "measuring").read_text())
    before = set(endless.running())
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not alive(worker), "the worker's end")
    out = end(endless, process)
    assert process.returncode == pytest.ExitCode.TESTS_FAILED, out
    assert "crashed while running 'test_perf.py::test_endless[sglang]'" in out
    assert endless.verdicts["test_first[sglang]"] == endless.verdicts["test_last[sglang]"] == "passed"
    assert not [pid for pid in before if alive(pid)]
    endless.wait_until_nothing_runs()


def test_the_log_of_every_launch_is_kept(project: Project) -> None:
    project.suite(HEAD + QUICK.format(model="one", name="a"))
    assert project.run_here("--llmperf-log-dir", "logs").ret == 0
    [server] = project.report["servers"]
    [launch] = server["launches"]
    assert "Application shutdown complete" in Path(launch["log"]).read_text()
    assert Path(launch["log"]).parent == project.path / "logs"
