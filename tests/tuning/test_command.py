"""``llmperf ab`` on real stand-in servers with planted speeds."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from pytest_llmperf.cli.main import main
from tests.fake_engine import truth


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned_times: None) -> Path:
    """Fast, exact launches; what was launched is written down."""
    log = tmp_path / "launches.jsonl"
    for name, value in {
        "FAKE_ITL_MS": "4",
        "FAKE_TTFT_MS": "3",
        "FAKE_LIFE_S": "120",
        "FAKE_LAUNCH_LOG": str(log),
        "LLMPERF_STATE_DIR": str(tmp_path / "state"),
    }.items():
        monkeypatch.setenv(name, value)
    return log


def words(command: list[str], *more: str, b: str = "") -> list[str]:
    side_b = shlex.join(["env", *shlex.split(b), *command, "sglang"] if b else [*command, "sglang"])
    return [
        *("ab", "--engine", "sglang", "--model", "m", "--a", shlex.join([*command, "sglang"]), "--b", side_b),
        *("--output-tokens", "24", "--prompt-tokens", "16", "--repetitions", "2", *more),
    ]


def test_a_planted_loss_is_found_early_and_fails(
    quick: Path, fake_engine_command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "ab.json"
    code = main(words(fake_engine_command, "--budget", "4", "--json", str(report), b="FAKE_ITL_MS=8"))
    shown = capsys.readouterr()
    assert code == 1, shown
    found = re.search(r"B is worse: B / A = (0\.\d+) \[(.+), (.+)\] .* (\d) launches of each", shown.out)
    assert found, shown.out
    assert 0.4 < float(found[1]) < 0.65  # planted: 0.5
    assert found[4] == "2"
    assert len(truth.read(quick)) == 4  # ABBA, then it was clear
    (gap,) = json.loads(report.read_text())["gaps"]
    assert (gap["engine"], gap["reference"], gap["launches"]) == ("sglang B", "sglang A", [2, 2])
    assert main(["sweep", str(report)]) == 0
    assert "sglang B" in capsys.readouterr().out


def test_launches_alternate(quick: Path, fake_engine_command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(words(fake_engine_command, "--budget", "2", "--b-set", "sglang__stream_interval=1", b="FAKE_ITL_MS=8"))
    sides = ["--stream-interval" in launch["argv"] for launch in truth.read(quick)]
    assert sides == [False, True, True, False]
    assert capsys.readouterr().err.count("of at most 2") == 4


def test_the_launch_that_compiled_is_spent(
    quick: Path,
    fake_engine_command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of both sides, which share a cache, the first one's first launch."""
    monkeypatch.setenv("FAKE_JIT_CACHE", str(tmp_path / ".triton"))
    main(words(fake_engine_command, "--budget", "2", b="FAKE_ITL_MS=8"))
    said = capsys.readouterr().err
    assert re.findall(r"(\w): launch \S+ compiled, not compared: another in its place", said) == ["A"]
    assert said.count("of at most 2") == 4
    assert len(truth.read(quick)) == 5


def test_a_side_that_does_not_start_is_named_and_nothing_is_tried_twice(
    quick: Path, fake_engine_command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    args = words(fake_engine_command, "--budget", "3")
    args[args.index("--b") + 1] = "/no/such/python -m sglang.launch_server"
    assert main(args) == 1
    assert "broken off: B: " in capsys.readouterr().out
    assert len(truth.read(quick)) == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--budget", "0"], "must be at least 1"),
        (["--min-effect", "2"], "must lie between 0 and 1"),
        (["--set", "oops"], "write KEY=VALUE"),
        (["--set", "no_such_key=1"], "llm_server has no 'no_such_key'"),
        (["--set", "nccl=no-such"], "no preset 'no-such'"),
        (["--set", "nccl__porto=LL"], "porto"),
        (["--a", "'unbalanced"], "No closing quotation"),
        (["--b", ""], "name the command"),
    ],
)
def test_wrong_arguments_are_one_message(
    quick: Path, fake_engine_command: list[str], more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(fake_engine_command, *more)) == 4
    assert message.lower() in capsys.readouterr().err.lower()
    assert not quick.exists()
