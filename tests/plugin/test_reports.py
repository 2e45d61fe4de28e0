"""What a session prints and writes, under each of pytest's own switches."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest

from tests.conftest import StartFake
from tests.plugin.conftest import SUITE, Project

ESCAPE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")
TARGETED = SUITE.replace("@perf(", "@perf(target=1, ")


def section(result: pytest.RunResult) -> str:
    """From our heading on."""
    out = str(result.stdout)
    return out[out.index("= llmperf =") :]


def test_a_gated_run(recorded: Project) -> None:
    result = recorded.run_here()
    result.stdout.fnmatch_lines([
        "llmperf: gate; sglang; baselines in */baselines",
        "llmperf: 1 test on 1 server, 1 gated metric",
        "*= llmperf =*",
        "*test*tok/s*band*baseline*k*change*verdict*MDE*",
        "*sglang fake-model*1 launch, start-up *",
        "*test_decode *[*,*]*250.0*3*passed*%!",
        "llmperf: 1 passed, 1 of them weak; 1 metric gated at alpha 1.0% each (1.0% for the session); 1*",
    ])  # fmt: skip
    session = recorded.report["session"]
    assert session["command"].startswith("pytest --llmperf-json out.json --engine sglang")
    assert {"python", "pytest", "pytest-llmperf"} <= set(session["versions"])
    assert recorded.result["location"] == "test_perf.py:8"
    assert "\x1b" not in str(result.stdout)


def test_verbosity(recorded: Project) -> None:
    quiet = recorded.run_here("-q")
    assert "llmperf: gate" not in str(quiet.stdout)
    assert section(quiet).splitlines()[1].startswith("llmperf: 1 passed, 1 of them weak; 1 metric gated")
    verbose = recorded.run_here("-v", "--no-header")
    assert "llmperf: gate" not in str(verbose.stdout)
    verbose.stdout.fnmatch_lines(["*effective *attention_backend=fa3*", "*repetitions*", "*reproduce: pytest *"])


def test_a_failure_is_told_once_in_full(recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pytest prints it; by us where it does not."""
    monkeypatch.setenv("FAKE_ITL_MS", "8")
    said = "beyond its band"
    result = recorded.run_here()
    result.stdout.fnmatch_lines(["*= FAILURES =*", "*- llmperf -*", f"*{said}*", "  band *", "*= llmperf =*"])
    ours = section(result).split("short test summary info")[0]
    assert re.search(r"^✗ test_decode .* regressed", ours, re.M)
    assert said not in ours
    assert said in section(recorded.run_here("--tb=no")).split("short test summary info")[0]


