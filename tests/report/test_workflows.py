"""The workflows under examples/github/ are valid, and do what a GPU runner needs."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf import options

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "github"
NAMES = ["nightly-trend.yml", "perf-gate.yml", "update-baselines.yml"]

yaml = pytest.importorskip("yaml", reason="needs PyYAML: pip install pyyaml")


def _read(name: str) -> dict[Any, Any]:
    data: dict[Any, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return data


def _steps(name: str) -> list[dict[str, Any]]:
    return [step for job in _read(name)["jobs"].values() for step in job["steps"]]


def test_all_are_tested() -> None:
    assert sorted(p.name for p in FOLDER.glob("*.yml")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_schema(name: str) -> None:
    """Against the schema of GitHub's workflow files that check-jsonschema ships."""
    program = shutil.which("check-jsonschema")
    if program is None:
        pytest.skip("needs check-jsonschema: pip install check-jsonschema")
    command = [program, "--builtin-schema", "vendor.github-workflows", str(FOLDER / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_actionlint(name: str, tmp_path: Path) -> None:
    program = shutil.which("actionlint")
    if program is None:
        pytest.skip("needs actionlint on PATH")
    config = tmp_path / "actionlint.yaml"
    config.write_text("self-hosted-runner:\n  labels: [gpu]\n", encoding="utf-8")
    command = [program, "-config-file", str(config), str(FOLDER / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_measured_on_the_gpu_runner_alone_and_kept(name: str) -> None:
    workflow = _read(name)
    assert "concurrency" in workflow
    assert workflow["permissions"] == {"contents": "read"}
    measuring = [job for job in workflow["jobs"].values() if "-m pytest" in str(job["steps"])]
    assert len(measuring) == 1
    assert measuring[0]["runs-on"] == ["self-hosted", "gpu"]
    assert "permissions" not in measuring[0]
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())
    kept = [s for s in measuring[0]["steps"] if "upload-artifact" in s.get("uses", "")]
    report = next(s for s in kept if s["with"]["path"] == "perf-report/")
    assert report["if"] == "always()"
    run = next(s["run"] for s in measuring[0]["steps"] if "-m pytest" in s.get("run", ""))
    for option in ("--llmperf-log-dir perf-report/logs", "--llmperf-json perf-report/", "--llmperf-html perf-report/"):
        assert option in run


@pytest.mark.parametrize("name", NAMES)
def test_no_input_is_pasted_into_a_script(name: str) -> None:
    for step in _steps(name):
        assert "${{" not in step.get("run", ""), "an expression in a script is code to whoever controls it"


@pytest.mark.parametrize("name", NAMES)
def test_every_option_exists(name: str) -> None:
    """Options in the workflows are options of the plugin or of pytest itself."""
    known = {flag for spec in options.OPTIONS for flag in spec.flags}
    known |= {"--update-baselines=force", "--junitxml"}
    for step in _steps(name):
        run = step.get("run", "")
        if "-m pytest" in run:
            words = shlex.split(re.sub(r"\$\{REASON:\+(.*?)\}(?=\s)", r"\1", run))
            used = {w for w in words if w.startswith("--")}
            assert used
            assert used <= known


def test_forks_never_reach_the_gate() -> None:
    assert "head.repo.full_name == github.repository" in _read("perf-gate.yml")["jobs"]["gate"]["if"]


def test_baselines_are_proposed_not_pushed() -> None:
    jobs = _read("update-baselines.yml")["jobs"]
    assert "--update-baselines=force" in str(jobs["record"]["steps"])
    assert jobs["propose"]["needs"] == "record"
    assert jobs["propose"]["runs-on"] == "ubuntu-latest"
    assert jobs["propose"]["permissions"] == {"contents": "write", "pull-requests": "write"}
    script = jobs["propose"]["steps"][-1]["run"]
    assert "gh pr create" in script
    assert "git add --all baselines" in script


def test_the_proposing_script_works(tmp_path: Path) -> None:
    """The last step of update-baselines, run for real in a small clone, with a ``gh`` that only notes its words."""
    jobs = _read("update-baselines.yml")["jobs"]
    script = jobs["propose"]["steps"][-1]["run"]
    origin, clone, tools = tmp_path / "origin.git", tmp_path / "clone", tmp_path / "tools"
    tools.mkdir()
    (tools / "gh").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/gh\n', encoding="utf-8")
    (tools / "gh").chmod(0o755)
    environ = {
        "PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path), "BRANCH": "baselines/1-1", "BASE": "main",
        "ENGINE": "sglang", "REASON": 'new kernels "$(touch pwned)"', "RUN_URL": "https://ci.example/1",
        "RUNNER_TEMP": str(tmp_path), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "GIT_CONFIG_NOSYSTEM": "1",
    }  # fmt: skip

    def sh(command: str, cwd: Path) -> None:
        done = subprocess.run(
            ["bash", "-e", "-c", command], cwd=cwd, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    sh(
        f"git init -q --bare -b main {origin}; git clone -q {origin} {clone} 2>/dev/null; cd {clone};"
        "git switch -q -c main; git config user.name t; git config user.email t@example.com;"
        "mkdir baselines; echo 1 > baselines/a.toml;"
        "echo 1 > baselines/gone.toml; git add .; git commit -q -m first; git push -q origin main",
        tmp_path,
    )
    sh(script, clone)
    assert "as they were" in (tmp_path / "summary").read_text()
    assert not (tmp_path / "gh").exists()

    (clone / "baselines" / "a.toml").write_text("2\n")
    (clone / "baselines" / "gone.toml").unlink()
    sh(script, clone)
    words = (tmp_path / "gh").read_text()
    assert "--base\nmain\n--head\nbaselines/1-1\n--title\nUpdate sglang baselines" in words
    body = (tmp_path / "body.md").read_text()
    assert 'Slower results accepted: new kernels "$(touch pwned)"' in body
    assert "baselines/gone.toml" in body
    assert not (clone / "pwned").exists()
    sh(f"git --git-dir {origin} rev-parse --verify -q baselines/1-1 > /dev/null", tmp_path)


@pytest.mark.parametrize("there", ["", "17"], ids=["first", "later"])
def test_the_commenting_script_keeps_one_comment(tmp_path: Path, there: str) -> None:
    """Run for real, with a ``gh`` that notes its words and finds the comment ``there``."""
    jobs = _read("perf-gate.yml")["jobs"]
    assert jobs["comment"]["permissions"] == {"pull-requests": "write"}
    assert jobs["comment"]["runs-on"] == "ubuntu-latest"
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "gh").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/gh\ncase "$*" in *--jq*) echo "{there}";; esac\n')
    (tools / "gh").chmod(0o755)
    (tmp_path / "perf-report").mkdir()
    folded = "<details><summary>All 1000 results on 1 server</summary>\n" + "row\n" * 20_000 + "</details>\n"
    (tmp_path / "perf-report" / "summary.md").write_text(f"## LLM performance\n\n**1 regressed**\n{folded}", "utf-8")
    environ = {
        "PATH": f"{tools}:/usr/bin:/bin", "GITHUB_REPOSITORY": "o/r", "PULL": "5", "ENGINE": "vllm",
        "REPORT": "https://ci.example/report", "RUN_URL": "https://ci.example/1",
    }  # fmt: skip
    script = jobs["comment"]["steps"][-1]["run"]
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    _, wrote = (tmp_path / "gh").read_text().splitlines()
    where = "--method PATCH repos/o/r/issues/comments/17" if there else "repos/o/r/issues/5/comments"
    assert wrote == f"api --silent {where} --field body=@body.md"
    body = (tmp_path / "body.md").read_text()
    assert body == (
        "<!-- llmperf vllm -->\n## LLM performance\n\n**1 regressed**\n\n\n"
        "[report and logs](https://ci.example/report), [run](https://ci.example/1)\n"
    )
