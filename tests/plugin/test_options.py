"""Options: who wins, what is refused, and that another plugin may own the short names."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmperf.cli.main import main
from tests.plugin.conftest import Project

#: Prints the options in force, one ``name=value`` a line, and runs nothing.
SHOW = """
import pytest
from pytest_llmperf.session.selection import PLUGIN

def pytest_collection_finish(session):
    options = session.config.pluginmanager.get_plugin(PLUGIN).session.options
    for name, value in vars(options).items():
        print(f"OPTION {name}={value!r}")
"""


def options(project: Project, *args: str, engine: str | None = "sglang") -> dict[str, str]:
    (project.path / "conftest.py").write_text(SHOW)
    result = project.run_here("--collect-only", *args, engine=engine)
    lines = [line.removeprefix("OPTION ") for line in result.outlines if line.startswith("OPTION ")]
    assert lines, result.outlines + result.errlines
    return dict(line.split("=", 1) for line in lines)


def refusal(project: Project, *args: str, engine: str | None = "sglang") -> str:
    result = project.run_here(*args, engine=engine)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = str(result.stderr)
    assert "Traceback" not in said + str(result.stdout)
    return said


def ini(project: Project, text: str) -> None:
    """``text`` as pytest's own settings, on top of the project's."""
    file = project.path / "pyproject.toml"
    file.write_text(file.read_text().replace("[tool.pytest.ini_options]\n", f"[tool.pytest.ini_options]\n{text}\n"))


def test_command_line_over_ini_over_table_over_default(project: Project) -> None:
    assert options(project)["confirm"] == "2"
    project.config('confirm = 3\nlevel = 0.02\nrunner_pool = "blue"\nkeep_servers = true\n')
    found = options(project)
    assert (found["confirm"], found["level"], found["runner_pool"]) == ("3", "0.02", "'blue'")
    assert found["keep_servers"] == "True"
    ini(project, 'llmperf_confirm = "4"\nllmperf_keep_servers = "false"\nllmperf_ignore_guards = "drift queueing"')
    found = options(project)
    assert (found["confirm"], found["level"], found["keep_servers"]) == ("4", "0.02", "False")
    assert found["ignore_guards"] == "('drift', 'queueing')"
    found = options(project, "--llmperf-confirm", "5", "--llmperf-ignore-guard", "drift", "--keep-servers")
    assert (found["confirm"], found["ignore_guards"], found["keep_servers"]) == ("5", "('drift',)", "True")


@pytest.mark.parametrize("name", ["llmperf.toml", "pyproject.toml"])
def test_settings_are_the_nearest_ones_upward_for_pytest_and_the_command(
    project: Project, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nested = project.path / "nightly" / "suites"
    nested.mkdir(parents=True)
    head = "[tool.llmperf]\n" if name == "pyproject.toml" else ""
    (nested.parent / name).write_text(f"{head}confirm = 3\n")
    monkeypatch.chdir(nested)
    found = options(project, str(project.path))
    assert (found["confirm"], found["baselines"]) == ("3", repr(nested.parent / "baselines"))
    capsys.readouterr()
    assert main(["baselines", "show"]) == 4
    assert f"there is no baselines folder {nested.parent / 'baselines'}" in capsys.readouterr().err
    (nested.parent / name).write_text(f"{head}confirmed = 3\n")
    assert f"{nested.parent / name}: unknown key 'confirmed' (did you mean 'confirm'?)" in refusal(project)
    monkeypatch.chdir(nested.parents[2])
    assert options(project, str(project.path))["confirm"] == "2", "elsewhere, those of the tests count"


def test_engines_of_the_settings_and_of_the_command_line(project: Project) -> None:
    project.config('engine = ["vllm", "sglang"]\n')
    assert options(project, "-m", "perf", engine=None)["engine"] == "('vllm', 'sglang')"
    assert options(project)["engine"] == "('sglang',)"
    assert options(project, "--llmperf-engine", "vllm")["engine"] == "('sglang', 'vllm')"


def test_paths_are_those_of_the_root_or_of_the_shell(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path in a settings file is relative to the root folder, one on the command line to where one stands."""
    sub = project.path / "sub"
    sub.mkdir()
    (sub / "test_sub.py").write_text("def test_x(): pass\n")
    project.config('log_dir = "logs"\n')
    monkeypatch.chdir(sub)
    found = options(project, "--baselines", "here")
    assert found["baselines"] == repr(sub / "here")
    assert found["log_dir"] == repr(project.path / "logs")
    assert options(project)["baselines"] == repr(project.path / "baselines")
    assert found["json"] == repr(sub / "out.json")


