"""Verdicts, as the test that asked for them shows them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_llmperf.baselines import store
from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.series import Epoch
from tests.plugin.conftest import HOST_GUARDS, SETTINGS, SUITE, USUAL, Project

HEAD = (
    "import pytest\nfrom pytest_llmperf import perf\npytestmark = pytest.mark.llm_server(model='fake-model')\n"
    "def run(server, tokens=8):\n    return server.stream(output_tokens=tokens, prompt_tokens=16)\n"
)


def test_no_baseline_fails_and_says_how_to_record(project: Project) -> None:
    result = project.run_here()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([
        "E * decode_tok_s no baseline: no baseline of this test: record one here with --update-baselines *",
        "*1 no baseline*",
    ])  # fmt: skip
    assert project.result["verdict"] == "no_baseline"
    assert project.baselines == {}


def test_the_command_line_goes_before_the_marker(recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SLOWDOWN", "0.7")
    recorded.suite(SUITE.replace("@perf(", "@perf(min_effect=0.6, "))
    assert recorded.run_here().ret == pytest.ExitCode.OK
    assert recorded.result["verdict"] == "passed"
    assert recorded.run_here("--llmperf-min-effect", "0.1").ret == pytest.ExitCode.TESTS_FAILED
    assert recorded.result["verdict"] == "regressed"


def test_a_loss_by_what_nobody_declared_is_named(recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag in the command, a variable of the engine's table, one of the shell: no part of the declared server."""
    command = [*recorded.base.command, "sglang"]
    (recorded.path / "pyproject.toml").write_text(
        "[tool.llmperf.engines.sglang]\n"
        f"command = {json.dumps([*command, '--cuda-graph-max-bs', '4'])}\nenv = {{ FAKE_SLOWDOWN = '0.7' }}\n"
        + SETTINGS
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert recorded.run_here().ret == pytest.ExitCode.TESTS_FAILED
    assert recorded.result["verdict"] == "regressed"
    differs = {d["name"]: (d["baseline"], d["now"]) for d in recorded.result["differences"]}
    assert differs == {
        "command --cuda-graph-max-bs": ("-", "4"),
        "FAKE_SLOWDOWN": ("-", "0.7"),
        "OMP_NUM_THREADS": ("-", "1"),
    }


def test_measuring_longer_orphans_no_baseline(recorded: Project) -> None:
    recorded.suite(
        SUITE.replace("repetitions=3, max_repetitions=3", "repetitions=4, max_repetitions=6, precision=0.01")
    )
    assert recorded.run_here().ret == pytest.ExitCode.OK
    assert recorded.result["verdict"] == "passed"


def test_a_target_alone(project: Project) -> None:
    """It is what a test without a baseline is held to, in the direction of its metric."""
    project.suite(
        HEAD
        + """
@perf(target=100, repetitions=2)
def test_met(llm_server, baseline):
    assert run(llm_server).decode_tok_s in baseline

@perf(target=1000, repetitions=2)
def test_missed(llm_server, baseline):
    assert run(llm_server).decode_tok_s in baseline

@perf(metric=("decode_tok_s", "ttft_ms"), target={"ttft_ms": 0.5, "decode_tok_s": 1}, repetitions=2)
def test_late(llm_server, baseline):
    baseline.check(run(llm_server))
"""
    )
    result = project.run_here()
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines([
        "E * decode_tok_s below target: target 1000: *credibly short*",
        "  target    1000 tok/s",
        "E * ttft_ms below target: target 0.5: *credibly short*",
    ])  # fmt: skip
    found = [(r["nodeid"].partition("::")[2], r["metric"], r["verdict"]) for r in project.results]
    assert found == [
        ("test_met[sglang]", "decode_tok_s", "passed"),
        ("test_missed[sglang]", "decode_tok_s", "below_target"),
        ("test_late[sglang]", "decode_tok_s", "passed"),
        ("test_late[sglang]", "ttft_ms", "below_target"),
    ]
    assert project.launches == 1  # a target needs no confirmation


def test_a_target_beside_a_baseline(recorded: Project) -> None:
    recorded.suite(SUITE.replace("@perf(", "@perf(target=400, "))
    recorded.run_here().assert_outcomes(failed=1)
    assert recorded.result["baseline"]["launches"] == 3
    assert recorded.result["target"] == 400


def test_what_looks_faster_passes_unconfirmed_and_says_how_to_keep_it(
    recorded: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SLOWDOWN", "1.5")
    before = recorded.baselines
    result = recorded.run_here()
    assert result.ret == 0, result.outlines
    result.stdout.fnmatch_lines(
        ["*test_decode *passed*", "*looks faster, unconfirmed: *test_decode*--update-baselines*"]
    )
    assert recorded.result["verdict"] == "passed"
    assert recorded.launches == 1
    assert recorded.baselines == before


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("EOS_AT", "5", "*5 output tokens instead of 24"),
        ("ALWAYS_CACHED", "0.9", "*cache*"),
        ("HTTP_ERROR", "500@5", "*500*"),
    ],
)
def test_an_invalid_measurement_is_never_stored(
    recorded: Project, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(f"FAKE_{variable}", value)
    before = recorded.baselines
    result = recorded.run_here("--update-baselines")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["the measurement is invalid, so it has no decode_tok_s:", said, "*1 invalid*"])
    assert "pytest_llmperf/" not in str(result.stdout)
    assert recorded.result["verdict"] == "invalid"
    assert recorded.baselines == before


