"""The command ``llmperf`` as a program: names, completion, pipes, terminals, JSON. What verbs do: their own tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import tomli

import pytest_llmperf
from pytest_llmperf.baselines import store
from pytest_llmperf.baselines.series import Epoch, Series
from pytest_llmperf.cli import main
from pytest_llmperf.records import jsonfile
from pytest_llmperf.records.results import SessionRecord
from tests.baselines.conftest import PRINT, make_launch, path_of
from tests.docs.pages import ROOT
from tests.report import samples

COMMAND = [sys.executable, "-m", "pytest_llmperf"]


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "PYTHONUTF8", "LC_ALL")}
    return subprocess.run([*COMMAND, *words], env={**kept, **environ}, capture_output=True, check=False)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLMPERF_STATE_DIR", str(tmp_path / "state"))
    for name in ("t.py::test_café", "t.py::test_other"):
        launches = tuple(make_launch(n, 80 + n, ttft_ms=30.0) for n in range(2))
        series = Series(name, "sglang", PRINT, (Epoch("first recording", launches),))
        store.write(path_of(tmp_path / "baselines", series), series)
    jsonfile.dump(samples.FULL, tmp_path / "run.json")
    return tmp_path


def test_the_version_is_the_packages_own() -> None:
    """Said by the source itself, whether it is installed or not, and what is built has no other."""
    assert run("--version").stdout.decode().split() == ["pytest-llmperf", pytest_llmperf.__version__]
    declared = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert declared["project"]["dynamic"] == ["version"]
    assert declared["tool"]["hatch"]["version"]["path"] == "pytest_llmperf/__init__.py"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["histroy"], "there is no 'histroy' (did you mean 'history'?)"),
        (["xyz"], "there is no 'xyz'; there are: ab, baselines, compare"),
        (["baselines", "shwo"], "there is no 'shwo' (did you mean 'show'?)"),
        (["inspect", "--engine", "sglan"], "there is no 'sglan' (did you mean 'sglang'?)"),
        (["ab", "--engine", "x", "--model", "y", "--metric", "ttft"], "there is no 'ttft' (did you mean 'ttft_ms'?)"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(words)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_a_metric_or_engine_without_a_history_may_be_misspelt(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["history", "--metric", "decode_toks"]) == 1
    assert "(did you mean 'decode_tok_s'?)" in capsys.readouterr().out
    assert main.main(["history", "--engine", "slang"]) == 1
    assert "(did you mean 'sglang'?)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "offered"),
    [("llmperf base", {"baselines "}), ("llmperf baselines m", {"merge "}), ("llmperf history --e", {"--engine "})],
)
def test_the_shell_completes(line: str, offered: set[str], tmp_path: Path) -> None:
    pytest.importorskip("argcomplete", reason="needs the extra completion")
    answer = tmp_path / "answer"
    asked: Mapping[str, str] = {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "COMP_LINE": line,
        "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
    }  # fmt: skip
    assert run(**asked).returncode == 0
    assert set(answer.read_text().split("\n")) == offered


@pytest.mark.parametrize("words", [["export", "html", "run.json"], ["history", "--json"]])
def test_a_reader_that_leaves_ends_it_quietly(words: list[str], project: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, *words], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.stderr == b""


@pytest.mark.parametrize(
    "words", [["history"], ["baselines", "show"], ["compare", "run.json", "run.json"], ["sweep", "run.json"]], ids=str
)
def test_a_terminal_of_ascii_alone_is_enough(words: list[str], project: Path) -> None:
    done = run(*words, PYTHONIOENCODING="ascii", COLUMNS="120")
    assert done.stderr == b""
    assert done.stdout.isascii()
    assert done.stdout
    said = run("baselines", "show", "caf", PYTHONIOENCODING="ascii")
    assert rb"test_caf\xe9" in said.stdout


def test_a_document_is_utf_8_whatever_the_terminal(project: Path) -> None:
    done = run("export", "markdown", "run.json", PYTHONIOENCODING="ascii")
    assert done.stdout.decode("utf-8").startswith("## LLM performance")
    assert "❌" in done.stdout.decode("utf-8")


@pytest.mark.parametrize(
    ("words", "shape"),
    [
        (["baselines", "show"], [{"path", "test", "engine", "fingerprint", "epochs"}]),
        (["history"], [{"test", "engine", "metric", "unit", "points", "band"}]),
        (["servers", "list"], []),
        (["compare", "run.json", "run.json"], {"rows", "only_a", "only_b"}),
        (["sweep", "run.json"], {"gaps", "sweeps", "curves"}),
    ],
    ids=["show", "history", "servers", "compare", "sweep"],
)
def test_every_verb_that_lists_gives_json(
    words: list[str], shape: list[set[str]] | set[str], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main.main([*words, "--json"])
    found = json.loads(capsys.readouterr().out)
    if isinstance(shape, set):
        assert shape == set(found)
    else:
        assert bool(found) == bool(shape)
        assert all(shape[0] <= set(entry) for entry in found)


def test_every_verb_that_lists_has_json(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["baselines", "unused"], ["inspect"], ["ab"]):
        with pytest.raises(SystemExit):
            main.main([*words, "--help"])
        assert "--json" in capsys.readouterr().out


def test_baselines_are_laid_out_as_a_comparison_is(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole short names in the first column, then engine and metric, at the width of the terminal."""
    for width in ("80", "160"):
        monkeypatch.setenv("COLUMNS", width)
        main.main(["baselines", "show"])
        shown = capsys.readouterr().out
        main.main(["compare", "run.json", "run.json"])
        compared = capsys.readouterr().out
        for out, name in ((shown, "test_other"), (compared, "test_single_stream")):
            heading = [x for x in out.splitlines()[0].split() if x in ("test", "engine", "metric")]
            assert heading == ["test", "engine", "metric"][: len(heading)] or heading == ["test", "metric"]
            assert any(re.match(rf"(. )?{name}(  |$)", line) for line in out.splitlines())