def test_a_failed_start_is_told_once_in_full(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CRASH", "oom")
    project.suite(SUITE + SUITE.partition("\n\n\n")[2].replace("test_decode", "test_other"))
    result = project.run_here()
    result.assert_outcomes(errors=2)
    out = str(result.stdout)
    assert out.count("last lines of its log:") == 1
    assert out.count("full log:") == 3  # with each test, and with the server in our table
    assert section(result).split("short test summary info")[0].count("out of GPU memory") == 1


def test_colours_are_pytests_to_choose(recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" in section(recorded.run_here("--color=yes"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in section(recorded.run_here())


def test_without_a_terminal_the_files_are_written(recorded: Project) -> None:
    result = recorded.run_here("-p", "no:terminal", "--llmperf-html", "deep/report.html", "--junitxml", "junit.xml")
    assert result.ret == 0
    assert str(result.stdout).strip() == ""
    assert recorded.result["verdict"] == "passed"
    page = (recorded.path / "deep" / "report.html").read_text()
    assert "test_decode" in page
    assert "Application startup complete" in page  # the launch's log
    [case] = ElementTree.parse(recorded.path / "junit.xml").iter("testcase")
    found = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert found["llmperf.decode_tok_s.verdict"] == "passed"
    assert float(found["llmperf.decode_tok_s.value"] or 0) == recorded.result["value"]
    assert found["llmperf.decode_tok_s.baseline_launches"] == "3"


def test_waits_are_told_over_the_launches_that_decide(recorded: Project) -> None:
    """24 tokens a request: 23 gaps of 4 ms in each of three."""
    recorded.run_here("--llmperf-html=page.html", "--launches", "2")
    ttft, itl = recorded.result["latencies"]
    assert (ttft["metric"], ttft["count"]) == ("ttft_ms", 2 * 3)
    assert (itl["metric"], itl["count"], sum(itl["counts"])) == ("itl_ms", 2 * 3 * 23, 2 * 3 * 23)
    assert itl["percentiles"]["p50"] == pytest.approx(4.0, rel=0.01)
    assert "ITL, by token" in (recorded.path / "page.html").read_text()


def test_the_page_tells_what_changed_since_the_last_run(recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file may be the one that this run replaces; the first run has none yet."""
    args = ("--llmperf-html=page.html", "--llmperf-previous=out.json")
    recorded.run_here(*args)
    assert "no such file, so this counts as a first run" in recorded.messages
    assert "since last run" not in (recorded.path / "page.html").read_text()
    before = (recorded.path / "out.json").read_text()
    (recorded.path / "last.json").write_text(before)
    monkeypatch.setenv("FAKE_ITL_MS", "8")
    recorded.run_here("--llmperf-html=page.html", "--llmperf-previous=last.json")
    page = (recorded.path / "page.html").read_text()
    assert re.search(r"-50\.\d%, was passed", page)
    (recorded.path / "last.json").write_text("{}")
    broken = recorded.run_here("--llmperf-html=page.html", "--llmperf-previous=last.json")
    assert broken.ret == pytest.ExitCode.USAGE_ERROR
    assert "last.json is not a report of --llmperf-json" in str(broken.stderr)


def test_junit_and_progress_under_xdist(recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """In CI each worker tells what it is at, on standard error."""
    monkeypatch.setenv("CI", "1")
    result = recorded.run("-n", "1", "--junitxml", "junit.xml")
    assert result.ret == 0
    [case] = ElementTree.parse(recorded.path / "junit.xml").iter("testcase")
    names = [p.get("name") for p in case.iter("property")]
    assert names.count("llmperf.decode_tok_s.verdict") == 1
    assert re.search(r"llmperf: \[gw0\] sglang fake-model: ", str(result.stderr)), result.errlines


def test_on_github(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = project.path / "summary.md"
    summary.write_text("what an earlier step said\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.path.parent))
    result = project.run_here()
    result.stdout.fnmatch_lines([f"::error file={project.path.name}/test_perf.py,line=8,title=llmperf*::*test_decode*"])
    text = summary.read_text()
    assert text.startswith("what an earlier step said\n## LLM performance\n")
    assert "no baseline" in text


def test_a_report_that_cannot_be_written_is_told_and_is_no_success(
    recorded: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder goes while the tests run. Every other one is written nevertheless."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(recorded.path / "none" / "summary.md"))
    (recorded.path / "none").mkdir()
    recorded.suite(SUITE + '    import pathlib; pathlib.Path("none").rmdir(); pathlib.Path("file").touch()\n')
    result = recorded.run_here("--llmperf-html", "file/report.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes(passed=1)
    assert re.search(r"error: cannot write the report .*/file/report.html: ", recorded.messages)
    assert re.search(r"error: GITHUB_STEP_SUMMARY=.*/none/summary.md cannot be written: ", recorded.messages)
    assert "Traceback" not in str(result.stdout) + str(result.stderr)
    assert recorded.result["verdict"] == "passed"


def test_a_wrong_run_leaves_the_last_report_alone(recorded: Project) -> None:
    (recorded.path / "out2.json").write_text("the last one")
    for args in (("--collect-only",), ("--launches", "0"), ("-m", "perf", "no_such_file.py")):
        recorded.run_here("--llmperf-json", "out2.json", *args)
        assert (recorded.path / "out2.json").read_text() == "the last one"


def test_logins_in_urls_are_masked(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMPERF_API_KEY", "sk-very-secret")
    result = project.run_here("--llmperf-url", "http://someone:hunter2@127.0.0.1:9")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    written = str(result.stdout) + str(result.stderr)
    assert "--llmperf-url must not hold a password (http://***@127.0.0.1)" in written
    assert "hunter2" not in written
    assert "sk-very-secret" not in written


def screen(output: str) -> list[str]:
    """The lines that a terminal shows after ``output``: returns, line feeds, cursor moves, erasing."""
    lines, row, column = [""], 0, 0
    for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)", output):
        move = ESCAPE.fullmatch(part)
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif move and move[2] == "A":
            row -= int(move[1])
        elif move and move[2] == "C":
            column += int(move[1])
        elif move and move[2] == "K":
            lines[row] = lines[row][:column]
        elif not move:
            lines[row] = lines[row].ljust(column)[:column] + part + lines[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]


def on_a_terminal(project: Project, *args: str) -> str:
    """What pytest writes to a terminal of 100 columns."""
    main, worker = pty.openpty()
    process = project.base.pytester.popen(
        ["python", "-m", "pytest", "--engine", "sglang", *args], stdin=worker, stdout=worker, stderr=worker
    )
    os.close(worker)

    def read() -> Iterator[bytes]:
        with contextlib.suppress(OSError):  # the other side is closed
            while block := os.read(main, 65536):
                yield block

    out = b"".join(read()).decode()
    assert process.wait(60) == 0, out
    os.close(main)
    return out


@pytest.mark.parametrize("args", [(), ("-v",)], ids=["", "-v"])
def test_the_live_line_leaves_what_pytest_prints_as_it_was(
    project: Project, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    monkeypatch.setenv("FAKE_START_S", "1.5")
    monkeypatch.setenv("TERM", "xterm")
    project.suite(TARGETED + "\n\ndef test_plain(): pass\n")
    out = on_a_terminal(project, *args)
    assert "llmperf: sglang fake-model: " in out
    assert "llmperf: test_decode[sglang]: warm-up 1/" in out
    seen = [line for line in screen(out) if line.startswith(("test_perf.py", "llmperf: sglang", "llmperf: test_"))]
    if args:
        assert [line.split()[:2] for line in seen] == [
            ["test_perf.py::test_decode[sglang]", "PASSED"],
            ["test_perf.py::test_plain", "PASSED"],
        ]
    else:
        [line] = seen
        assert line.split() == ["test_perf.py", "..", "[100%]"]


def test_plain_lines_of_progress_in_ci(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    project.suite(TARGETED)
    lines = [
        "test_perf.py *",
        "llmperf: sglang fake-model: *",
        "llmperf: test_decode[[]sglang]: warm-up 1/*",
        ".*[[]100%]",
    ]
    project.run().stdout.fnmatch_lines(lines)


def test_help_texts(project: Project) -> None:
    help_ = project.run_here("--help")
    text = " ".join(str(help_.stdout).split()).replace("--engine=NAME, ", "--engine, ")  # as from Python 3.13 on
    for said in (
        "performance of LLM servers:",
        "--engine, --llmperf-engine=NAME Engine to run the performance tests on; repeat for several",
        "--update-baselines=force, --llmperf-update-baselines=force The same where CI is set",
        "--llmperf-confirm=N Fresh launches that confirm a suspect before it fails (0: one look decides)",
        "llmperf_level (string):",
        "llmperf_ignore_guards (args):",
    ):
        assert said in text
    ours = re.findall(
        r"\n  (--(?:llmperf|engine|launches|baselines|keep-servers|accept|update)\S.*)", str(help_.stdout)
    )
    assert len(ours) >= 22
    markers = project.run_here("--markers")
    markers.stdout.fnmatch_lines([
        "@pytest.mark.perf(target=None, metric='decode_tok_s', *): gate this test's metrics against its baseline*",
        "@pytest.mark.llm_server(?profiles, engine=None, model=..., tp=1, *): the server this test needs; *",
        "@pytest.mark.llm_servers(name={...}, ...): several servers at once, *",
    ])  # fmt: skip
    fixtures = project.run_here("--fixtures", "-v")
    fixtures.stdout.fnmatch_lines([
        "engine -- *", "*Name of the engine this test runs on*",
        "llm_server -- *", "*The server that this test's ``llm_server`` markers declare, launched once*",
        "llm_servers -- *", "*Several servers at once*",
        "baseline -- *", "*The accepted launches of this test on this hardware.",
    ])  # fmt: skip


def test_other_plugins_add_engines_and_fields(project: Project) -> None:
    """The two hooks: an engine of one's own, and a field of the fingerprint. What they give is checked."""
    command = json.dumps([*project.base.command, "sglang"])
    project.config(f"[tool.llmperf.engines.mine]\ncommand = {command}\n")
    project.suite(
        """
from pytest_llmperf.engines.sglang import SGLang

class Mine(SGLang):
    name = "mine"

def pytest_llmperf_engines(config):
    return [Mine()]

def pytest_llmperf_fingerprint(config, server):
    return {"colour": "blue"}
""",
        "conftest.py",
    )
    project.suite(TARGETED)
    result = project.run_here(engine="mine")
    assert result.ret == 0, result.outlines
    assert project.result["engine"] == "mine"
    assert project.result["fingerprint"]["colour"] == "blue"
    project.suite("def pytest_llmperf_engines(config):\n    return ['mine']\n", "conftest.py")
    result = project.run_here()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: the hook pytest_llmperf_engines must give Engine instances, not 'mine'"])


def test_attached_to_a_server_that_is_up(project: Project, fake_server: StartFake) -> None:
    """Measured where it is, judged in one look, and left alone."""
    server = fake_server("sglang", env={"FAKE_ITL_MS": 4})
    project.suite(TARGETED)
    result = project.run_here("--llmperf-url", server.root_url)
    assert result.ret == 0, result.outlines
    result.stdout.fnmatch_lines([f"llmperf: gate; {server.root_url}; *"])
    assert project.launches == 0
    assert server.process.poll() is None
