"""A sweep: one test on fresh launches of each config, planted effects found, failures as results. Real servers.

Planted effects are of a factor of ten, so that they show on a busy machine too; how small ones are judged is tested on
seeded launches in tests/tuning.
"""

from __future__ import annotations

import re
import signal
import subprocess
from typing import Any

import pytest

from tests.conftest import wait_for
from tests.plugin.conftest import Project

#: What is swept, and the body of the test.
SWEEP = """
import pytest
from pytest_llmperf import perf

@pytest.mark.llm_server(model="fake-model", attention_backend="fa3")
@pytest.mark.llm_sweep({knobs})
def test_hunt(llm_server):
    run = llm_server.stream(output_tokens={tokens}, prompt_tokens=16, repetitions=2, max_repetitions=2)
    {body}
"""
PLAIN = """

@pytest.mark.llm_server(model="fake-model", attention_backend="fa3")
def test_plain(llm_server):
    pass
"""
TRITON = "attention_backend=['triton'], launches=1"


def suite(project: Project, knobs: str, body: str = "", more: str = "", tokens: int = 12) -> None:
    """An absent effect needs more ``tokens``: a rate over 12 of them, 44 ms, is off by what the host is late."""
    project.suite(SWEEP.format(knobs=knobs, body=body, tokens=tokens) + more)


def launched(project: Project) -> list[str]:
    """What tells each launch from the base, in order: an NCCL variable, or else its backend."""
    found = []
    for launch in project.base.launches:
        backend = launch["argv"][launch["argv"].index("--attention-backend") + 1]
        found.append("NCCL_PROTO" if "NCCL_PROTO" in launch["env"] else backend)
    return found


def effects(sweep: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"{e['knob']}={e['setting']}": e for e in sweep["effects"]}


def sweep_of(project: Project, metric: str = "decode_tok_s") -> dict[str, Any]:
    [found] = [s for s in project.report["sweeps"] if s["metric"] == metric]
    return found  # type: ignore[no-any-return]


