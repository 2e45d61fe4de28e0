"""``--update-baselines``: what is stored, what is refused, and which baselines nobody uses any more."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_llmperf.baselines import store
from pytest_llmperf.baselines.series import Series
from tests.plugin.conftest import SUITE, Project

UPDATE = "--update-baselines"


def stored(project: Project) -> Series:
    [only] = store.files(project.path / "baselines")
    return store.read(only)


def test_agreeing_launches_are_added(recorded: Project) -> None:
    before = stored(recorded).current.ids
    result = recorded.run_here(UPDATE)
    assert result.ret == 0, result.outlines
    assert recorded.result["verdict"] == "passed"
    assert stored(recorded).current.ids == before | {recorded.result["launches"][0]["id"]}
    assert "update: test_perf.py::test_decode [sglang]: added 1 launch" in recorded.messages
    assert len(stored(recorded).epochs) == 1


def test_with_warm_caches_the_launch_that_compiles_is_left_out(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LAUNCH_FACTORS", "0.2,1,1")
    project.suite(SUITE)
    result = project.run_here(UPDATE, "--launches", "2", "--llmperf-warm-caches")
    assert result.ret == 0, result.outlines
    assert project.launches == 3
    launches = project.result["launches"]
    assert len(launches) == 2
    assert max(x["value"] for x in launches) / min(x["value"] for x in launches) < 2
    assert stored(project).current.ids == {x["id"] for x in launches}


def test_gating_writes_nothing(recorded: Project) -> None:
    before = recorded.baselines
    recorded.run_here()
    assert recorded.baselines == before


def test_a_regression_is_refused_until_it_is_accepted(recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SLOWDOWN", "0.6")
    before = recorded.baselines
    result = recorded.run_here(UPDATE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)
    assert "regressed; to accept that, add --accept-regression 'why it is right'" in recorded.messages
    assert recorded.baselines == before
    result = recorded.run_here(UPDATE, "--accept-regression", "FP8 is off on purpose")
    assert result.ret == 0, result.outlines
    assert "new epoch" in recorded.messages
    assert "accepted by --update-baselines --accept-regression: FP8 is off on purpose" in recorded.result["reasons"]
    assert len(stored(recorded).epochs) == 2
    assert stored(recorded).current.reason == "accepted regression of decode_tok_s: FP8 is off on purpose"
    result = recorded.run_here()
    assert result.ret == 0, result.outlines
    assert recorded.result["baseline"]["launches"] == len(stored(recorded).current.launches)


def test_measuring_again_until_it_is_green_records_nothing(recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate that was red counts too: the next green session at that commit records nothing, one at the next does."""
    for words in ("init -q .", "add .", "commit -qm base --allow-empty"):
        subprocess.run(
            ["git", "-c", "user.name=x", "-c", "user.email=x@y", *words.split()], cwd=recorded.path, check=True
        )
    before = recorded.baselines
    monkeypatch.setenv("FAKE_SLOWDOWN", "0.6")
    assert recorded.run_here().ret == pytest.ExitCode.TESTS_FAILED
    monkeypatch.delenv("FAKE_SLOWDOWN")
    assert recorded.run_here(UPDATE).ret == 0
    assert "refused: test_perf.py::test_decode [sglang]: not recorded: attempt 2 at the same source" in (
        recorded.messages
    )
    assert recorded.baselines == before
    recorded.suite(SUITE + "# mended\n")
    assert recorded.run_here(UPDATE).ret == 0
    assert "added 1 launch" in recorded.messages


