"""Every metric that a test declares has a result in every report, however its test ends; what was noticed is said."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_llmperf.baselines import store
from pytest_llmperf.baselines.series import Epoch
from pytest_llmperf.measure import metrics
from tests.plugin.conftest import SUITE, Project

HEAD = """
import os, pytest
from pytest_llmperf import perf

pytestmark = pytest.mark.llm_server(model="fake-model")
quick = perf(repetitions=1, max_repetitions=1, target=1)


def run(server):
    return server.stream(output_tokens=24, prompt_tokens=16)
"""
TEST = """

@quick
def test_{name}({fixtures}llm_server, baseline):
    {body}
"""
GREEN = "assert run(llm_server).decode_tok_s in baseline"


def quick(name: str, body: str = GREEN, fixtures: str = "") -> str:
    """A test that passes, or does what ``body`` says."""
    return TEST.format(name=name, body=body, fixtures=fixtures)


ENDINGS = (
    HEAD
    + """

@pytest.fixture
def broken():
    raise OSError("the disk is full")


@perf(metric=("decode_tok_s", "ttft_ms"), target={"decode_tok_s": 1e6, "ttft_ms": 1e6}, repetitions=1)
def test_first(llm_server, baseline):
    measured = run(llm_server)
    assert measured.decode_tok_s in baseline
    assert measured.ttft_ms in baseline
"""
    + quick("fixture", fixtures="broken, ")
    + quick("body", 'raise ValueError("no weights\\nand more")')
    + quick("given_up", 'pytest.fail("given up")')
    + quick("vacuous", "pass")
    + quick("skipped", 'pytest.skip("not today")')
    + quick("green")
)


def kinds(project: Project) -> dict[str, tuple[str, str | None]]:
    """Test to (tag of its JUnit case, llmperf.kind)."""
    out = {}
    for case in ElementTree.parse(project.path / "junit.xml").iter("testcase"):
        properties = {p.get("name"): p.get("value") for p in case.iter("property")}
        tags = [x.tag for x in case if x.tag != "properties"]
        out[str(case.get("name")).partition("[")[0]] = (*tags, "")[0], properties.get("llmperf.kind")
    return out


def test_a_test_that_ends_before_it_is_judged(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "summary.md"))
    project.suite(ENDINGS)
    result = project.run_here("--junitxml", "junit.xml", "--llmperf-html", "report.html")
    result.assert_outcomes(passed=1, failed=4, errors=1, skipped=1)
    found = {(r["nodeid"].partition("::")[2], r["metric"]): (r["verdict"], r["reasons"][:1]) for r in project.results}
    assert found.pop(("test_first[sglang]", "decode_tok_s"))[0] == "below_target"
    verdict, [why] = found.pop(("test_first[sglang]", "ttft_ms"))
    assert verdict == "error"
    assert "decode_tok_s below target" in why
    assert found.pop(("test_green[sglang]", "decode_tok_s"))[0] == "passed"
    said = {name: reasons[0] for (name, _), (verdict, reasons) in found.items() if verdict == "error"}
    assert said.pop("test_vacuous[sglang]").startswith("test_perf.py::test_vacuous[sglang]: declares decode_tok_s and")
    assert said == {
        "test_fixture[sglang]": "OSError: the disk is full",
        "test_body[sglang]": "ValueError: no weights",
        "test_given_up[sglang]": "given up",
    }
    tally = "5 error, 1 below target, 1 passed"
    assert f"llmperf: {tally};" in str(result.stdout)
    assert f"**{tally}**" in (project.path / "summary.md").read_text()
    page = (project.path / "report.html").read_text()
    assert f"LLM performance: {tally}" in page
    assert "OSError: the disk is full" in page
    assert kinds(project) == {
        "test_first": ("failure", "below_target"),
        "test_fixture": ("error", "test"),
        "test_body": ("failure", "test"),
        "test_given_up": ("failure", "test"),
        "test_vacuous": ("failure", "misuse"),
        "test_skipped": ("skipped", None),
        "test_green": ("", None),
    }


def test_what_a_ci_may_try_again(wobbly: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that died says nothing of its speed, one that is slow does."""
    monkeypatch.setenv("FAKE_DIE", "5@4")
    wobbly.run_here("--junitxml", "junit.xml").assert_outcomes(errors=1)
    assert kinds(wobbly) == {"test_decode": ("error", "infrastructure")}
    suite = ElementTree.parse(wobbly.path / "junit.xml").find("testsuite")
    assert suite is not None
    assert (suite.get("errors"), suite.get("failures"), suite.get("tests")) == ("1", "0", "1")
    monkeypatch.delenv("FAKE_DIE")
    monkeypatch.setenv("FAKE_SLOWDOWN", "0.5")
    wobbly.run_here("--junitxml", "junit.xml").assert_outcomes(failed=1)
    assert kinds(wobbly) == {"test_decode": ("failure", "regression")}
    for path in store.files(wobbly.path / "baselines"):
        path.write_text("= what")
    wobbly.run_here("--junitxml", "junit.xml").assert_outcomes(errors=1)
    assert kinds(wobbly) == {"test_decode": ("error", "misuse")}
    assert wobbly.result["verdict"] == "error"