def test_a_file_of_its_own_takes_the_place_of_the_table(project: Project) -> None:
    (project.path / "llmperf.toml").write_text("confirm = 7\n")
    assert options(project)["confirm"] == "7"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("confrim = 2", "[[]tool.llmperf] in pyproject.toml: unknown key 'confrim' (did you mean 'confirm'?)"),
        ("launches = 0", "*launches: 0 is less than 1"),
        ("launches = 1.5", "*launches: expected a whole number, got 1.5"),
        ("launches = true", "*launches: expected a whole number, got True"),
        ("level = 0.9", "*level: 0.9 is not below 0.5 (it is a fraction)"),
        ("gpu_wait = nan", "*gpu_wait: expected a number, got nan"),
        ("min_effect = 5", "*min_effect: 5 is not below 1 (it is a fraction)"),
        ('keep_servers = "perhaps"', "*keep_servers: expected true or false, got 'perhaps'"),
        ('inconclusive = "pass"', "*inconclusive: 'pass' is not one of skip, fail"),
        ("engine = 3", "*engine: expected names, got 3"),
        ('engine = ["sglan"]', "no engine 'sglan' (did you mean 'sglang'?)"),
        ("baselines = 3", "*baselines: expected text, got 3"),
        ("engines = 3", "*engines must be a table, not int"),
        ("profiles = { a = 3 }", "*: a must be a table, not int"),
        ("engines.sglang.comand = ['x']", "*engines.sglang: unknown key 'comand' (did you mean 'command'?)"),
        ("engines.sglang.command = 'x'", "*engines.sglang.command must be a list of words*not 'x'"),
        ("engines.sglang.port = 'x'", "*engines.sglang.port must be a port, 1 to 65535, not 'x'"),
        ("engines.sglang.env = { A = true }", "*engines.sglang.env must be a table of texts*"),
        ("engines.sglan.command = ['x']", "no engine 'sglan' (did you mean 'sglang'?)"),
        ("= 3", "*pyproject.toml*"),
    ],
    ids=lambda x: x if " = " in x else "",
)
def test_ill_settings_are_named(project: Project, table: str, said: str) -> None:
    (project.path / "pyproject.toml").write_text(f"[tool.llmperf]\n{table}\n")
    result = project.run_here("-m", "perf", engine=None if table.startswith("engine =") else "sglang")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "Traceback" not in str(result.stderr) + str(result.stdout)
    result.stderr.fnmatch_lines([f"ERROR: {said}"])


def test_ill_arguments_are_named(project: Project) -> None:
    assert "argument --launches/--llmperf-launches: invalid int value: 'x'" in refusal(project, "--launches", "x")
    assert "--launches: 0 is less than 1" in refusal(project, "--launches", "0")
    assert "invalid choice: 'pass'" in refusal(project, "--llmperf-inconclusive", "pass")
    ini(project, 'llmperf_confirm = "many"')
    assert "ini llmperf_confirm: expected a whole number, got 'many'" in refusal(project)


def test_arguments_that_contradict_each_other(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--accept-regression does nothing alone" in refusal(project, "--accept-regression", "why")
    url = ("--llmperf-url", "http://127.0.0.1:1")
    assert "--launches 2 needs fresh launches" in refusal(project, *url, "--launches", "2")
    monkeypatch.setenv("CI", "true")
    assert "--update-baselines is refused where CI is set" in refusal(project, "--update-baselines")
    assert options(project, "--update-baselines=force")["update"] == "'force'"


def test_update_baselines_does_not_swallow_a_path(project: Project) -> None:
    (project.path / "tests").mkdir()
    (project.path / "tests" / "test_there.py").write_text("def test_there(): pass\n")
    for flag in ("--update-baselines", "--llmperf-update-baselines", "--update-baselines=force"):
        result = project.run_here("--collect-only", "-q", flag, "tests/")
        result.stdout.fnmatch_lines(["tests/test_there.py::test_there"])
        result.stdout.no_fnmatch_line("*test_perf.py*")


@pytest.mark.parametrize("group", ["parser", "parser.getgroup('other')", "parser.getgroup('llmperf')"])
def test_another_plugin_owns_the_short_names(project: Project, group: str) -> None:
    """Theirs stay theirs, whichever group they are in; the long twins work."""
    (project.path / "other_plugin.py").write_text(f"""
def pytest_addoption(parser):
    group = {group}
    group.addoption("--engine", dest="their_engine")
    group.addoption("--update-baselines", action="store_true", dest="their_update")

def pytest_report_header(config):
    return f"theirs: {{config.option.their_engine}} {{config.option.their_update}}"
""")
    project.base.pytester.syspathinsert()
    args = ("-p", "other_plugin", "--engine", "diesel", "--update-baselines", "--llmperf-engine", "vllm")
    result = project.run_here("--collect-only", *args, "--llmperf-update-baselines", engine=None)
    assert result.ret == 0, result.errlines
    result.stdout.fnmatch_lines(["theirs: diesel True", "llmperf: update baselines; vllm; *", "*test_decode?vllm?*"])


def test_html_without_its_extra_is_refused_before_anything_runs(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "jinja2" else real(name, *a))
    assert "python -m pip install 'pytest-llmperf[report]'" in refusal(project, "--llmperf-html", "x.html")
    assert not Path(project.path / "x.html").exists()
