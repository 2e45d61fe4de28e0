"""GitHub's summary and annotations: right, and inert whatever a test or an engine is called."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from pytest_llmperf.records.results import Result, SessionRecord
from pytest_llmperf.report import github
from tests.report import samples
from tests.report.hostile import EVIL, hostile


def _tokens(session: SessionRecord) -> list[Token]:
    """The summary as a GFM parser sees it, inline tokens included. Links written out are read as links too."""
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    out = []
    for token in parser.parse(github.summary(session)):
        out += [token, *(token.children or [])]
    return out


def _cells(session: SessionRecord) -> list[list[str]]:
    """Tables as rows of plain text, character references resolved."""
    rows: list[list[str]] = []
    for token in _tokens(session):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            rows[-1].append("")
        elif rows and rows[-1] and token.type in ("text", "text_special"):
            rows[-1][-1] += token.content
    return rows


def test_the_table_has_every_number() -> None:
    rows = {row[1]: row for row in _cells(samples.FULL) if "regressed" in row or "passed" in row}
    assert rows["test_single_stream"][2:] == [
        "decode_tok_s", "63.61", "tok/s", "[80.87, 84.16]", "82.51", "5", "82.50", "-22.9%", "regressed", "2.1%"
    ]  # fmt: skip
    assert rows["test_load[64]"][-1].startswith("6.7%!")


def test_what_is_not_green_comes_first_and_the_rest_is_folded() -> None:
    out = github.summary(samples.FULL)
    head, _, rest = out.partition("<details><summary>All ")
    first = next(line for line in head.splitlines() if line.startswith("| ❌"))
    assert "error" in first
    assert rest.count("###") == len(samples.FULL.servers)
    assert rest.strip().endswith("</details>")
    green = github.summary(SessionRecord({}, (samples.SGLANG,), (samples.PASSED,)))
    assert "| ✅" not in green.partition("<details>")[0]


def test_a_regression_is_explained() -> None:
    out = github.summary(samples.FULL)
    assert "regressed: tests/perf/test_decode.py::test_single_stream" in out
    assert "-22.9% against the baseline's 82.51 tok/s over 5 launches" in out
    assert "| NCCL_PROTO | - | LL |" in re.sub("</?code>", "", out)
    assert "Reproduce: <code>pytest tests/perf/test_decode.py::test_single_stream --engine sglang</code>" in out
    assert "- **unused**: baselines/test_old_name" in out
    assert "❌ vllm Kimi-K2.5 tp=8 did not start (31.2 s): out of GPU memory" in out


def test_markup_of_a_stranger_stays_text() -> None:
    """The hostile session parses into the same structure as the plain one: no link, tag, code or cell was added."""

    def shape(session: SessionRecord) -> list[str]:
        kinds = (t.content if t.type.startswith("html") else t.type for t in _tokens(session))
        return [k for k in kinds if not k.startswith(("text", "softbreak", "<details>"))]

    evil = hostile()
    benign = SessionRecord.from_json(_replaced(evil.to_json()))
    assert shape(evil) == shape(benign)
    assert not {"link_open", "image", "em_open", "code_inline", "fence", "s_open"} & set(shape(evil))
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(github.summary(evil))
    ours = "h2 h3 h4 p strong code table thead tbody tr th td details summary ul li"
    assert set(re.findall(r"<(\w+)", rendered)) <= set(ours.split())


def _replaced(value: object) -> object:
    if isinstance(value, str):
        return value.replace(EVIL, "nice")
    if isinstance(value, dict):
        return {str(_replaced(k)): _replaced(v) for k, v in value.items()}
    return [_replaced(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "text", ["- item", "1. item", "# head", "===", "+ item", "> quote", "```", "    code", "* * *"]
)
def test_a_line_of_a_stranger_opens_no_block(text: str) -> None:
    out = MarkdownIt().render(f"- {github.block(text)}\n\n{github.block(text)}\n")
    assert set(re.findall(r"<(\w+)", out)) <= {"ul", "li", "p"}


@pytest.mark.parametrize("one", [samples.PASSED, samples.REGRESSED], ids=["passed", "regressed"])
def test_too_many_results_for_a_summary(one: Result) -> None:
    many = tuple(replace(one, nodeid=f"t.py::test_{i}") for i in range(github.MOST_ROWS + 5))
    out = github.summary(SessionRecord({}, (samples.SGLANG,), many))
    assert "... and 5 more" in out
    assert len(out.encode()) < 1024 * 1024


def _read(command: str) -> tuple[str, dict[str, str], str]:
    """A workflow command as the runner reads it: name, properties, data."""
    assert command.startswith("::")
    assert "\n" not in command
    assert "\r" not in command
    head, _, data = command[2:].partition("::")
    name, _, inner = head.partition(" ")
    properties = dict(p.split("=", 1) for p in inner.split(","))
    for escaped, plain in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        properties = {k: v.replace(escaped, plain) for k, v in properties.items()}
        data = data.replace(escaped, plain) if escaped not in ("%3A", "%2C") else data
    return name, properties, data


def test_annotations() -> None:
    read = [_read(a) for a in github.annotations(samples.FULL)]
    assert [name for name, _, _ in read] == ["error"] * 6 + ["warning", "notice"]
    assert [p["title"].removeprefix("llmperf: ") for _, p, _ in read[:6]] == [
        "error", "invalid", "regressed -22.9%", "below target", "not comparable", "no baseline"
    ]  # fmt: skip
    _, properties, data = read[2]
    assert properties == {"file": "tests/perf/test_decode.py", "line": "14", "title": "llmperf: regressed -22.9%"}
    assert data.startswith("tests/perf/test_decode.py::test_single_stream (sglang, decode_tok_s): 63.61 tok/s over 3")
    assert "-22.9% against" in data
    assert "\nengine version: 0.5.16 -> 0.5.17" in data
    assert github.annotations(samples.GREEN) == []


@pytest.mark.parametrize(
    ("git", "workspace", "rootdir", "folder"),
    [
        ("repo", "repo", "repo", "."),
        ("repo", "repo", "repo/serving/perf", "serving/perf"),
        ("work/repo", "work", "work/repo/perf", "perf"),  # checked out below the workspace
        (None, "repo", "repo/perf", "perf"),  # fetched without git
        (None, "repo", "elsewhere", "."),
        (None, None, "repo/perf", "."),
    ],
)
def test_files_are_named_from_the_top_of_the_repository(
    git: str | None, workspace: str | None, rootdir: str, folder: str, tmp_path: Path
) -> None:
    for name in filter(None, (git and f"{git}/.git", workspace, rootdir)):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    environ = {"GITHUB_WORKSPACE": str(tmp_path / workspace)} if workspace else {}
    assert github.folder_in_checkout(tmp_path / rootdir, environ) == folder
    _, properties, _ = _read(github.annotations(samples.FULL, folder)[0])
    assert properties["file"] == f"{folder}/tests/perf/test_decode.py".removeprefix("./")


def test_more_annotations_than_github_shows() -> None:
    many = tuple(replace(samples.REGRESSED, nodeid=f"t.py::test_{i}") for i in range(12))
    out = github.annotations(SessionRecord({}, (), (*many, samples.INVALID, samples.INCONCLUSIVE)))
    read = [_read(a) for a in out]
    assert [name for name, _, _ in read] == ["error"] * 10 + ["warning"]
    assert read[0][1]["title"] == "llmperf: invalid"
    assert read[9][2] == "4 more in the job's summary"


def test_a_first_recording_is_not_annotated() -> None:
    first = replace(samples.NO_BASELINE, launches=(replace(samples.NO_BASELINE.launches[0], role="record"),))
    session = SessionRecord({}, (), (first,))
    assert github.annotations(session) == []
    assert "1 recorded" in github.summary(session)


def test_a_test_without_a_line_is_annotated_on_its_file() -> None:
    lone = replace(samples.REGRESSED, location=None)
    _, properties, _ = _read(github.annotations(SessionRecord({}, (), (lone,)))[0])
    assert properties["file"] == "tests/perf/test_decode.py"
    assert "line" not in properties


def test_annotations_of_a_stranger_are_one_command_each() -> None:
    commands = github.annotations(hostile())
    assert len(commands) == 8
    for command in commands:
        name, properties, data = _read(command)
        assert name in ("error", "warning", "notice")
        assert set(properties) == {"file", "line", "title"}
        assert properties["line"] == "3"
        assert "pwned" in properties["file"]
        assert data.isprintable() or set(filter(lambda c: not c.isprintable(), data)) == {"\n"}
        assert "##[" not in command
