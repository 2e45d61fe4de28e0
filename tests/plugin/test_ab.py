"""``ab``: two configs or builds on interleaved launches, in a test. Fake engine, planted effects."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import wait_for
from tests.plugin.conftest import Project

HEAD = """
import pytest
pytestmark = pytest.mark.llm_server(model="m", attention_backend="fa3")
"""
AB = (
    HEAD
    + """
@pytest.mark.llm_ab(b={{"attention_backend": "triton"}}, {more})
def test_triton(ab):
    result = ab(lambda server: server.stream(output_tokens=24, prompt_tokens=16, repetitions=2, max_repetitions=2))
    print(result)
    assert result.better == {better!r}
    assert result.launches[0] == result.launches[1] <= {budget}
"""
)


def suite(better: str | None, budget: int = 4, more: str = "") -> str:
    return AB.format(better=better, budget=budget, more=f"budget={budget}, {more}")


def order(project: Project) -> str:
    """``ABBA``: which side each server started was."""
    sides = [" ".join(x["argv"]) for x in project.base.launches]
    return "".join("B" if "triton" in words else "A" for words in sides)


@pytest.mark.parametrize("workers", [0, 2], ids=["serial", "xdist"])
def test_a_planted_loss_is_found_early(project: Project, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setenv("FAKE_EFFECTS", "attention_backend=triton:0.6")
    project.suite(suite("a", budget=5))
    result = project.run(workers=workers) if workers else project.run_here()
    assert result.ret == 0, result.outlines
    result.assert_outcomes(passed=1)
    assert order(project) == "ABBA"  # of ten that the budget would have paid for
    [gap] = project.report["gaps"]
    assert (gap["engine"], gap["reference"], gap["metric"]) == ("sglang B", "sglang A", "decode_tok_s")
    assert gap["test"] == "test_perf.py::test_triton"
    assert gap["launches"] == [2, 2]
    assert 0.5 < gap["ratio"] < 0.7
    assert gap["interval"][1] < 1
    assert gap["note"] == ("A: as declared; B: attention_backend=triton; clear after 2 launches of each: b is worse")
    result.stdout.fnmatch_lines(["│ gap of engine over reference", "*sglang B*sglang A*2 vs 2*", "*b is worse*"])
    assert sum(len(s["launches"]) for s in project.report["servers"]) == 4


def test_a_gain_is_found_too(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_EFFECTS", "attention_backend=triton:1.6")
    project.suite(suite("b"))
    assert project.run_here().ret == 0
    assert order(project) == "ABBA"


def test_what_is_not_there_is_not_found_and_the_budget_holds(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches that differ by 8 % about one mean: nothing to see, and no launch beyond the budget."""
    monkeypatch.setenv("FAKE_LAUNCH_FACTORS", "1,1.08,1,1.08,1.08,1")
    project.suite(suite(None, budget=3))
    result = project.run_here()
    assert result.ret == 0, result.outlines
    assert order(project) == "ABBAAB"
    [gap] = project.report["gaps"]
    assert "undecided within the budget of 3 launches of each" in gap["note"]
    assert gap["interval"][0] < 1 < gap["interval"][1]