def test_planted_effects_are_found_and_failures_are_results(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_EFFECTS", "attention_backend=triton:0.1")
    monkeypatch.setenv("FAKE_STRICT", "1")
    knobs = "attention_backend=['fa3', 'triton'], sglang__no_such_flag=[1], nccl__proto=['LL']"
    suite(project, knobs, tokens=48)
    result = project.run_here("--llmperf-html", "page.html")
    assert result.ret == 0, result.outlines
    result.stdout.fnmatch_lines(["llmperf: 1 sweep of 4 configs in 10 launches", "test_perf.py mmmummmm.*"])
    # mirrored around the middle, the base between; what does not start (and so logs no launch) is tried once
    assert launched(project) == ["fa3", "triton", "fa3", "NCCL_PROTO", "NCCL_PROTO", "fa3", "triton", "fa3"]
    found = sweep_of(project)
    assert (found["test"], found["engine"], found["base_launches"]) == ("test_perf.py::test_hunt", "sglang", 4)
    assert found["base"] == {
        "attention_backend": "fa3", "sglang.no_such_flag": "engine default", "nccl.proto": "engine default",
    }  # fmt: skip
    by_setting = effects(found)
    slow, same = by_setting["attention_backend=triton"], by_setting["nccl.proto=LL"]
    failed = by_setting["sglang.no_such_flag=1"]
    assert slow["credible"]
    assert slow["ratio"] < slow["interval"][1] < 0.5
    assert not same["credible"]
    assert same["interval"][0] < 1 < same["interval"][1]
    assert same["note"] == "one GPU: NCCL carries nothing"
    assert (failed["ratio"], failed["launches"]) == (None, 0)
    assert failed["failure"].startswith("did not start: ")
    assert found["effects"][-1] == failed
    assert {s["metric"] for s in project.report["sweeps"]} >= {"decode_tok_s", "ttft_ms", "itl_p99_ms"}
    launches = [len(s["launches"]) for s in project.report["servers"] if s["config"].get("flags")]
    assert launches == [0]
    out = str(result.stdout)
    assert re.search(r"on sglang, test_hunt:\s+│?\s*decode_tok_s, base", out)
    assert "no credible effect" in out
    assert "sglang.no_such_flag=1: did not start: " in out
    assert "attention_backend=triton" in (project.path / "page.html").read_text()
    assert project.results == []


def test_a_sweep_under_xdist(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one worker, with servers of its own."""
    monkeypatch.setenv("FAKE_EFFECTS", "attention_backend=triton:0.1")
    suite(project, TRITON, more=PLAIN)
    result = project.run("-v", workers=2)
    assert result.ret == 0, result.outlines
    result.assert_outcomes(passed=2)
    assert sorted(launched(project)) == ["fa3", "fa3", "fa3", "triton"]
    slots = [line.split()[0] for line in result.outlines if "MEASURED" in line]
    assert len(slots) == 2
    assert len(set(slots)) == 1
    result.stdout.fnmatch_lines(["*MEASURED attention_backend=triton test_perf.py::test_hunt?sglang?*"])
    assert effects(sweep_of(project))["attention_backend=triton"]["credible"]


def test_a_gate_is_a_sweep_for_as_long_as_it_is_marked(project: Project) -> None:
    """It needs no baseline and records none, and says nothing of what it does not gate."""
    suite(project, TRITON, more=PLAIN)
    text = (project.path / "test_perf.py").read_text()
    project.suite(text.replace("(llm_server):\n    run", "(llm_server, baseline):\n    run")
                      .replace("    \n", "    assert run.decode_tok_s in baseline\n    baseline.check(run)\n")
                      .replace("@pytest.mark.llm_sweep", "@perf(target=1e6)\n@pytest.mark.llm_sweep"))  # fmt: skip
    result = project.run_here("--launches", "3", "--update-baselines", "-k", "hunt")
    result.assert_outcomes(passed=1, deselected=1)
    assert launched(project) == ["fa3", "triton", "fa3"]
    assert [s["metric"] for s in project.report["sweeps"]] == ["decode_tok_s"]
    assert project.report["session"]["gated"] == 0
    assert project.baselines == {}
    assert project.results == []


def test_what_a_variation_does_wrong_is_its_own(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies, answers short, is skipped, is not what was declared: results. What the test asserts makes it fail."""
    suite(
        project,
        "env__FAKE_DIE=['5@4'], env__FAKE_EOS_AT=['3'], env__FAKE_REPLACE_BACKEND=['flashinfer'], dtype=['half', "
        "'bfloat16'], launches=1",
        "if llm_server.config.dtype == 'half': pytest.skip('not today')\n"
        "    assert llm_server.config.dtype != 'bfloat16', 'wrong answers'",
    )
    result = project.run_here("-v")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([
        "test_perf.py::test_hunt?sglang? UNFIT dtype=bfloat16 *",
        "test_perf.py::test_hunt?sglang? FAILED *",
        "with dtype=bfloat16:",
        "E *AssertionError: wrong answers",
    ])  # fmt: skip
    failures = {k: e["failure"] for k, e in effects(sweep_of(project)).items()}
    assert failures["env.FAKE_DIE=5@4"].startswith("died: ")
    assert failures["env.FAKE_EOS_AT=3"].startswith("invalid: finish_reason is 'stop'")
    assert failures["env.FAKE_REPLACE_BACKEND=flashinfer"] == (
        "is up, but not as declared: attention_backend: declared fa3, effective flashinfer"
    )
    assert failures["dtype=half"] == "skipped: not today"
    # it was measured all the same
    refused = effects(sweep_of(project))["dtype=bfloat16"]
    assert refused["ratio"] is not None
    assert refused["note"] == "no further launch: the test fails with it"


def test_without_its_base_a_sweep_is_an_error(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured until then is reported."""
    monkeypatch.setenv("FAKE_CRASH", "oom@3")
    suite(project, TRITON)
    result = project.run_here()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["test_perf.py mmE*", "sglang fake-model did not start *", "│ sweep of *"])
    assert launched(project) == ["fa3", "triton", "fa3"]
    assert effects(sweep_of(project))["attention_backend=triton"]["ratio"] is not None


def test_whatever_comes_before_a_launch_the_former_server_goes(project: Project) -> None:
    """An own fixture that fails with a variation, and a variation that another test has found to be broken."""
    project.suite("""
import pytest

@pytest.fixture
def picky(request):
    seen = request.config.stash.setdefault(KEY, [])
    seen.append(1)
    assert len(seen) != 2, "not this one"

KEY = pytest.StashKey()

@pytest.mark.llm_server(model="fake-model", attention_backend="fa3", env={"FAKE_CRASH": "oom"})
def test_broken(llm_server):
    pass

@pytest.mark.llm_server(model="fake-model", attention_backend="fa3")
@pytest.mark.llm_sweep(attention_backend=["triton"], env__FAKE_CRASH=["oom"], dtype=["half"], launches=1)
def test_hunt(picky, llm_server):
    llm_server.stream(output_tokens=24, prompt_tokens=16, repetitions=1, max_repetitions=1)
    import os
    from pathlib import Path
    pids = [line.split()[1] for line in Path(os.environ["FAKE_PIDS_FILE"]).read_text().splitlines()]
    assert sum(Path("/proc", pid).exists() for pid in pids) == 1
""")
    result = project.run_here()
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["test_perf.py EmumumF*", "with attention_backend=triton:", "E *AssertionError: not this one"]
    )
    causes = {k: e["failure"] for k, e in effects(sweep_of(project)).items()}
    assert causes["attention_backend=triton"] == "the test fails with it"
    assert causes["env.FAKE_CRASH=oom"] == "did not start: out of GPU memory"
    assert causes["dtype=half"] is None


def test_a_test_that_measures_nothing_is_no_sweep(project: Project) -> None:
    project.suite(SWEEP.format(knobs=TRITON, body="", tokens=12).replace("run = llm_server.stream(", "dict("))
    result = project.run_here()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*test_hunt?sglang?: is a sweep and has measured nothing: *"])
    assert launched(project) == ["fa3"]


def test_ctrl_c_loses_nothing_that_was_measured(
    project: Project, real_time: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite(project, "attention_backend=['triton'], nccl__proto=['LL'], launches=3")
    # the third launch answers slowly: what happens now happens in the midst of it
    monkeypatch.setenv("FAKE_LAUNCH_FACTORS", "1,1,0.02")
    process = project.base.pytester.popen(
        ["python", "-m", "pytest", "--engine", "sglang", "--llmperf-json", "out.json"],
        stdout=(project.path / "out.txt").open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        wait_for(lambda: project.launches == 3 or process.poll() is not None, "the third launch", 120)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == pytest.ExitCode.INTERRUPTED
    finally:
        process.kill()
        process.wait()
    said = effects(sweep_of(project))
    assert said["attention_backend=triton"]["ratio"] is not None
    assert said["nccl.proto=LL"]["failure"] == "not launched"
    assert "interrupted, this is what was measured until then" in (project.path / "out.txt").read_text()
    project.wait_until_nothing_runs()
