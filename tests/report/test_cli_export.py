"""``llmperf export`` on a stored report."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from pytest_llmperf.cli import cmd_export
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.records import jsonfile
from pytest_llmperf.report import export, github
from pytest_llmperf.report.formats import FORMATS
from tests.report import samples


def _run(*words: object) -> int:
    parser = argparse.ArgumentParser()
    cmd_export.add(parser)
    return cmd_export.run(parser.parse_args([str(w) for w in words]))


@pytest.fixture
def report(tmp_path: Path) -> Path:
    jsonfile.dump(samples.FULL, tmp_path / "report.json")
    return tmp_path / "report.json"


def test_every_format_writes_a_file(report: Path, tmp_path: Path) -> None:
    for name in FORMATS:
        assert _run(name, report, "--output", tmp_path / "out" / name) == 0
    out = tmp_path / "out"
    assert json.loads((out / "bencher").read_text()) == export.bencher(samples.FULL)
    both = export.github_action_benchmark(samples.FULL)
    assert {k: json.loads((out / k).read_text()) for k in both} == both
    assert (out / "markdown").read_text() == github.summary(samples.FULL)
    assert (out / "html").read_text().startswith("<!doctype html>")


def test_html_tells_what_changed_since_the_last_run(report: Path, tmp_path: Path) -> None:
    jsonfile.dump(samples.BEFORE, tmp_path / "last.json")
    assert _run("html", report, "--previous", tmp_path / "last.json", "--output", tmp_path / "page.html") == 0
    assert "-22.8%, was passed" in (tmp_path / "page.html").read_text()
    with pytest.raises(ConfigError, match="--previous tells html what changed since; bencher has no place for it"):
        _run("bencher", report, "--previous", tmp_path / "last.json")


def test_standard_output_is_the_default(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("bencher", report) == 0
    assert json.loads(capsys.readouterr().out) == export.bencher(samples.FULL)


def test_what_is_wrong_is_said(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no report format 'yaml'; there are: bencher, customBiggerIsBetter"):
        _run("yaml", report)
    with pytest.raises(ConfigError, match="cannot read the report"):
        _run("bencher", tmp_path / "none.json")
