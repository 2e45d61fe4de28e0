"""A launch that compiled, a fifth as fast for its whole life: where it is spent, where it counts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pytest_llmperf.baselines import store
from pytest_llmperf.baselines.metric_verdict import GateTerms, verdict_of
from pytest_llmperf.baselines.series import Epoch, Series, StoredLaunch
from pytest_llmperf.measure.metrics import METRICS
from pytest_llmperf.session.cold_launches import all_warm, spent
from tests.baselines.conftest import DAY, PRINT, START, make_launch
from tests.plugin.conftest import SUITE, Project

TERMS = GateTerms("t.py::test_a[vllm]", "t.py::test_a", "vllm", "k", METRICS["decode_tok_s"], PRINT, "h1")
RECORD = ("--update-baselines", "--launches", "2")


@pytest.mark.parametrize(
    ("cache", "purpose", "unknown_too", "why"),
    [
        ("cold", "recorded", False, "compiled, not recorded"),
        ("cold", "", False, None),
        ("cold", "", True, "compiled, not measured"),
        (None, "judged", False, None),
        (None, "", True, "may have compiled, not measured"),
        ("warm", "recorded", True, None),
    ],
)
def test_what_is_spent(cache: str | None, purpose: str, unknown_too: bool, why: str | None) -> None:
    assert spent(cache, purpose, unknown_too=unknown_too) == why


@pytest.mark.parametrize(
    ("caches", "warm"),
    [(("warm",) * 3, True), ((None, "warm"), True), ((None, None), False), (("cold", "warm"), False), ((), False)],
)
def test_a_warm_baseline(caches: tuple[str | None, ...], warm: bool) -> None:
    assert all_warm([make_launch(n, cache=cache) for n, cache in enumerate(caches)]) == warm


def judged(stored: list[StoredLaunch], launches: list[StoredLaunch], *, spends: bool) -> tuple[str, list[str]]:
    """The first look's verdict, and the launches that it took, those that compiled replaced if ``spends``."""
    series = Series(TERMS.test, "vllm", PRINT, (Epoch("first recording", tuple(stored)),))
    taken: list[str] = []
    for launch in launches:
        taken.append(launch.id)
        purpose = "judged" if spends and all_warm(stored) else ""
        if spent(launch.cache, purpose) is None:
            break
    found = verdict_of(TERMS, [launch], known=[series], folder=Path("/b"), now=START + 10 * DAY)
    return "suspect" if found.suspect else found.result.verdict, taken


def test_a_warm_baseline_met_by_a_cold_launch_passes_100_of_100() -> None:
    for seed in range(100):
        draw = random.Random(seed)
        stored = [make_launch(n, 82.5 * draw.gauss(1, 0.001), cache="warm") for n in range(5)]
        cold = make_launch(100, 0.93 * 82.5 * draw.gauss(1, 0.001), cache="cold")
        warm = make_launch(101, 82.5 * draw.gauss(1, 0.001), cache="warm")
        assert judged(stored, [cold, warm], spends=True) == ("passed", [cold.id, warm.id])
        assert judged(stored, [cold, warm], spends=False) == ("suspect", [cold.id])


def caches(project: Project) -> list[str | None]:
    [file] = store.files(project.path / "baselines")
    return [x.cache for x in store.read(file).current.launches]


def launched(project: Project) -> list[tuple[str | None, str]]:
    """State of its compile cache and why it was spent, of every launch that the report tells of."""
    [server] = project.report["servers"]
    return [(x["cache_state"], x["spent"]) for x in server["launches"]]


