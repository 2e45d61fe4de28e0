"""What other plugins add: each hook's own example, at work in a session and in the command ``llmperf``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from docs.gen_reference import hook_words
from pytest_llmperf import hookspecs
from pytest_llmperf.cli import cmd_inspect
from pytest_llmperf.cli.main import main
from tests.conftest import StartFake
from tests.plugin.conftest import SUITE, Project

HOOKS = [hook for name, hook in vars(hookspecs).items() if name.startswith("pytest_llmperf_")]


def extended(project: Project, extra: str = "") -> Project:
    """With the examples of all hooks in its conftest, as printed, and OurFork for an engine."""
    project.suite("\n\n".join([*(hook_words(hook)[1] for hook in HOOKS), extra]), "conftest.py")
    project.config(f"[tool.llmperf.engines.ourfork]\ncommand = {json.dumps([*project.base.command, 'vllm'])}\n")
    return project


def test_the_examples_work_as_printed(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    extended(project)
    out = project.path / "out"
    formats = ("--llmperf-export", "tsv=out/results.tsv", "--llmperf-export", "markdown=out/summary.md")
    result = project.run_here("--update-baselines", *formats, engine="ourfork")
    assert result.ret == 0, result.outlines
    header, row = (out / "results.tsv").read_text().splitlines()
    assert header.split("\t") == ["test", "metric", "value", "unit", "verdict"]
    assert row.split("\t")[0] == "test_perf.py::test_decode[ourfork]"
    assert "decode_tok_s" in (out / "summary.md").read_text()
    capsys.readouterr()
    assert main(["export", "tsv", "out.json"]) == 0
    assert capsys.readouterr().out == (out / "results.tsv").read_text()


SLOWEST = """
import pytest
from pytest_llmperf import perf

@perf(metric=("ttft_max_ms", "decode_tok_s"), target={"ttft_max_ms": 60_000})
@pytest.mark.llm_server(model="m")
def test_slowest(llm_server, baseline):
    run = llm_server.stream(output_tokens=8, prompt_tokens=8, repetitions=3)
    assert run.ttft_max_ms == pytest.approx(max(r.ttft_ms for r in run.requests))
    assert len(run.ttft_max_ms.values) == 1
    assert "ttft_max_ms" in run.metrics
    baseline.check(run)
"""


def test_a_metric_of_a_plugin_is_gated_like_ours(project: Project) -> None:
    extended(project)
    project.suite(SLOWEST)
    assert project.run_here("--update-baselines", engine="sglang").ret == 0
    assert project.run_here(engine="sglang").ret == 0
    mine = {r["metric"]: r for r in project.results}["ttft_max_ms"]
    assert (mine["verdict"], mine["unit"], mine["direction"]) == ("passed", "ms", "lower")
    assert mine["target"] == 60_000


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("[3]", "must give Metric(name, unit, higher_is_better, what, compute=...)"),
        ("[Metric('a-b', 's', True, '', compute=len)]", "whose name is one in Python, not Metric(name='a-b'"),
        ("[Metric('mine', 's', True, '')]", "must give Metric(name, unit, higher_is_better, what, compute=...)"),
        ("[Metric('ttft_ms', 's', True, '', compute=len)]", "gives 'ttft_ms', which there is: rename it"),
    ],
    ids=["wrong", "name", "no compute", "taken"],
)
def test_what_is_no_metric_is_refused(project: Project, given: str, said: str) -> None:
    project.suite(
        f"from pytest_llmperf import Metric\ndef pytest_llmperf_metrics(config):\n    return {given}\n", "conftest.py"
    )
    result = project.run_here()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in str(result.stderr)
    assert project.launches == 0


def test_what_is_no_value_fails_the_test_that_measured_it(project: Project) -> None:
    project.suite(
        "from pytest_llmperf import Metric\n"
        "def pytest_llmperf_metrics(config):\n"
        "    return Metric('mine', 's', True, '', compute=lambda requests: [-1.0])\n",
        "conftest.py",
    )
    result = project.run_here()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "metric mine: its compute() gave -1.0, no number from 0 up" in str(result.stdout)


@pytest.mark.usefixtures("planned_times")
def test_ab_knows_the_engines_of_plugins(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    extended(project)
    command = shlex.join([*project.base.command, "vllm"])
    sizes = ("--output-tokens", "8", "--prompt-tokens", "8", "--repetitions", "2", "--budget", "1")
    sides = ("--a", command, "--b", command, "--b-set", "quantization=fp8")
    assert main(["ab", "--engine", "ourfork", "--model", "m", *sides, *sizes]) == 0, capsys.readouterr()
    assert ["--weight-format" in x["argv"] for x in project.base.launches] == [False, True]
    assert main(["ab", "--engine", "ourfrok", "--model", "m"]) == 4
    assert "--engine ourfrok: no such engine (did you mean 'ourfork'?)" in capsys.readouterr().err


def test_inspect_asks_the_adapter_that_replaces_ours(project: Project, fake_server: StartFake) -> None:
    project.suite(
        """
