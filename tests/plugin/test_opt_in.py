"""Plain pytest launches nothing, says so in one line, and pays almost nothing for the plugin."""

from __future__ import annotations

import json
import sys

import pytest

from tests.plugin.conftest import SUITE, Project

HEAVY = ("numpy", "scipy", "openai", "rich", "httpx", "filelock", "psutil")
#: The tests that ``SUITE`` has none of.
KINDS = """

@pytest.mark.llm_servers(fast={"dtype": "half"})
def test_several(llm_servers):
    pass


@pytest.mark.llm_ab(b={"dtype": "half"})
def test_ab(ab):
    pass


@pytest.mark.llm_sweep(tp=[1, 2])
def test_sweep(llm_server):
    pass
"""


@pytest.mark.parametrize("args", [[], ["-q"], ["-n", "1"], ["-m", "not perf"]], ids=" ".join)
def test_plain_pytest_deselects_with_one_line(project: Project, args: list[str]) -> None:
    project.suite(SUITE + "\ndef test_other():\n    pass\n")
    run = project.run if "-n" in args else project.run_here
    result = run(*args, engine=None)
    assert result.ret == 0
    said = [line for line in result.outlines if "llmperf:" in line]
    if args == ["-m", "not perf"]:  # the user has deselected it himself
        assert said == []
    else:
        assert said == ["llmperf: 1 test needs an LLM server, so deselected: to run, pass --engine NAME"]
    assert project.launches == 0
    assert not (project.path / "out.json").exists()


def imported(project: Project, *args: str) -> tuple[set[str], list[str]]:
    """Modules that a pytest of its own process loads, and the lines that it prints."""
    program = (
        "import json, sys, pytest\n"
        "before = set(sys.modules)\n"
        "pytest.main(['-q', *sys.argv[1:]])\n"
        "print('MODULES', json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    lines = project.base.pytester.run(sys.executable, "-c", program, "-p", "no:xdist", *args).outlines
    [line] = [line for line in lines if line.startswith("MODULES ")]
    return set(json.loads(line.removeprefix("MODULES "))), lines


def test_plain_pytest_imports_nothing_heavy(project: Project) -> None:
    """Counted in modules: seconds would depend on the machine."""
    ours = imported(project)[0] - imported(project, "-p", "no:llmperf")[0]
    assert not {name.partition(".")[0] for name in ours} & set(HEAVY)
    assert sorted(ours) == [
        "pytest_llmperf.errors",
        "pytest_llmperf.fixtures",
        "pytest_llmperf.hookspecs",
        "pytest_llmperf.options",
        "pytest_llmperf.plugin",
        "pytest_llmperf.session",
        "pytest_llmperf.session.selection",
    ]


def test_opted_in_collection_imports_nothing_that_measures_or_judges(project: Project) -> None:
    """Whatever kind of test there is: a gate, several servers, an A/B, a sweep."""
    project.suite(SUITE + KINDS)
    modules, lines = imported(project, "--collect-only", "--engine", "sglang")
    collected = {line for line in lines if line.startswith("test_perf.py::")}
    assert collected == {f"test_perf.py::test_{kind}[sglang]" for kind in ("decode", "several", "ab", "sweep")}
    assert not {name.partition(".")[0] for name in modules} & {"numpy", "scipy", "openai"}


def test_an_engine_in_the_settings_does_not_opt_in(project: Project) -> None:
    project.base.write_config('[tool.llmperf]\nengine = ["sglang"]\n')
    result = project.run_here(engine=None)
    result.assert_outcomes(deselected=1)
    result = project.run_here("-m", "perf", "--collect-only", "-q", engine=None)
    result.stdout.fnmatch_lines(["test_perf.py::test_decode?sglang?"])
    assert project.launches == 0


@pytest.mark.parametrize("expression", ["perf", "(perf)", "perf and not slow", "not slow and perf", "perf or slow"])
def test_m_perf_opts_in(project: Project, expression: str) -> None:
    result = project.run_here("-m", expression, "--collect-only", "-q")
    result.stdout.fnmatch_lines(["test_perf.py::test_decode?sglang?"])


@pytest.mark.parametrize("expression", ["not perf", "not (perf or slow)", "perfect", "slow and not perf"])
def test_other_expressions_do_not(project: Project, expression: str) -> None:
    result = project.run_here("-m", expression, "--collect-only", "-q", engine=None)
    result.stdout.no_fnmatch_line("*::test_decode*")
    result.stdout.no_fnmatch_line("*performance test*")


@pytest.mark.parametrize("workers", [0, 1], ids=["serial", "xdist"])
def test_m_perf_without_any_engine_is_a_usage_error(project: Project, workers: int) -> None:
    run = project.run("-m", "perf", engine=None, workers=workers) if workers else None
    result = run or project.run_here("-m", "perf", engine=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = "\n".join(result.outlines + result.errlines)
    assert "test_perf.py::test_decode: no engine chosen: pass --engine NAME, or set engine in [tool.llmperf]" in said
    assert "INTERNAL" not in said


def test_an_unknown_engine_is_a_usage_error_with_the_nearest_name(project: Project) -> None:
    result = project.run_here(engine="sglan")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: no engine 'sglan' (did you mean 'sglang'?)"])


def test_an_empty_selection_is_said(project: Project) -> None:
    project.suite("def test_other():\n    pass\n")
    result = project.run_here()
    assert result.ret == 0
    result.stdout.fnmatch_lines(["llmperf: no performance test was selected, so nothing is gated"])
    result = project.run_here("-m", "perf", engine=None)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["llmperf: no performance test was selected, so nothing is gated"])


def test_tests_marked_perf_for_other_reasons_are_left_alone(project: Project) -> None:
    """``perf`` is a common name. Such tests run as ever, and that nothing of them is gated is said."""
    project.suite("import pytest\n\n@pytest.mark.perf\ndef test_mine():\n    pass\n")
    result = project.run_here("-m", "perf", engine=None)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["llmperf: 1 test marked perf without llm_server or llm_servers: nothing to gate"])


def test_a_fixture_of_the_users_named_engine_is_left_alone(project: Project) -> None:
    project.suite("""
import pytest

@pytest.fixture
def engine():
    return "a database"

def test_db(engine):
    assert engine == "a database"
""")
    result = project.run_here("-v")
    result.stdout.fnmatch_lines(["test_perf.py::test_db PASSED*"])


def test_the_engine_fixture_needs_no_server(project: Project) -> None:
    project.suite("def test_name(engine):\n    assert engine == 'sglang'\n")
    project.run_here().assert_outcomes(passed=1)
    result = project.run_here("--engine", "vllm")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*one engine is needed here, and --engine names 2*"])
    result = project.run_here(engine=None)
    result.stdout.fnmatch_lines(["*performance tests run with --engine NAME or -m perf only*"])