def test_a_crash_counts_as_run_and_the_rest_of_its_group_runs(project: Project) -> None:
    project.suite(HEAD + quick("a") + quick("crash", "run(llm_server); os._exit(3)") + quick("z"))
    result = project.run("-n", "2", "--junitxml", "junit.xml")
    result.assert_outcomes(passed=2, failed=1)
    assert project.launches == 2
    assert project.verdicts == {"test_a[sglang]": "passed", "test_crash[sglang]": "error", "test_z[sglang]": "passed"}
    [crash] = [r for r in project.results if r["verdict"] == "error"]
    [why] = crash["reasons"]
    assert why.endswith("crashed while running 'test_perf.py::test_crash[sglang]'")
    assert kinds(project)["test_crash"] == ("error", "infrastructure")


def test_a_crash_in_a_later_round_is_that_of_the_test_that_ran(project: Project) -> None:
    """xdist's worker is at the last test of the group all the while."""
    second = "open('seen', 'x') if not os.path.exists('seen') else os._exit(3)"
    project.suite(HEAD + quick("crash", f"{GREEN}; {second}") + quick("z"))
    result = project.run("-n", "1", "--launches", "2")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["FAILED test_perf.py::test_crash?sglang?*"])
    assert project.verdicts == {"test_crash[sglang]": "error", "test_z[sglang]": "error"}
    for found in project.results:
        assert found["reasons"][0].endswith("crashed while running 'test_perf.py::test_crash[sglang]'")


def test_what_was_not_run_any_more(project: Project) -> None:
    project.suite(HEAD + quick("a", "assert 0") + quick("b"))
    (project.path / "test_z.py").write_text(HEAD.replace("fake-model", "other") + quick("z"))
    project.run_here("-x").assert_outcomes(failed=1)
    assert project.verdicts == {f"test_{name}[sglang]": "error" for name in "abz"}
    assert project.results[-1]["reasons"] == ["the session ended before it was judged"]


def test_a_missed_target_is_recorded_all_the_same(project: Project) -> None:
    project.suite(SUITE.replace("@perf(", "@perf(target=1e6, "))
    result = project.run_here("--update-baselines")
    result.assert_outcomes(failed=1)
    assert project.result["verdict"] == "below_target"
    assert "update: test_perf.py::test_decode [sglang]: recorded 1 launch (first recording)" in project.messages
    assert len(project.baselines) == 1