from pytest_llmperf.engines.base import EffectiveConfig
from pytest_llmperf.engines.sglang import SGLang

class Fork(SGLang):
    def effective(self, config, probe):
        return EffectiveConfig(engine_version="of the fork")

def pytest_llmperf_engines(config):
    return Fork()
""",
        "conftest.py",
    )
    found = cmd_inspect.resolved("sglang", fake_server("sglang").root_url, None)
    assert found.settings == {"engine_version": "of the fork"}


@pytest.mark.parametrize(
    ("conftest", "said"),
    [
        ("raise RuntimeError('of its own')", "of its own"),
        ("def pytest_llmperf_engines(config):\n    return [3]", "must give Engine instances, not 3"),
    ],
    ids=["broken", "wrong"],
)
def test_plugins_that_cannot_be_asked_are_named(
    project: Project, conftest: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    project.suite(conftest, "conftest.py")
    assert main(["ab", "--engine", "sglang", "--model", "m"]) == 4
    assert said in capsys.readouterr().err


def test_without_the_plugin_the_hooks_cannot_be_asked(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:llmperf")
    assert main(["ab", "--engine", "sglang", "--model", "m"]) == 4
    assert "take -p no:llmperf out of the settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{'html': str}", "gives 'html', which there is: rename it"),
        ("{'mine': 3}", "must give functions of a SessionRecord by name, not {'mine': 3}"),
        ("[str]", "must give functions of a SessionRecord by name, not"),
    ],
)
def test_what_is_no_report_format_is_refused(project: Project, given: str, said: str) -> None:
    project.suite(f"def pytest_llmperf_report_formats(config):\n    return {given}\n", "conftest.py")
    result = project.run_here()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in str(result.stderr)
    assert project.launches == 0


def test_an_export_that_cannot_be_is_told_before_anything_runs(project: Project) -> None:
    (project.path / "taken").mkdir()
    for given, said in (
        ("bencher=taken", "taken: it is a folder; give the path of a file that can be written"),
        ("becher=x.json", "--llmperf-export becher: no such report format (did you mean 'bencher'?)"),
        ("bencher", "--llmperf-export: 'bencher': write NAME=PATH, such as bencher=bench.json"),
        ("bencher=", "--llmperf-export: 'bencher=': write NAME=PATH"),
    ):
        result = project.run_here("--llmperf-export", given)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert said in str(result.stderr)
    assert project.launches == 0


def test_an_export_that_fails_at_the_end_is_told_and_costs_no_other(project: Project) -> None:
    project.config('export = ["bencher=taken", "markdown=summary.md"]\n')
    project.suite(SUITE + "    __import__('os').mkdir('taken')\n")
    result = project.run_here("--update-baselines")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "cannot write the report" in str(result.stdout)
    assert Path(project.path, "summary.md").exists()
    assert project.result["verdict"] == "no_baseline"