# -- what cannot be compared


def _compared(a: SessionRecord, b: SessionRecord) -> tuple[int, str]:
    jsonfile.dump(a, "a.json")
    jsonfile.dump(b, "b.json")
    done = run("compare", "a.json", "b.json", COLUMNS="200")
    return done.returncode, done.stdout.decode()


BEFORE = replace(samples.PASSED, launches=samples.launches((79.9, 80.0, 80.1), ids=("x",)))
AFTER = replace(samples.PASSED, launches=samples.launches((79.9, 80.0, 80.1), ids=("y",)))
IN_THOUSANDS = replace(AFTER, unit="ktok/s", value=0.08, launches=samples.launches((0.0799, 0.08, 0.0801), ids=("y",)))


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ((IN_THOUSANDS,), "the units differ: tok/s in A, ktok/s in B"),
        ((replace(AFTER, higher_is_better=False),), "higher is better in A, lower in B"),
        ((replace(AFTER, fingerprint={**AFTER.fingerprint, "definitions": "2"}),), "definition differs"),
        ((replace(AFTER, workload={}),), "the workloads differ"),
        ((), "the two runs have no result in common"),
        ((replace(AFTER, test="t.py::test_new"),), "only in A: tests/perf/test_decode.py::test_long_prompt"),
    ],
    ids=["unit", "direction", "definition", "workload", "nothing", "vanished"],
)
def test_what_cannot_be_compared_is_neither_well_nor_worse(
    after: tuple[samples.Result, ...], said: str, project: Path
) -> None:
    code, out = _compared(SessionRecord({}, results=(BEFORE,)), SessionRecord({}, results=after))
    assert code == 2
    assert said in out
    assert not re.search(r"-99\.9%|\d%  .*worse$", out, re.M)


def test_a_loss_is_told_before_what_cannot_be_compared(project: Path) -> None:
    slow = replace(AFTER, launches=samples.launches(*[(49.9, 50.0, 50.1)] * 3, ids=("x1", "x2", "x3")))
    gone = replace(BEFORE, test="t.py::test_gone")
    code, out = _compared(SessionRecord({}, results=(BEFORE, gone)), SessionRecord({}, results=(slow,)))
    assert (code, "worse" in out, "only in A: t.py::test_gone" in out) == (1, True, True)
    assert _compared(SessionRecord({}, results=(BEFORE,)), SessionRecord({}, results=(AFTER, gone)))[0] == 0