@pytest.fixture
def compiling(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The first launch compiles, and is a fifth as fast as the others."""
    monkeypatch.setenv("FAKE_COLD", "1@1")
    monkeypatch.setenv("FAKE_LAUNCH_FACTORS", "0.2,1,1,1,1,1,1")
    return project


@pytest.fixture
def warm_baseline(compiling: Project) -> Project:
    """Recorded on two warm launches; the next server is the first again."""
    assert compiling.run_here(*RECORD, engine="vllm").ret == 0
    compiling.spread(1, 1)
    for log in ("fake-launches.jsonl", "fake-counter"):
        (compiling.path / log).unlink()
    return compiling


def test_a_recording_keeps_warm_launches(compiling: Project) -> None:
    result = compiling.run_here(*RECORD, "--llmperf-html", "out.html", engine="vllm")
    assert result.ret == 0, result.outlines
    assert compiling.launches == 3
    assert caches(compiling) == ["warm", "warm"]
    assert launched(compiling) == [("cold", "compiled, not recorded"), ("warm", ""), ("warm", "")]
    assert len(compiling.result["launches"]) == 2
    assert "compiled, not recorded: another in its place (--llmperf-cold keeps it)" in compiling.messages
    result.stdout.fnmatch_lines(["*3 launches, start-up * s (spent), *"])
    assert "compiled, not recorded" in (compiling.path / "out.html").read_text()


@pytest.mark.parametrize(
    ("args", "kept"),
    [((*RECORD, "--llmperf-cold"), ["cold", "warm"]), (("--update-baselines",), ["cold"])],
    ids=["asked for", "one launch"],
)
def test_where_the_launch_that_compiled_is_recorded(compiling: Project, args: tuple[str, ...], kept: list[str]) -> None:
    assert compiling.run_here(*args, "--llmperf-min-effect", "0.9", engine="vllm").ret == 0
    assert (compiling.launches, caches(compiling)) == (len(kept), kept)


def test_a_cache_that_does_not_last_costs_one_launch(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_COLD", "1")
    assert project.run_here(*RECORD, engine="vllm").ret == 0
    assert project.launches == 3
    assert caches(project) == ["cold", "cold"]
    assert "compiles at each launch, so such launches count: its cache does not last" in project.messages
    assert project.run_here(engine="vllm").ret == 0
    assert launched(project) == [("cold", "")], "judged as the baseline was recorded"


def test_a_warm_baseline_is_met_by_the_warm_launch_after_a_cold_one(warm_baseline: Project) -> None:
    result = warm_baseline.run_here(engine="vllm")
    assert result.ret == 0, result.outlines
    assert warm_baseline.launches == 2
    assert launched(warm_baseline) == [("cold", "compiled, not judged"), ("warm", "")]
    assert warm_baseline.result["verdict"] == "passed"
    assert [x["role"] for x in warm_baseline.result["launches"]] == ["screen"]
    assert "compiled, not judged: another in its place (--llmperf-cold keeps it)" in warm_baseline.messages


def test_a_cold_launch_is_judged_where_that_is_asked_for(warm_baseline: Project) -> None:
    result = warm_baseline.run_here("--llmperf-cold", engine="vllm")
    assert result.ret == 0, result.outlines
    assert [x["role"] for x in warm_baseline.result["launches"]] == ["screen", "confirm", "confirm"]
    assert warm_baseline.launches == 3
    assert all(not why for _, why in launched(warm_baseline))


@pytest.mark.parametrize("variable", ["", "TVM_FFI_CACHE_DIR"], ids=["usual folder", "elsewhere"])
def test_sglangs_cache_folder_tells(project: Project, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """Its log does not: which launch compiled is read off the libraries that the process has loaded."""
    cache = project.path / ("kernels" if variable else ".cache/tvm-ffi")
    monkeypatch.setenv("FAKE_JIT_CACHE", str(cache))
    if variable:
        monkeypatch.setenv(variable, str(cache))
    assert project.run_here(*RECORD).ret == 0
    assert launched(project) == [("cold", "compiled, not recorded"), ("warm", ""), ("warm", "")]
    assert caches(project) == ["warm", "warm"]


def test_what_no_source_tells_is_judged_as_it_is(recorded: Project) -> None:
    assert recorded.run_here("--llmperf-html", "out.html").ret == 0
    assert launched(recorded) == [(None, "")]
    assert "compile cache unknown" in (recorded.path / "out.html").read_text()


def test_a_comparison_spends_it_too(compiling: Project) -> None:
    """Of a sweep's base and variation, launched by turns, the base's first."""
    compiling.suite(
        "import pytest\n@pytest.mark.llm_server(model='m')\n"
        "@pytest.mark.llm_sweep(max_running_requests=[8], launches=2)\n"
        "def test_all(llm_server):\n    llm_server.stream(output_tokens=24, prompt_tokens=16, repetitions=2)\n"
    )
    assert compiling.run_here(engine="vllm").ret == 0
    assert compiling.launches == 5
    base, variation = compiling.report["servers"]
    assert [x["spent"] for x in base["launches"]] == ["compiled, not compared", "", ""]
    assert [x["spent"] for x in variation["launches"]] == ["", ""]
    assert "compiled, not compared: another in its place (--llmperf-cold keeps it)" in compiling.messages
    [effect] = [e for s in compiling.report["sweeps"] if s["metric"] == "decode_tok_s" for e in s["effects"]]
    assert 0.9 < effect["ratio"] < 1.1


def test_an_engine_that_compiles_nothing_has_nothing_to_warm(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.suite(
        "from pytest_llmperf.engines.sglang import SGLang\n"
        "class Ready(SGLang):\n    compiles = False\n"
        "def pytest_llmperf_engines(config):\n    return Ready()\n",
        "conftest.py",
    )
    monkeypatch.setenv("FAKE_JIT_CACHE", str(project.path / ".triton"))
    assert project.run_here(*RECORD, "--llmperf-warm-caches").ret == 0
    assert launched(project) == [("none", "")] * 2
    assert caches(project) == [None, None]


def test_keeping_and_spending_are_opposites(project: Project) -> None:
    project.suite(SUITE)
    result = project.run_here("--llmperf-cold", "--llmperf-warm-caches")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--llmperf-cold keeps launches that compiled, --llmperf-warm-caches spends them*"])
