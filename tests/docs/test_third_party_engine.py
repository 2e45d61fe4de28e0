"""The worked example of an engine adapter: small, installable, and driven like a built-in engine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli

from pytest_llmperf.engines.base import Engine
from pytest_llmperf.testing import EngineContract
from tests.conftest import FAKE_ENGINE, PLANNED, STAMPS, PerfProject
from tests.docs.pages import blocks
from tests.plugin.conftest import SETTINGS

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_engine"
MODULE = "pytest_llmperf_trtllm"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-an-engine.md"

#: Takes trtllm-serve's command line, as far as the adapter writes it, and becomes the stand-in for vLLM.
LAUNCHER = f"""
import argparse, os, sys
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("command", choices=["serve"])
parser.add_argument("model")
for flag in ("host", "port", "tp_size", "pp_size", "max_batch_size", "max_seq_len"):
    parser.add_argument("--" + flag)
parser.add_argument("--trust_remote_code", action="store_true")
given = parser.parse_args()
words = ["vllm", "serve", given.model, "--host", given.host, "--port", given.port]
words += ["--tensor-parallel-size", given.tp_size or "1", "--max-num-seqs", given.max_batch_size or "16"]
os.execv(sys.executable, [sys.executable, {str(FAKE_ENGINE)!r}, *words])
"""

SUITE = """
import pytest
from pytest_llmperf import perf


@pytest.mark.llm_server(model="fake-model", max_running_requests=8, trtllm={"trust_remote_code": True})
@perf(repetitions=5, max_repetitions=5)
def test_decode(llm_server, baseline):
    assert llm_server.effective.engine_version == "0.26.0"
    assert llm_server.stream(output_tokens=40, prompt_tokens=16).decode_tok_s in baseline
"""


@pytest.fixture
def project(perf_project: PerfProject, monkeypatch: pytest.MonkeyPatch) -> PerfProject:
    monkeypatch.setenv("FAKE_ITL_MS", "4")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLE), str(STAMPS)]))
    monkeypatch.setenv("PYTEST_ADDOPTS", PLANNED)
    launcher = perf_project.path / "launcher.py"
    launcher.write_text(LAUNCHER)
    command = json.dumps([sys.executable, str(launcher), "serve"])
    perf_project.write_config(SETTINGS + f"\n[tool.llmperf.engines.trtllm]\ncommand = {command}\n")
    perf_project.write_suite(SUITE)
    return perf_project


def of(source: str) -> Engine:
    """The engine that a plugin's source adds."""
    namespace: dict[str, Any] = {}
    exec(compile(source, MODULE, "exec"), namespace)  # the example as a reader has it: a file, or a page's code
    [engine] = namespace["pytest_llmperf_engines"]()
    return engine


class TestTheExample(EngineContract):
    engine = of((EXAMPLE / f"{MODULE}.py").read_text(encoding="utf-8"))


class TestThePage(EngineContract):
    """The adapter of docs/how-to/write-an-engine.md, as printed."""

    engine = of(next(b.text for b in blocks(PAGE) if "class TensorRTLLM" in b.text))


def run(project: PerfProject, *args: str) -> pytest.RunResult:
    return project.run("-p", MODULE, *args, engine="trtllm", timeout=180)


def test_it_fits_a_screen_and_names_itself_to_pytest() -> None:
    lines = (EXAMPLE / f"{MODULE}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 60
    about = tomli.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))
    assert about["project"]["entry-points"]["pytest11"] == {"llmperf_trtllm": MODULE}


def test_record_then_gate(project: PerfProject, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(project, "--update-baselines").ret == 0
    [stored] = (project.path / "baselines" / "trtllm").rglob("*.toml")
    assert tomli.loads(stored.read_text())["engine"] == "trtllm"
    result = run(project, "--llmperf-json", "same.json")
    assert result.ret == 0, result.outlines
    monkeypatch.setenv("FAKE_SLOWDOWN", "0.7")
    result = run(project, "--llmperf-json", "slower.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED, result.outlines
    said = [json.loads((project.path / f"{name}.json").read_text())["results"] for name in ("same", "slower")]
    assert [(r["engine"], r["verdict"]) for [r] in said] == [("trtllm", "passed"), ("trtllm", "regressed")]


def test_a_key_it_cannot_honour_is_refused_at_collection(project: PerfProject) -> None:
    project.write_suite(SUITE.replace("max_running_requests=8", "attention_backend='fa3'"))
    result = run(project)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*trtllm cannot honour attention_backend='fa3'*"])
    assert project.launches == []
