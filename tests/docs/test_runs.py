"""Pages that are scripts, run from top to bottom."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PLANNED, STAMPS, PerfProject
from tests.docs.pages import ROOT, Block, blocks, commands, every_page

#: Guards that watch this machine rather than the server; a busy test machine would trip them.
SETTINGS = """
[tool.llmperf]
ignore_guards = ["server starved", "host load", "client delay", "client cpu", "drift"]
min_effect = 0.1
"""
PROGRAMS = {
    "pytest": ("-m", "pytest", "-p", "no:cacheprovider"),
    "llmperf": ("-c", "import sys; from pytest_llmperf.cli.main import main; sys.exit(main())"),
}
SCRIPTS = [page for page in every_page() if any(b.directive == "run" for b in blocks(page))]


@pytest.mark.parametrize("page", SCRIPTS, ids=[str(p.relative_to(ROOT)) for p in SCRIPTS])
def test_page(page: Path, perf_project: PerfProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ITL_MS", "4")
    monkeypatch.setenv("PYTEST_ADDOPTS", PLANNED)
    (perf_project.path / "test_perf.py").unlink()
    perf_project.write_config(SETTINGS)
    said = ""
    for block in blocks(page):
        if block.directive == "file":
            file = perf_project.path / block.argument
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        elif block.directive == "run":
            said = "".join(run(words, block, perf_project.path) for words in programs(block))
        elif block.directive == "output":
            pytest.LineMatcher(said.splitlines()).fnmatch_lines(patterns(block))


def programs(block: Block) -> list[tuple[str, ...]]:
    if block.language == "python":
        return [("-c", block.text)]
    lines = [shlex.split(command, comments=True) for command in commands(block)]
    return [(*PROGRAMS[words[0]], *words[1:]) for words in lines]


def run(words: tuple[str, ...], block: Block, folder: Path) -> str:
    variables = dict(re.findall(r"(\w+)=([^;]+)", block.argument))
    expected = re.search(r"exit (\d+)", block.argument)
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT if block.language == "python" else folder,
        env={**os.environ, "COLUMNS": "160", "PYTHONPATH": os.pathsep.join([str(ROOT), str(STAMPS)]), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    said = done.stdout + done.stderr
    assert done.returncode == int(expected[1] if expected else 0), f"{block.where}\n{said}"
    return said


def patterns(block: Block) -> list[str]:
    return [re.sub(r"([\[?])", "[\\1]", line) for line in block.text.splitlines()]


def test_there_are_scripts() -> None:
    assert {p.stem for p in SCRIPTS} >= {"why-launches", "how-the-gate-decides", "first-baseline"}