def test_invalid_on_a_later_launch(recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch that was sound does not cover for it."""
    monkeypatch.setenv("FAKE_EOS_AT", "")  # for the first launch; the test sets it for the others
    recorded.suite(SUITE + "    import os\n    os.environ['FAKE_EOS_AT'] = '5'\n")
    result = recorded.run_here("--launches", "3")
    result.assert_outcomes(failed=1)
    assert recorded.launches == 2
    assert recorded.result["verdict"] == "invalid"
    assert "5 output tokens instead of 24" in recorded.result["reasons"][-1]


@pytest.mark.parametrize("then", ["skip", "fail"])
def test_inconclusive(recorded: Project, then: str) -> None:
    """Something outside the server was in the way: skipped with a loud line, or failed, and in no case stored."""
    stranger = "llm_server.client.completions.create(model='fake-model', prompt='x', max_tokens=2000, stream=True)"
    recorded.suite(SUITE.replace("    run = ", f"    stranger = {stranger}\n    run = "))
    before = recorded.baselines
    result = recorded.run_here("--llmperf-inconclusive", then, "--update-baselines", "-rs")
    if then == "skip":
        assert result.ret == 0
        result.assert_outcomes(skipped=1)
        result.stdout.fnmatch_lines(["SKIPPED *test_perf.py:*: inconclusive: decode_tok_s: other traffic: *"])
    else:
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["E *decode_tok_s inconclusive: other traffic: *"])
    result.stdout.fnmatch_lines(["*! INCONCLUSIVE: 1 result not judged*test_decode*"])
    assert recorded.result["verdict"] == "inconclusive"
    assert recorded.baselines == before
    assert "refused: test_perf.py::test_decode [sglang]: not recorded: decode_tok_s inconclusive" in recorded.messages


def test_what_the_engine_does_to_itself_is_no_excuse(recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PREEMPTIONS", "2@5")
    monkeypatch.setenv("FAKE_ITL_MS", "8")
    result = recorded.run_here()
    result.assert_outcomes(failed=1)
    assert recorded.result["verdict"] == "regressed"
    result.stdout.fnmatch_lines(["*preemptions*2 requests were preempted or retracted*"])


def test_an_ignored_guard_is_shown_and_does_not_count(recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PREEMPTIONS", "2@5")
    ignored = (*HOST_GUARDS, "preemptions")  # the command line's replace the file's
    result = recorded.run_here(*(f"--llmperf-ignore-guard={guard}" for guard in ignored))
    result.assert_outcomes(passed=1)
    [guard] = [g for g in recorded.result["guards"] if g["name"] == "preemptions"]
    assert (guard["tripped"], guard["ignored"], guard["value"]) == (False, True, 2)


def test_what_a_session_ignores_is_said_everywhere(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launches that it records say so too, in a file that outlives the session."""
    said = ", ".join(sorted(HOST_GUARDS))  # as the project is configured
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "summary.md"))
    result = project.run_here("--update-baselines", "-q", "--llmperf-html", "out.html")
    assert f"guards ignored: {said}" in " ".join(str(result.stdout).split())
    assert project.report["session"]["ignored_guards"] == sorted(HOST_GUARDS)
    assert f"guards ignored: {said}" in (project.path / "summary.md").read_text()
    assert (
        f'<span class="badge tone-inconclusive">guards ignored: {said}</span>'
        in (project.path / "out.html").read_text()
    )
    [toml] = project.baselines.values()
    assert f'"guards ignored" = "{said}"' in toml


