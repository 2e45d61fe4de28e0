"""What is measured again until it is green is not recorded; what was recorded and disagrees is named."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_llmperf.baselines import attempts, store
from pytest_llmperf.baselines.attempts import Attempt
from pytest_llmperf.baselines.metric_verdict import GateTerms, verdict_of
from pytest_llmperf.baselines.record_session import SessionRecording, unsteady
from pytest_llmperf.baselines.series import Epoch, Series, StoredLaunch
from pytest_llmperf.baselines.update import Change, Fresh, plan
from pytest_llmperf.cli import main
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.measure.metrics import METRICS
from pytest_llmperf.session.revision import revision
from pytest_llmperf.stats import Prior

from .conftest import PRINT, make_launch
from .test_cli import git

TEST = "t.py::test_a"
A, B = ({"commit": commit, "engine version": "0.5.17"} for commit in ("aaaa", "bbbb"))


def found(number: int, verdict: str = "passed", provenance: dict[str, str] | None = None) -> Fresh:
    launches = (make_launch(number, provenance=A if provenance is None else provenance),)
    return Fresh(TEST, "sglang", PRINT, launches, {"decode_tok_s": verdict})


class Repository:
    """Sessions one after another over the same baselines."""

    def __init__(self, path: Path) -> None:
        self.folder, self.state, self.sessions = path / "baselines", path / "state", 0

    def session(self, fresh: Fresh, *, update: bool = True, accept: str | None = None) -> list[tuple[str, str]]:
        self.sessions += 1
        now = f"2026-05-0{self.sessions}T12:00:00Z"
        how = SessionRecording(self.folder, self.state, now, update, accept_regression=accept)
        return list(how.run([fresh], lambda engine, metric: 0.006))

    @property
    def series(self) -> Series:
        [path] = store.files(self.folder)
        return store.read(path)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path)
    assert made.session(found(0, "no_baseline"))[0][0] == "update"
    return made


@pytest.mark.parametrize("failed", ["regressed", "suspect"])
@pytest.mark.parametrize("update", [True, False])
def test_what_was_slower_is_not_recorded_once_it_is_green(repository: Repository, failed: str, update: bool) -> None:
    repository.session(found(1, failed), update=update)
    before = repository.series
    for number, attempt in ((2, 2), (3, 3)):
        [(kind, said)] = repository.session(found(number, "improved" if number == 2 else "passed"))
        assert kind == "refused"
        assert f"attempt {attempt} at the same source (commit aaaa, engine version 0.5.17, setup " in said
        assert f"on 2026-05-02T12:00:00Z decode_tok_s {failed}" in said
        assert "--accept-regression 'why it is right'" in said
        assert f"llmperf baselines forget '{TEST}'" in said
    assert repository.series == before


def test_another_source_is_another_matter_and_the_first_stays_one(repository: Repository) -> None:
    """As a bisection does: there and back again."""
    repository.session(found(1, "regressed"))
    assert repository.session(found(2, provenance=B))[0][0] == "update"
    changed = ({"engine version": "0.5.18"}, {"driver": "580"}, {"command --flag": "1"}, {"NCCL_PROTO": "LL"})
    for number, other in enumerate(changed, 3):
        assert repository.session(found(number, provenance={**A, **other}))[0][0] == "update"
    assert repository.session(found(8, provenance={**A, "kv tokens": "about 98000"}))[0][0] == "refused"
    assert repository.session(found(9))[0][0] == "refused"


def test_a_reason_accepts_it_and_what_follows_is_normal(repository: Repository) -> None:
    repository.session(found(1, "regressed"))
    [(kind, said)] = repository.session(found(2), accept="batch-invariant kernels")
    assert (kind, "new epoch" in said) == ("update", True)
    assert repository.series.current.reason == (
        "accepted regression of what regressed on 2026-05-02: batch-invariant kernels"
    )
    assert repository.session(found(3)) == [("update", f"{TEST} [sglang]: added 1 launch")]


def test_a_reason_given_at_once_leaves_nothing_behind(repository: Repository) -> None:
    repository.session(found(1, "regressed"), accept="on purpose")
    assert repository.session(found(2))[0][0] == "update"


def test_what_was_put_right_without_a_commit_is_forgotten_on_request(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLMPERF_STATE_DIR", str(repository.state))
    repository.session(found(1, "regressed"))
    where = ["--baselines", str(repository.folder)]
    assert main.main(["baselines", "forget", "t.py::other", *where]) == 1
    assert repository.session(found(2))[0][0] == "refused"
    assert main.main(["baselines", "forget", TEST, *where]) == 0
    assert "2 attempts forgotten" in capsys.readouterr().out
    assert repository.session(found(3))[0][0] == "update"


def test_without_a_commit_one_state_of_the_source_is_not_told_from_the_next(repository: Repository) -> None:
    outside = {"engine version": "0.5.17"}
    repository.session(found(1, "regressed", outside))
    assert repository.session(found(2, provenance=outside))[0][0] == "update"


@pytest.mark.parametrize("verdict", ["invalid", "inconclusive", "not_comparable"])
def test_what_the_machine_spoilt_is_no_attempt(repository: Repository, verdict: str) -> None:
    repository.session(found(1, verdict), update=False)
    assert repository.session(found(2))[0][0] == "update"


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": [{"b": 1}]}'])
def test_a_memory_that_cannot_be_read_is_named(repository: Repository, text: str) -> None:
    repository.session(found(1, "regressed"))
    [kept] = repository.state.glob("attempts-*.json")
    kept.write_text(text)
    with pytest.raises(BaselineError, match=r"attempts-.*\.json holds the failed attempts and cannot be read"):
        repository.session(found(2))


def test_the_memory_is_bounded(tmp_path: Path) -> None:
    many = tuple(Attempt(str(n), "", "") for n in range(attempts.MOST + 5))
    attempts.write(tmp_path, tmp_path, {"a": many, "b": ()})
    assert attempts.read(tmp_path, tmp_path) == {"a": many[5:]}


# -- which source that was


def test_changes_of_tracked_files_make_another_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "perf" / "baselines"
    folder.mkdir(parents=True)
    engine, recorded = tmp_path / "kernel.py", folder / "a.toml"
    assert revision(folder.parent, folder) is None
    git("init", "-q", ".")
    engine.write_text("fast")
    recorded.write_text("1")
    git("add", ".")
    git("commit", "-qm", "base")
    clean = revision(folder.parent, folder)
    assert clean is not None
    assert len(clean) == 12
    recorded.write_text("2")
    (tmp_path / "log").write_text("untracked")
    assert revision(folder.parent, folder) == clean, "baselines are recorded, logs are written: the source is the same"
    seen = [clean]
    for text in ("slow", "slower"):
        engine.write_text(text)
        seen.append(str(revision(folder.parent, folder)))
    assert len(set(seen)) == 3
    assert all(x.startswith(f"{clean}+") for x in seen[1:])
    elsewhere = tmp_path.parent / "baselines"
    assert str(revision(folder.parent, elsewhere)).startswith(f"{clean}+"), "with baselines outside the repository"


# -- what that is worth


def launches(rng: random.Random, level: float, spread: float, numbers: Sequence[int]) -> list[StoredLaunch]:
    return [make_launch(n, 100 * (1 + level) * (1 + rng.gauss(0, spread)), provenance=A) for n in numbers]


def tried(rng: random.Random, *, spread: float, tries: int) -> bool:
    """Whether a loss of 5 % is recorded by measuring again, each time on three launches, at one commit."""
    series = Series(TEST, "vllm", PRINT, (Epoch("first recording", tuple(launches(rng, 0, spread, range(5)))),))
    terms = GateTerms(TEST, TEST, "vllm", "k", METRICS["decode_tok_s"], PRINT, "h1", updating=True)
    terms = replace(terms, prior=Prior(s0=0.015))
    failed: list[Attempt] = []
    for number in range(10, 10 + 10 * tries, 10):
        screened, again = launches(rng, -0.05, spread, range(number, number + 3)), list[StoredLaunch]()
        seen = verdict_of(terms, screened, known=[series], folder=Path("/b"), now=2e9)
        if seen.suspect:
            again = launches(rng, -0.05, spread, range(number + 3, number + 5))
            seen = verdict_of(terms, screened, again, known=[series], folder=Path("/b"), now=2e9)
        fresh = Fresh(TEST, "vllm", PRINT, (*screened, *again), {"decode_tok_s": seen.gate})
        if isinstance(plan(series, fresh, attempts=failed), Change):
            return True
        failed.append(Attempt("one commit", "", seen.gate))
    return False


def test_a_loss_is_not_recorded_by_measuring_again() -> None:
    """Launches that spread by 1.5 % as vLLM's do; nine in ten were recorded within ten tries."""
    rng = random.Random(1)
    assert sum(tried(rng, spread=0.015, tries=10) for _ in range(100)) <= 3