def test_what_was_noticed_reaches_the_reader(recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_TOKENS_PER_CHUNK", "4")
    green = recorded.run_here("--llmperf-html", "report.html")
    assert recorded.result["verdict"] == "passed"
    [note] = [n for n in recorded.result["notes"] if n.endswith("tokens in a chunk")]
    assert note in (recorded.path / "report.html").read_text()
    assert note not in str(green.stdout)
    monkeypatch.setenv("FAKE_SLOWDOWN", "0.5")
    recorded.run_here("--llmperf-confirm", "0").stdout.fnmatch_lines(["  note * tokens in a chunk"])


@pytest.mark.parametrize(
    ("suite", "said"),
    [
        ("@pytest.mark.llm_server(model='m')\ndef test_it(llm_server):\n    ", "note: test_it[sglang]: "),
        (
            "@pytest.mark.llm_server(model='m')\n@pytest.mark.llm_ab(b={'seed': 2}, budget=1)\n"
            "def test_it(ab):\n    ab(lambda llm_server: ",
            "note: test_it[sglang]: ",
        ),
        (
            "@pytest.mark.llm_server(model='m')\n@pytest.mark.llm_sweep(seed=[2], launches=1)\n"
            "def test_it(llm_server):\n    ",
            "note: test_it[sglang], launch 1 of 3, base: ",
        ),
    ],
    ids=["ungated", "A/B", "sweep"],
)
def test_what_was_noticed_without_a_gate_is_said(
    project: Project, suite: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_TOKENS_PER_CHUNK", "4")
    end = ")" if suite.endswith(": ") else ""
    project.suite(f"import pytest\n{suite}llm_server.stream(output_tokens=24, prompt_tokens=16, repetitions=1){end}\n")
    project.run_here()
    assert any(x.startswith(said) and x.endswith("tokens in a chunk") for x in project.messages.splitlines())


def test_a_pass_against_an_old_baseline_says_so(recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    [path] = store.files(recorded.path / "baselines")
    series = store.read(path)
    aged = tuple(
        replace(x, recorded="2024-01-01T00:00:00Z", provenance={**x.provenance, "engine version": "0.0.1"})
        for x in series.current.launches
    )
    store.write(path, replace(series, epochs=(Epoch(series.current.reason, aged),)))
    monkeypatch.setenv("COLUMNS", "200")
    result = recorded.run_here()
    assert recorded.result["verdict"] == "passed"
    result.stdout.fnmatch_lines(
        ["│ • test_decode*: passed against a baseline * days old and of engine version 0.0.1 *"]
    )


def test_quiet_hides_no_error_and_no_refusal(wobbly: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SLOWDOWN", "0.5")
    monkeypatch.setenv("COLUMNS", "300")
    result = wobbly.run_here("-qq", "--update-baselines")
    result.stdout.fnmatch_lines(["│ • refused: test_perf.py::test_decode [[]sglang]: not recorded: *"])
    block = '\n    import pathlib; pathlib.Path("late").write_text("")'  # in the way of the report's folder
    wobbly.suite(SUITE.replace("@perf(", "@perf(target=1, ") + block)
    monkeypatch.delenv("FAKE_SLOWDOWN")
    result = wobbly.run_here("-qq", "--llmperf-html", "late/report.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["│ • error: cannot write the report *late/report.html: *"])
    (wobbly.path / "late").unlink()
    result = wobbly.run_here("-p", "no:terminal", "--llmperf-html", "late/report.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["llmperf: error: cannot write the report *late/report.html: *"])


OPTIONS = {
    "json": (["--llmperf-json", "file/out.json"], "--llmperf-json */file/out.json: */file is a file; *"),
    "html": (["--llmperf-html", "."], "--llmperf-html *: it is a folder; *"),
    "baselines": (["--baselines", "file"], "--baselines */file: */file is a file; *"),
    "recording": (["--baselines", "file", "--update-baselines"], "--baselines */file: */file is a file; *"),
    "guard": (
        ["--llmperf-ignore-guard", "host lod"],
        "*'host lod': there is no such guard (did you mean 'host load'?)",
    ),
    "summary": ([], "GITHUB_STEP_SUMMARY=*/none/s.md cannot be written: there is no folder */none"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_what_cannot_be_written_is_told_before_anything_starts(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (project.path / "file").write_text("")
    if name == "summary":
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "none" / "s.md"))
    args, said = OPTIONS[name]
    result = project.run_here("-q", *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {said}"])
    assert project.launches == 0


def test_every_guard_is_known_by_its_name() -> None:
    folder = Path(metrics.__file__).parent
    calls = (n for p in folder.rglob("*.py") for n in ast.walk(ast.parse(p.read_text())) if isinstance(n, ast.Call))
    names = {
        c.args[0].value for c in calls if getattr(c.func, "id", "") == "Guard" and isinstance(c.args[0], ast.Constant)
    }
    assert names == metrics.GUARDS


CASE = """
import unittest
import pytest
from pytest_llmperf import perf


@pytest.mark.llm_server(model="fake-model")
class TestOld(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def _here(self, llm_server, baseline, engine):
        self.server, self.baseline, self.engine = llm_server, baseline, engine

    @perf(repetitions=1, max_repetitions=1, target=1)
    def test_speed(self):
        assert self.engine == self.server.config.engine
        self.assertIn(self.server.stream(output_tokens=24, prompt_tokens=16).decode_tok_s, self.baseline)
"""


def test_a_unittest_case_runs_on_the_chosen_engine(project: Project) -> None:
    project.suite(CASE)
    project.run_here().assert_outcomes(passed=1)
    assert (project.result["test"], project.result["engine"]) == ("test_perf.py::TestOld::test_speed", "sglang")
    result = project.run_here("--engine", "vllm")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *is a unittest.TestCase, whose tests pytest cannot run once for each engine*"])


def test_a_wide_fixture_around_a_server(project: Project) -> None:
    wide = "\n\n@pytest.fixture(scope='module')\ndef mine(llm_server):\n    return llm_server\n"
    project.suite(HEAD + wide + quick("a", fixtures="mine, "))
    result = project.run_here()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: *its fixture 'mine' of scope 'module' asks for llm_server, which each test gets*"]
    )
    assert project.launches == 0