def test_a_session_that_ignores_nothing_says_nothing(project: Project) -> None:
    project.base.write_config("[tool.llmperf]\nmin_effect = 0.15\n")
    result = project.run_here("--llmperf-html", "out.html")
    assert "guards ignored" not in str(result.stdout) + (project.path / "out.html").read_text()
    assert project.report["session"]["ignored_guards"] == []
    assert "guards ignored" not in project.result["provenance"]


def test_tests_that_would_be_green_for_nothing(project: Project) -> None:
    project.suite(
        HEAD
        + """
@perf
def test_judges_nothing(llm_server, baseline):
    assert run(llm_server).decode_tok_s > 0

@perf(metric=("decode_tok_s", "ttft_ms"), target={"decode_tok_s": 1})
def test_judges_half(llm_server, baseline):
    assert run(llm_server).decode_tok_s in baseline

@perf(target=1)
def test_undeclared(llm_server, baseline):
    assert run(llm_server).ttft_ms in baseline

@perf(target=1)
def test_plain_float(llm_server, baseline):
    assert 80.0 in baseline

@perf(target=1)
def test_two_workloads(llm_server, baseline):
    assert run(llm_server, 8).decode_tok_s in baseline
    assert run(llm_server, 9).decode_tok_s in baseline

def test_not_marked(llm_server, baseline):
    assert run(llm_server).decode_tok_s in baseline

def test_not_marked_check(llm_server, baseline):
    baseline.check(run(llm_server))

@perf(target=1)
def test_unknown_metric(llm_server, baseline):
    assert run(llm_server).decode in baseline

@perf(target=1)
def test_one_token(llm_server, baseline):
    assert run(llm_server, 1).decode_tok_s in baseline

@perf(target=1)
@pytest.mark.parametrize("tokens", [0, -3, 2.5, "8"])
def test_workload(llm_server, baseline, tokens):
    run(llm_server, tokens)
"""
    )
    result = project.run_here("-p", "no:randomly")
    result.assert_outcomes(failed=13)
    result.stdout.fnmatch_lines([
        "*test_judges_nothing?sglang?: declares decode_tok_s and has not judged it: write *",
        "*test_judges_half?sglang?: declares ttft_ms and has not judged it*",
        "*test_undeclared?sglang?: ttft_ms is judged but not declared, * @perf(metric=('decode_tok_s', 'ttft_ms'))",
        "*test_plain_float?sglang?: 80.0 is no measured metric; use one of a run, like run.decode_tok_s in baseline",
        "*test_two_workloads?sglang?: decode_tok_s is judged on two workloads; parametrize the test*",
        "*test_not_marked?sglang?: mark the test with @perf to gate it against a baseline",
        "*test_not_marked_check?sglang?: mark the test with @perf to gate it against a baseline",
        "E *this run has no 'decode'; its metrics are: decode_tok_s, ttft_ms, *",
        "E *this run has no 'decode_tok_s'; its metrics are: ttft_ms, e2e_ms*",
        "*test_workload?sglang-0?: output_tokens=0 must be a whole number from 1",
        "*test_workload?sglang--3?: output_tokens=-3 must be a whole number from 1",
        "*test_workload?sglang-2.5?: output_tokens=2.5 must be a whole number from 1",
        "*test_workload?sglang-8?: output_tokens='8' must be a whole number from 1",
    ])  # fmt: skip


def test_a_server_fixture_that_was_not_asked_for_by_name(project: Project) -> None:
    project.suite(HEAD + "def test_x(request): request.getfixturevalue('llm_server')\n"
                         "@perf\ndef test_y(baseline): pass\n")  # fmt: skip
    result = project.run_here()
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines(["*only when it names the fixture llm_server or llm_servers*"])
    assert project.launches == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("250.0", "0.0", "* a number above 0*"),
        ("250.0", "nan", "* a number above 0*"),
        ("", None, "* is not valid TOML *; restore it from version control, or delete it and record *"),
        ("", "<<<<<<< HEAD\n", "* holds the marks of a git conflict; *"),
    ],
    ids=["zero", "nan", "half a file", "merge conflict"],
)
def test_a_broken_baseline_is_named(recorded: Project, old: str, new: str | None, said: str) -> None:
    """Before anything is launched for it, and no update touches it."""
    [(name, text)] = recorded.baselines.items()
    broken = text.rpartition('"')[0] if new is None else text.replace(old, new, 1)
    path = recorded.path / "baselines" / name
    path.write_text(broken)
    for args in ((), ("--update-baselines",)):
        result = recorded.run_here(*args)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines([f"{path}{said}"])
        assert "Traceback" not in str(result.stdout)
        assert path.read_text() == broken
    assert recorded.launches == 0