# -- launches that disagree


def usual(spread: float) -> Callable[[str, str], float]:
    return lambda engine, metric: spread


def recorded(*values: float, hosts: str = "h") -> Series:
    stored = tuple(make_launch(n, v, host=hosts[n % len(hosts)]) for n, v in enumerate(values))
    return Series(TEST, "sglang", PRINT, (Epoch("first recording", stored),))


@pytest.mark.parametrize(
    ("values", "off"),
    [
        ((100, 100.4, 99.7, 80), ["launch-0003"]),
        ((100, 92), ["launch-0000", "launch-0001"]),
        ((100, 76, 100.2, 76.3, 99.8), ["launch-0001", "launch-0003"]),
    ],
    ids=["one is odd", "two disagree", "two groups"],
)
def test_launches_that_disagree_far_more_than_usual_are_named(values: tuple[float, ...], off: list[str]) -> None:
    [said] = unsteady(recorded(*values), usual(0.006))
    assert f"the {len(values)} launches now recorded spread by" in said
    assert "where 0.60% is usual" in said
    assert f"`llmperf baselines drop {' '.join(off)}` and record again on a quiet host" in said


def test_launches_that_agree_and_hosts_that_differ_are_no_matter() -> None:
    assert not [*unsteady(recorded(100, 101, 99, 100.5), usual(0.006))]
    assert not [*unsteady(recorded(100, 90, 100.3, 90.2, hosts="ab"), usual(0.006))]
    assert not [*unsteady(recorded(100), usual(0.006))]
    assert not [*unsteady(recorded(100, 92), usual(0.07))], "what is usual is the engine's"


def test_a_recording_says_it(repository: Repository) -> None:
    slow = replace(found(1), launches=(make_launch(1, 60.0, provenance=A),))
    kinds = [kind for kind, _ in repository.session(slow)]
    assert kinds == ["update", "warning"]