def test_with_warm_caches_each_side_discards_its_first_launch(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first launch that compiled, at a fifth of the speed; the budget pays for the others."""
    monkeypatch.setenv("FAKE_LAUNCH_FACTORS", "0.2,1,0.2,1,1,1")
    project.suite(suite(None, budget=2))
    result = project.run_here("--llmperf-warm-caches")
    assert result.ret == 0, result.outlines
    assert order(project) == "AABBBA"
    [gap] = project.report["gaps"]
    assert gap["launches"] == [2, 2]
    assert 0.9 < gap["ratio"] < 1.1
    spent = [x["spent"] for s in project.report["servers"] for x in s["launches"]]
    assert sorted(spent) == [""] * 4 + ["may have compiled, not measured"] * 2


def test_two_builds_are_two_commands(project: Project) -> None:
    slow = json.dumps(["env", "FAKE_SLOWDOWN=0.6", *project.base.command, "sglang"])
    project.suite(HEAD + f"""
@pytest.mark.llm_ab(b={{"command": {slow}, "env": {{"API_TOKEN": "topsecret"}}}}, budget=2, metric="ttft_ms")
class TestBuilds:
    @pytest.mark.llm_ab(metric="decode_tok_s")
    def test_new_build(self, ab):
        result = ab(lambda server: server.stream(output_tokens=24, prompt_tokens=16, repetitions=2))
        assert result.metric == "decode_tok_s"
        assert result.ratio > 0.99
""")  # fmt: skip
    result = project.run_here()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*assert 0.* > 0.99"])
    assert project.launches == 4
    [gap] = project.report["gaps"]
    assert 0.5 < gap["ratio"] < 0.7
    assert "B: command=env FAKE_SLOWDOWN=0.6" in gap["note"]
    assert 'env={"API_TOKEN":"***"}' in gap["note"]
    assert "topsecret" not in json.dumps(project.report)


def test_no_server_of_another_test_is_up_meanwhile(project: Project) -> None:
    """Its side A is the very config that its neighbours share; launches of an A/B are fresh all the same."""
    gate = "\ndef test_{0}(llm_server): llm_server.stream(output_tokens=24, repetitions=1)\n"
    project.suite(HEAD + gate.format("one") + suite("b", budget=1).removeprefix(HEAD).replace("assert", "#")
                  + gate.format("two"))  # fmt: skip
    result = project.run_here("-v")
    result.assert_outcomes(passed=3)
    assert order(project) == "AAB"
    result.stdout.fnmatch_lines(["*::test_one*PASSED*", "*::test_two*PASSED*", "*::test_triton*PASSED*"])


def test_a_side_that_does_not_start_is_an_error_that_names_it(project: Project) -> None:
    project.suite(HEAD + """
@pytest.mark.llm_ab(b={"command": ["/no/such/python"]}, budget=3)
def test_new_build(ab):
    ab(lambda server: server.stream(output_tokens=24, repetitions=1))
""")  # fmt: skip
    result = project.run_here()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["side B: *no/such/python*"])
    assert project.launches == 1
    assert "pytest_llmperf/" not in str(result.stdout)


def test_the_failed_side_alone_is_shown_as_failed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CRASH", "oom@2")
    project.suite(suite("b"))
    result = project.run_here()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["side B: sglang m did not start*", "*CUDA out of memory*"])
    failed = {s["config"]["attention_backend"]: bool(s["failures"]) for s in project.report["servers"]}
    assert failed == {"fa3": False, "triton": True}
    assert project.report["gaps"] == []


def test_an_invalid_measurement_is_a_failure_that_names_the_side(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_EOS_AT", "3@3+")
    project.suite(suite("b"))
    result = project.run_here()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["side A: the measurement is invalid*"])
    assert project.launches == 1


def test_it_must_be_called_and_once(project: Project) -> None:
    project.suite(HEAD + """
@pytest.mark.llm_ab(b={"attention_backend": "triton"}, budget=1)
class TestCalls:
    def test_never(self, ab):
        pass

    def test_twice(self, ab):
        for _ in range(2):
            ab(lambda server: server.stream(output_tokens=24, repetitions=1))

    def test_nothing_measured(self, ab):
        ab(lambda server: server.base_url)

    def test_its_own_assertion(self, ab):
        def measure(server):
            assert server.base_url == "elsewhere"
        ab(measure)

def test_unmarked(ab):
    pass
""")  # fmt: skip
    result = project.run_here()
    result.assert_outcomes(failed=4, errors=1)
    said = str(result.stdout)
    assert "pytest_llmperf/" not in said  # no frame of ours, in the user's assertion either
    assert "test_never[sglang]: has compared nothing" in said
    assert "test_twice[sglang]: ab was called already" in said
    assert "what ab calls must return its server's run" in said
    assert "ab needs @pytest.mark.llm_ab" in said


def test_a_side_may_name_a_preset(project: Project) -> None:
    project.suite(HEAD + """
@pytest.mark.llm_ab(b={"nccl": "ll-ring"}, budget=1)
def test_nccl(ab):
    ab(lambda server: server.stream(output_tokens=24, prompt_tokens=16, repetitions=1))
""")  # fmt: skip
    assert project.run_here().ret == 0
    declared = [s["config"].get("nccl", {}) for s in project.report["servers"]]
    assert [d.get("NCCL_PROTO") for d in declared] == [None, "LL"]


MISUSES = {
    "b={'nccl': 'll-rnig'}": "llm_ab(b=...): llm_server: no preset 'll-rnig' for nccl (did you mean 'll-ring'?)",
    "b={'attnetion_backend': 'x'}": "llm_ab(b=...): llm_server has no 'attnetion_backend' (did you mean",
    "b={'attention_backend': 'fa9'}": "llm_ab(b=...): sglang has no attention_backend='fa9'",
    "b={'attention_backend': 'fa3'}": "compares a server with itself",
    "b='triton'": "must be a dict of llm_server's keywords",
    "c={}": "llm_ab has no 'c'",
    "b={'tp': 2}, budget=0": "budget=0) must be a whole number from 1",
    "b={'tp': 2}, metric='speed'": "names no known metric: 'speed'",
    "b={'tp': 2}, min_effect=2": "must be a fraction between 0 and 1",
    "b={'engine': 'vllm'}": "tells the gap between two engines",
    "b={'command': ['env', 'CUDA_VISIBLE_DEVICES=1', 'python']}": "the command of sglang sets CUDA_VISIBLE_DEVICES",
    "b={'command': 'python'}": "must be the list of words",
    "'x', b={'tp': 2}": "llm_ab takes keywords only",
}


def test_misuses_are_told_at_collection(project: Project) -> None:
    tests = "".join(f"\n@pytest.mark.llm_ab({args})\ndef test_{i}(ab): pass\n" for i, args in enumerate(MISUSES))
    project.suite(HEAD + "from pytest_llmperf import perf\n" + tests + """
@perf
@pytest.mark.llm_ab(b={"tp": 2})
def test_gated(ab, llm_server): pass
""")  # fmt: skip
    result = project.run_here()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = str(result.stderr)
    for i, message in enumerate(MISUSES.values()):
        assert any(f"test_{i}[sglang]" in line and message in line for line in said.splitlines()), (i, message, said)
    assert "asserts on its result instead" in said
    assert "ab launches servers of its own" in said
    assert project.launches == 0


def test_it_refuses_a_server_that_it_cannot_launch(project: Project) -> None:
    project.suite(suite("b"))
    result = project.run_here("--llmperf-url", "http://127.0.0.1:9")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ab launches servers of its own, and --llmperf-url attaches to one" in str(result.stderr)


def test_without_opting_in_it_is_deselected_and_another_ab_is_left_alone(project: Project) -> None:
    project.suite(suite("b") + """
@pytest.fixture
def mine(): return 1
""")  # fmt: skip
    project.suite(
        "import pytest\n@pytest.fixture\ndef ab(): return 1\ndef test_own(ab): assert ab == 1\n", "test_own.py"
    )
    result = project.run_here(engine=None)
    result.assert_outcomes(passed=1, deselected=1)
    assert project.launches == 0


def test_ctrl_c_leaves_nothing(project: Project, real_time: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ITL_MS", "40")
    project.suite(HEAD + """
@pytest.mark.llm_ab(b={"attention_backend": "triton"})
def test_long(ab):
    ab(lambda server: server.stream(output_tokens=4000, prompt_tokens=16))
""")  # fmt: skip
    output = project.path / "output"
    with output.open("w") as out:
        run = subprocess.Popen(
            [sys.executable, "-m", "pytest", "--engine", "sglang", "--llmperf-json", "out.json"],
            cwd=project.path, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        wait_for(project.running, "the first server", 60)
        log = Path(project.path, "fake-launches.jsonl")
        wait_for(log.exists, "its launch")
        os.kill(run.pid, signal.SIGINT)
        assert run.wait(60) == pytest.ExitCode.INTERRUPTED, output.read_text()
    finally:
        run.kill()
        run.wait()
    project.wait_until_nothing_runs()
    assert project.report["session"]["interrupted"]
