"""What is published is what the list says, and everything that names Pythons or environments names the same ones."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli
import yaml

from tests.docs.pages import ROOT
from tools import check_dist

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def _environments() -> set[str]:
    """Of tox.ini: ``py310``, ``demo``; factors multiplied out."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    names = [s.partition(":")[2] for s in tox.sections()] + re.split(r",(?![^{]*\})", tox["tox"]["envlist"])
    found = set()
    for name in filter(None, map(str.strip, names)):
        before, factors, after = re.fullmatch(r"(\w*)(?:\{([\w,]+)\})?(.*)", name).groups()  # type: ignore[union-attr]
        found |= {f"{before}{factor}{after}" for factor in (factors or "").split(",")}
    return found


def _jobs(path: Path) -> dict[str, Any]:
    jobs: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return jobs


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a virtual environment and a user's own files in it, which git does not know."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore"):
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(ROOT / "pytest_llmperf", root / "pytest_llmperf", ignore=shutil.ignore_patterns("__pycache__"))
    for command in ("init -q", "add ."):
        subprocess.run(["git", *command.split()], cwd=root, check=True)
    for stray in ("notes.txt", "pytest_llmperf/notes.txt", "venv/lib/thing.py"):
        (root / stray).parent.mkdir(parents=True, exist_ok=True)
        (root / stray).write_text("mine\n", encoding="utf-8")
    (root / "venv" / "python").symlink_to(sys.executable)
    return root


def _build(root: Path, dist: Path) -> list[str]:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(dist)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return check_dist.problems(root, dist)


def test_wheel_and_sdist_hold_the_list_and_no_stray_file(checkout: Path, tmp_path: Path) -> None:
    assert _build(checkout, tmp_path) == []


def test_a_file_that_the_list_forgot_is_told(checkout: Path, tmp_path: Path) -> None:
    (checkout / "pytest_llmperf" / "new.csv").write_text("1\n", encoding="utf-8")
    subprocess.run(["git", "add", "pytest_llmperf/new.csv"], cwd=checkout, check=True)
    told = _build(checkout, tmp_path)
    assert [line.partition(" ")[2] for line in told] == ["lacks pytest_llmperf/new.csv"] * 2


def test_one_list_of_pythons() -> None:
    project = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [c.rpartition(" ")[2] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)]
    matrix = _jobs(ROOT / ".github" / "workflows" / "tests.yml")["tests"]["strategy"]["matrix"]["python-version"]
    assert declared == matrix
    assert project["requires-python"] == f">={declared[0]}"
    assert {f"py{version.replace('.', '')}" for version in declared} <= _environments()


def test_every_tox_environment_that_something_runs_exists() -> None:
    run = {
        place.name: set(re.findall(r"tox -e ([\w-]+)", place.read_text(encoding="utf-8")))
        for place in (ROOT / "README.md", ROOT / ".ci" / "run", *WORKFLOWS)
    }
    assert {name: wanted - _environments() for name, wanted in run.items() if wanted - _environments()} == {}
    assert "test" in run["README.md"] & run["run"] & run["tests.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=[p.name for p in WORKFLOWS])
def test_our_own_workflows(path: Path) -> None:
    """They satisfy GitHub's schema, name the version of every action and use no secret."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    actions = [step["uses"] for job in _jobs(path).values() for step in job["steps"] if "uses" in step]
    assert actions
    assert [action for action in actions if not re.search(r"@v\d+(\.\d+)*$", action)] == []
    assert "secrets." not in path.read_text(encoding="utf-8")


def test_only_the_publishing_job_may_publish() -> None:
    jobs = _jobs(ROOT / ".github" / "workflows" / "release.yml")
    assert {name: job["permissions"] for name, job in jobs.items() if "permissions" in job} == {
        "publish": {"id-token": "write"}
    }
    assert not any("run" in step for step in jobs["publish"]["steps"])  # nothing of ours runs beside the token
    assert jobs["publish"]["needs"] == "build"


@pytest.mark.parametrize("words", [[], ["--help"], ["history", "--help"]])
def test_python_m_is_the_command(words: list[str]) -> None:
    script = Path(sys.executable).with_name("llmperf")
    said = []
    for start in ([sys.executable, "-m", "pytest_llmperf"], [str(script)]):
        done = subprocess.run([*start, *words], capture_output=True, text=True, check=False)
        said.append((done.returncode, done.stdout, done.stderr))
    assert said[0] == said[1]
    assert "usage: llmperf" in said[0][1] + said[0][2]
