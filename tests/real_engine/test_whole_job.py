"""Record, gate and confirm on fresh launches; a killed pytest; a backend that cannot work; speculation."""

from __future__ import annotations

import signal

import pytest

from tests.real_engine.conftest import EngineProject, MakeProject, wait_for

pytestmark = pytest.mark.real_engine

ENGINES = pytest.mark.parametrize("engine", ["vllm", "sglang"])
#: What each has at work once it answers, apart from pytest, our supervisor and Python's resource trackers.
WORKERS = {"vllm": ("VLLM::EngineCore", "VLLM::Worker"), "sglang": ("sglang::schedul", "sglang::detoken")}
SHORT = """
import pytest
from pytest_llmperf import perf

pytestmark = pytest.mark.llm_server(
    model="tiny", max_running_requests=4, context_length=1024, cuda_graph=False, **{more}
)


@perf(repetitions={repetitions}, max_repetitions={repetitions})
def test_short(llm_server, baseline):
    run = llm_server.stream(prompt_tokens=32, output_tokens=24)
    assert run.decode_tok_s in baseline
"""


def short(repetitions: int = 3, **more: object) -> str:
    return SHORT.format(repetitions=repetitions, more=more)


@ENGINES
def test_record_gate_and_confirm(engine: str, project: MakeProject) -> None:
    job = project(engine)
    backend = {"vllm": "CPU_ATTN", "sglang": "torch_native"}[engine]
    job.suite(short(attention_backend=backend))
    status, out = job.run("--update-baselines", "--launches", "2")
    assert status == 0, out
    effective = job.effective
    assert effective["max_running_requests"] == 4
    assert effective["context_length"] == 1024
    assert effective["cuda_graph"] is False
    assert effective["versions"][engine]
    assert effective["attention_backend"] == backend

    status, out = job.run()
    assert status == 0, out
    # on a machine that is busy with other things the stored launches may spread too far to say
    assert job.results[0]["verdict"] in ("passed", "improved", "inconclusive"), out

    # so spread that a loss of half is suspect, and not so plain that it would fail at once
    job.plant("decode_tok_s", (1.6, 2.5))
    before = len(job.logs)
    status, out = job.run("--llmperf-min-effect", "0.1")
    assert status == pytest.ExitCode.TESTS_FAILED, out
    assert job.results[0]["verdict"] == "regressed", out
    assert [x["role"] for x in job.results[0]["launches"]] == ["screen", "confirm", "confirm"]
    assert len(job.logs) - before == 3, "a suspect is confirmed on launches of its own"


@ENGINES
def test_the_examples(engine: str, project: MakeProject) -> None:
    job = project(engine)
    job.example("test_tiny.py")
    status, out = job.run("--update-baselines")
    assert status == 0, out
    assert len(job.logs) == 1, "four tests, one config, one launch"
    assert len(job.results) >= 5
    chosen = {"vllm": None, "sglang": "torch_native"}[engine]  # vLLM on a CPU says it nowhere
    assert job.effective.get("attention_backend") == chosen


@ENGINES
def test_nothing_is_left_of_a_killed_pytest(engine: str, project: MakeProject) -> None:
    job = project(engine)
    job.suite(short(repetitions=500))
    pytest_process = job.start("--update-baselines")
    wait_for(
        lambda: (job.processes() and requests_of(job) > 5) or pytest_process.poll() is not None,
        "requests of the measurement",
    )
    assert pytest_process.poll() is None, job.out
    names = [" ".join(p.cmdline()) for p in job.processes()]
    for worker in WORKERS[engine]:
        assert any(worker in name for name in names), names
    pytest_process.send_signal(signal.SIGKILL)
    pytest_process.wait()
    wait_for(lambda: not job.processes(), f"the end of {names}", 60)


def requests_of(job: EngineProject) -> int:
    return job.logs[-1].count('"POST /v1/completions HTTP/1.1" 200') if job.logs else 0


@pytest.mark.parametrize(
    ("engine", "backend", "cause"),
    [
        ("vllm", "flashinfer", "cannot use attention backend FLASHINFER on CPU"),
        ("sglang", "flashinfer", "its environment lacks flashinfer_python"),
    ],
)
def test_a_backend_that_cannot_work_here(engine: str, backend: str, cause: str, project: MakeProject) -> None:
    job = project(engine)
    job.suite(short(attention_backend=backend))
    status, out = job.run()
    assert status == pytest.ExitCode.TESTS_FAILED, out
    assert cause in out
    assert "Application startup complete" not in job.logs[0], "told before the server was up"


SPECULATING = """
import re
import urllib.request

import pytest
from pytest_llmperf import perf

pytestmark = pytest.mark.llm_server(
    model="tiny", max_running_requests=4, context_length=1024, cuda_graph=False,
    speculative={"method": "ngram", "num_tokens": 4},
)


def decode_seconds(server):
    # by the engine's own clock, over all requests that it has answered
    text = urllib.request.urlopen(server.base_url.removesuffix("/v1") + "/metrics").read().decode()
    whole, first = (
        float(re.search(rf"vllm:{name}_seconds_sum\\{{[^}}]*\\}} (\\S+)", text)[1])
        for name in ("e2e_request_latency", "time_to_first_token")
    )
    return whole - first


@perf(repetitions=4, max_repetitions=4)
def test_speculation(llm_server, baseline):
    before = decode_seconds(llm_server)
    run = llm_server.stream(prompt_tokens=32, output_tokens=192)
    engine = decode_seconds(llm_server) - before
    ours = sum(191 / rate for rate in [*run.measurement.warmup.values, *run.decode_tok_s.values])
    evidence = run.measurement.evidence
    counters = evidence["counters"]
    print("engine", engine, "ours", ours, dict(run.measurement.values), evidence)
    assert run.acceptance_length > 1.5
    assert run.acceptance_rate > 0.5
    assert evidence["chunks_per_token"] < 0.9
    assert counters["generation_tokens"] == 4 * 192
    assert run.acceptance_length == pytest.approx(1 + counters["accepted_tokens"] / counters["drafts"], rel=0.2)
    assert ours == pytest.approx(engine, rel=0.05)
    assert run.decode_tok_s in baseline
"""


def test_speculation_on_vllm(project: MakeProject) -> None:
    """The tiny model repeats itself after 32 tokens, so prompt lookup finds what follows."""
    job = project("vllm")
    job.suite(SPECULATING)
    status, out = job.run("--update-baselines")
    assert status == 0, out
    assert job.effective["speculative"] == "ngram"