def test_an_improvement_starts_a_new_epoch(recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SLOWDOWN", "1.5")
    assert recorded.run_here(UPDATE).ret == 0
    assert "new epoch with 3 launches (decode_tok_s improved); the old one is kept" in recorded.messages
    assert len(stored(recorded).epochs) == 2
    assert recorded.run_here().ret == 0
    assert recorded.result["verdict"] == "passed"


def test_a_suspect_that_was_noise_is_stored_with_its_other_launches(
    wobbly: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaving the odd one out would make the baseline look steadier than launches are."""
    monkeypatch.setenv("FAKE_LAUNCH_FACTORS", "0.79,1,1")
    assert wobbly.run_here(UPDATE).ret == 0
    assert len(stored(wobbly).current.launches) == 6


def test_workers_hand_over_and_one_process_writes(project: Project) -> None:
    project.suite(SUITE + SUITE.partition("\n\n\n")[2].replace("test_decode", "test_other"))
    project.suite(SUITE.replace("fake-model", "other-model"), "test_more.py")
    result = project.run(UPDATE, "-n", "2")
    assert result.ret == 0, result.outlines
    assert len(project.baselines) == 3
    assert project.messages.count("recorded 1 launch (first recording)") == 3
    assert project.launches == 2


def test_a_baseline_that_cannot_be_written_is_no_success(project: Project) -> None:
    """Its folder's place is taken while the test runs; what is in the way before is told before."""
    project.suite(SUITE + '    import pathlib; pathlib.Path("baselines").write_text("in the way")\n')
    result = project.run_here(UPDATE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*error: *baselines*"])
    assert "Traceback" not in str(result.stdout) + str(result.stderr)


def test_an_interrupted_run_records_what_it_has(project: Project) -> None:
    project.suite(SUITE + "\n\ndef test_stop(llm_server):\n    raise KeyboardInterrupt\n")
    result = project.run(UPDATE)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert len(project.baselines) == 1


def test_a_server_that_is_kept_is_never_counted_twice(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch, however many runs use it; and what an earlier run has sent to it does not make prompts cached."""
    try:
        # in a process of its own: what it leaves up is nobody's child when it has ended
        assert project.run(UPDATE, "--keep-servers").ret == 0
        assert "note: sglang fake-model: left up at http://127.0.0.1:" in project.messages
        before = project.baselines
        result = project.run_here(UPDATE, "--keep-servers")
        assert project.launches == 1
        assert project.baselines == before
        [server] = project.report["servers"]
        assert server["launches"][0]["reused"]
        result = project.run_here("--keep-servers", "-rs")
        result.assert_outcomes(skipped=1)
        assert "the only stored launches are these very ones" in project.result["reasons"][0]
        assert project.launches == 1
    finally:
        stop = "from pytest_llmperf.cli.main import main; raise SystemExit(main())"
        subprocess.run([sys.executable, "-c", stop, "servers", "stop"], check=True, timeout=60)
    project.wait_until_nothing_runs()


@pytest.fixture
def grown(recorded: Project) -> Project:
    """Baselines of a test that is there, one that was renamed, one of a module that is gone, one in a folder."""
    recorded.clone(
        "test_perf.py::test_decoder", "test_gone.py::test_x", "deep/test_y.py::test_y", "deep/test_y.py::test_z"
    )
    recorded.suite("def test_plain(): pass\n", "test_plain.py")
    recorded.suite(SUITE.replace("test_decode", "test_y"), "deep/test_y.py")
    return recorded


def unused(project: Project, *args: str) -> str:
    project.run_here("--llmperf-level", "0.05", *args)
    return "\n".join(line for line in project.messages.splitlines() if line.startswith("unused: "))


def test_unused_and_renamed_baselines_are_said(grown: Project) -> None:
    (grown.path / "test_perf.py").write_text(SUITE.replace("test_decode", "test_decodes"))
    said = unused(grown)
    assert "unused: 4 baseline files of no collected test, like baselines/sglang/" in said
    assert "llmperf baselines rename 'test_perf.py::test_decode' 'test_perf.py::test_decodes'" in said


@pytest.mark.parametrize(
    ("args", "count"),
    [
        ((), 3),
        (("test_perf.py",), 1),
        (("deep",), 1),
        (("deep", "test_perf.py"), 2),
        (("test_perf.py::test_decode",), 0),
        (("--deselect", "deep"), 3),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_only_of_what_was_collected(grown: Project, args: tuple[str, ...], count: int) -> None:
    """A test that was not selected is not gone, and nothing can be said of a folder that was not looked into."""
    said = unused(grown, *args, "-k", "plain")  # selects nothing that measures
    assert said.count("unused: ") == bool(count), said
    if count:
        assert f"unused: {count} baseline file{'s' if count > 1 else ''} of no collected test" in said