def test_a_baseline_of_other_hardware_is_not_comparable(recorded: Project) -> None:
    folder = recorded.path / "baselines"
    [series] = store.find(folder, "test_perf.py::test_decode", "sglang")
    store.remove(folder, store.path_of(folder, series.test, series.engine, series.fingerprint))
    elsewhere = replace(series, fingerprint=Fingerprint({**series.fingerprint.fields, "definitions": "0"}))
    store.write(store.path_of(folder, series.test, series.engine, elsewhere.fingerprint), elsewhere)
    result = recorded.run_here()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *not comparable: *definitions: 0 there, * here: record one here with *"])
    assert recorded.result["verdict"] == "not_comparable"
    # another workload is another experiment too
    recorded.suite(SUITE.replace("output_tokens=24", "output_tokens=25"))
    recorded.run_here()
    assert any("workload.output_tokens: 24 there, 25 here" in r for r in recorded.result["reasons"])
    # recording is what mends it
    result = recorded.run_here("--update-baselines")
    assert result.ret == 0, result.outlines
    assert len(recorded.baselines) == 2


def test_lower_is_better_for_times(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_TTFT_MS", "80")
    project.suite(SUITE.replace("@perf(", "@perf(metric=('decode_tok_s', 'ttft_ms'), ")
                  .replace("assert run.decode_tok_s in baseline", "baseline.check(run)"))  # fmt: skip
    project.record()
    monkeypatch.setenv("FAKE_TTFT_SLOWDOWN", "0.5")
    result = project.run_here()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E *ttft_ms regressed: *above the baseline, beyond its band", "* passes at * or less*"]
    )
    assert {r["metric"]: r["verdict"] for r in project.results} == {"decode_tok_s": "passed", "ttft_ms": "regressed"}
    monkeypatch.setenv("FAKE_TTFT_SLOWDOWN", "2")
    assert project.run_here().ret == 0
    assert {r["metric"]: r["verdict"] for r in project.results} == {"decode_tok_s": "passed", "ttft_ms": "passed"}
    assert any("faster, unconfirmed" in r["reasons"] for r in project.results if r["metric"] == "ttft_ms")


def test_load_is_gated_too(project: Project) -> None:
    project.suite(
        HEAD
        + """
@perf(metric=("output_tok_s", "stream_tok_s"), target={"output_tok_s": 1, "stream_tok_s": 1}, repetitions=1)
def test_load(llm_server, baseline):
    baseline.check(llm_server.load(concurrency=2, requests=6, output_tokens=8, prompt_tokens=8))
"""
    )
    result = project.run_here()
    assert result.ret == 0, result.outlines
    assert {r["metric"] for r in project.results} == {"output_tok_s", "stream_tok_s"}
    assert project.results[0]["workload"]["concurrency"] == 2


def test_a_slow_drift_is_told_at_the_end(recorded: Project) -> None:
    """Thirty launches, each 0.8 % slower than the one before: no single step has failed."""
    [path] = store.files(recorded.path / "baselines")
    series = store.read(path)
    first = series.current.launches[0]
    launches = tuple(
        replace(first, id=f"launch-{n}", metrics={"decode_tok_s": (250.0 * 0.992 ** (n - 30),) * 3}) for n in range(30)
    )
    store.write(path, replace(series, epochs=(replace(series.current, launches=launches),)))
    result = recorded.run_here()
    assert result.ret == 0, result.outlines
    assert recorded.result["verdict"] == "passed"
    assert "drift: test_perf.py::test_decode[sglang]: slow drift: decode_tok_s is " in recorded.messages
    result.stdout.fnmatch_lines(["*drift: *"])


def test_a_machine_whose_series_fall_into_two_groups_is_said(recorded: Project) -> None:
    """A finding about the machine, not a wide spread to learn from."""
    folder = recorded.path / "baselines"
    [series] = store.find(folder, "test_perf.py::test_decode", "sglang")
    for n in range(4):
        launches = tuple(
            replace(series.current.launches[0], id=f"launch-{n}-{i}", metrics={"decode_tok_s": (USUAL * factor,) * 3})
            for i, factor in enumerate((1, 0.6, 1.01, 0.61, 1, 0.6))
        )
        other = replace(series, test=f"test_perf.py::test_{n}", epochs=(Epoch("first recording", launches),))
        store.write(store.path_of(folder, other.test, "sglang", series.fingerprint), other)
    recorded.run_here().assert_outcomes(passed=1)
    assert "launches of 4 of 5 stored series fall into two groups" in recorded.messages
