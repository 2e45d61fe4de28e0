"""Rounds, servers and baselines beside popular plugins."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.plugin.conftest import SUITE, Project

ANOTHER = SUITE[SUITE.index("\n\n@perf") :]
#: Loses on every launch: suspect, measured, regressed.
LOSS = "0.79,0.79,0.79"


@pytest.fixture
def slow(wobbly: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A test that takes three rounds."""
    monkeypatch.setenv("FAKE_LAUNCH_FACTORS", LOSS)
    return wobbly


def beside(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is missing; tox -e neighbours has it")


HTML = ("-p", "pytest_metadata.plugin", "-p", "pytest_html.plugin", "--html", "page.html", "--self-contained-html")


@beside("pytest_html")
@pytest.mark.parametrize("workers", [0, 2])
def test_pytest_html_counts_rounds_as_reruns(slow: Project, workers: int) -> None:
    result = slow.run(*HTML, workers=workers)
    assert "INTERNALERROR" not in str(result.stdout) + str(result.stderr)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "1 suspect" in str(result.stdout)
    page = (slow.path / "page.html").read_text()
    assert "2 Reruns" in page
    assert "1 Failed" in page


SWEPT = """
import pytest

@pytest.mark.llm_server(model="fake-model", attention_backend="fa3")
@pytest.mark.llm_sweep(env__FAKE_CRASH=["oom"], launches=1)
def test_hunt(llm_server):
    llm_server.stream(output_tokens=8, prompt_tokens=16, repetitions=1, max_repetitions=1)
"""


@beside("pytest_html")
def test_pytest_html_takes_a_launch_that_fails_in_a_sweep(project: Project) -> None:
    project.suite(SWEPT)
    result = project.run(*HTML)
    assert result.ret == 0, result.outlines
    assert "2 Reruns" in (project.path / "page.html").read_text()


HANGS = """
import pathlib, time

@perf(repetitions=1, max_repetitions=1, target=1)
def test_hangs(llm_server, baseline):
    if pathlib.Path("again").exists():
        time.sleep(600)
    pathlib.Path("again").touch()
    assert llm_server.stream(output_tokens=24, prompt_tokens=16).decode_tok_s in baseline


@perf(repetitions=1, max_repetitions=1, target=1)
def test_last(llm_server, baseline):
    assert llm_server.stream(output_tokens=24, prompt_tokens=16).decode_tok_s in baseline
"""


@beside("pytest_timeout")
def test_pytest_timeout_ends_the_test_that_hangs(project: Project) -> None:
    """In the second round, which pytest runs as part of the last test: that one is not to blame."""
    project.suite(SUITE[: SUITE.index("\n\n@perf")] + HANGS)
    result = project.run("-p", "pytest_timeout", "--timeout", "15", "--launches", "2")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["FAILED test_perf.py::test_hangs*Timeout*"])
    assert project.verdicts == {"test_hangs[sglang]": "error", "test_last[sglang]": "passed"}
    [hung] = [r for r in project.results if r["verdict"] == "error"]
    assert "Timeout" in hung["reasons"][0]
    assert not project.running()


@beside("pytest_timeout")
def test_pytest_timeout_times_each_round_for_itself(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every timer that is set is cancelled before the next one, and each is of the test that runs."""
    conftest = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item, settings):
    print("set", item.name, file=open("timers", "a"))

@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item):
    print("cancel", item.name, file=open("timers", "a"))
"""
    project.suite(conftest, "conftest.py")
    project.suite(SUITE.replace("@perf(", "@perf(target=1, ") + ANOTHER.replace("@perf(", "@perf(target=1, ")
                  .replace("test_decode", "test_also"))  # fmt: skip
    result = project.run("-p", "pytest_timeout", "--timeout", "60", "--launches", "2")
    assert result.ret == 0, result.outlines
    lines = (project.path / "timers").read_text().splitlines()
    timers = [line for i, line in enumerate(lines) if i == 0 or line != lines[i - 1]]
    once = [f"{what} test_{name}[sglang]" for name in ("decode", "also") for what in ("set", "cancel")]
    assert timers == [*once, *once]


@beside("pytest_repeat")
def test_pytest_repeat_runs_share_a_baseline(recorded: Project) -> None:
    result = recorded.run("-p", "pytest_repeat", "--count", "2")
    assert result.ret == 0, result.outlines
    result.assert_outcomes(passed=2)
    assert {r["test"] for r in recorded.results} == {"test_perf.py::test_decode"}
    assert [r["verdict"] for r in recorded.results] == ["passed", "passed"]
    assert "unused" not in recorded.messages


@beside("pytest_rerunfailures")
def test_pytest_rerunfailures_reruns_no_verdict(slow: Project) -> None:
    result = slow.run("-p", "pytest_rerunfailures", "--reruns", "3")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["test_perf.py SmF *"])
    assert slow.launches == 3


@beside("pytest_randomly")
def test_pytest_randomly_shuffles_around_groups(project: Project) -> None:
    tests = "".join(
        f"\n@pytest.mark.llm_server(model='{model}')\ndef test_{i}_{model}(llm_server): pass\n"
        for i in range(3)
        for model in ("one", "two")
    )
    project.suite("import pytest\n" + tests)
    result = project.run("-p", "pytest_randomly")
    result.assert_outcomes(passed=6)
    assert sorted(project.models) == ["one", "two"]


@beside("pytest_sugar")
def test_pytest_sugar_shows_our_words(slow: Project) -> None:
    result = slow.run("-p", "pytest_sugar")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "INTERNALERROR" not in str(result.stdout) + str(result.stderr)
    assert "llmperf: 1 regressed" in str(result.stdout)
