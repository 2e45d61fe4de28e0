"""A command's marker and table are pasted back, and the server that pytest starts is that command's."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from pytest_llmperf.cli.main import main
from tests.conftest import FAKE_ENGINE, PerfProject

COMMANDS = {
    "vllm": "vllm serve fake-model --max-num-seqs 4 --max-model-len=2048 --no-enable-prefix-caching --dtype bfloat16",
    "sglang": "sglang serve --model-path fake-model --max-running-requests 4 --context-length 2048 "
    "--disable-radix-cache --chunked-prefill-size 512",
}


def executable(folder: Path, dialect: str) -> None:
    """The stand-in under the name of the engine's own program."""
    file = folder / dialect
    file.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE_ENGINE} {dialect} "$@"\n')
    file.chmod(0o755)


@pytest.mark.parametrize("dialect", list(COMMANDS))
def test_the_pasted_server_is_started(
    dialect: str, perf_project: PerfProject, capsys: pytest.CaptureFixture[str]
) -> None:
    executable(perf_project.path, dialect)
    pasted = f"NCCL_PROTO=LL {perf_project.path}/{COMMANDS[dialect]} --host 127.0.0.1 --port 1 --api-key mine"
    assert main(["marker", "--", pasted]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = "\n".join(line[6:] for line in lines if line.startswith("#     "))
    marker = "\n".join(line for line in lines if not line.startswith("#"))
    (perf_project.path / "pyproject.toml").write_text(f"[tool.pytest.ini_options]\n\n{table}\n")
    perf_project.write_suite(f"import pytest\n\n\n{marker}\ndef test_up(llm_server):\n    pass\n")

    perf_project.run(engine=dialect).assert_outcomes(passed=1)

    (launch,) = perf_project.launches
    argv = [part for word in launch["argv"] for part in word.split("=", 1)]
    for word in shlex.split(COMMANDS[dialect].replace("=", " "))[2:]:
        assert word in argv, json.dumps(launch)
    assert "mine" not in argv
    assert launch["env"]["NCCL_PROTO"] == "LL"
