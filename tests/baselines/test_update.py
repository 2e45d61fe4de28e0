from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.baselines import store, toml_text, update
from pytest_llmperf.baselines.series import KEEP_EPOCHS, KEEP_FIRST, KEEP_LAUNCHES, Epoch, Series, merged
from pytest_llmperf.baselines.update import Change, Fresh, Refusal, plan
from pytest_llmperf.errors import BaselineError
from tests.conftest import wait_for

from .conftest import PRINT, make_launch, path_of

TEST = "tests/perf/test_decode.py::test_single_stream"


def fresh(*numbers: int, test: str = TEST, value: float = 82.5, **verdicts: str) -> Fresh:
    launches = tuple(make_launch(n, value) for n in numbers)
    return Fresh(test, "sglang", PRINT, launches, verdicts or {"decode_tok_s": "passed"})


def record(folder: Path, state: Path, item: Fresh, **how: Any) -> list[str]:
    """Plan against what is stored and apply, as a session does."""
    stored = store.find(folder, item.test, item.engine)
    change = plan(stored[0] if stored else None, item, **how)
    return update.apply(folder, [change], state) if isinstance(change, Change) else [str(change)]


def stored(folder: Path, test: str = TEST) -> Series:
    (series,) = store.find(folder, test, "sglang")
    return series


def ids(epoch: Epoch) -> list[int]:
    return [int(x.id[-4:]) for x in epoch.launches]


def test_a_new_test_is_recorded(tmp_path: Path, state: Path) -> None:
    said = record(tmp_path, state, fresh(1, 2, decode_tok_s="no_baseline"))
    assert said == [f"{TEST} [sglang]: recorded 2 launches (first recording)"]
    assert ids(stored(tmp_path).current) == [1, 2]


def test_a_recording_that_mixes_cold_and_warm_caches_says_so(tmp_path: Path, state: Path) -> None:
    def began(number: int, cache: str | None) -> Fresh:
        return replace(fresh(number), launches=(replace(make_launch(number), cache=cache),))

    for number, cache in enumerate((None, "cold", "cold"), start=1):
        assert "cache" not in record(tmp_path, state, began(number, cache))[0]
    for number, cache in enumerate(("warm", "warm"), start=4):
        (said,) = record(tmp_path, state, began(number, cache))
        assert f"added 1 launch; it now has {number} launches, of which 2 compiled their kernels" in said
        assert "`llmperf baselines drop " in said


def test_launches_that_agree_are_added(tmp_path: Path, state: Path) -> None:
    record(tmp_path, state, fresh(1))
    assert record(tmp_path, state, fresh(2, 3)) == [f"{TEST} [sglang]: added 2 launches"]
    assert [ids(e) for e in stored(tmp_path).epochs] == [[1, 2, 3]]


def test_an_improvement_starts_an_epoch_and_keeps_the_old_one(tmp_path: Path, state: Path) -> None:
    record(tmp_path, state, fresh(1, 2))
    before = path_of(tmp_path, stored(tmp_path)).read_text()
    (said,) = record(tmp_path, state, fresh(3, value=90, decode_tok_s="improved", ttft_ms="passed"))
    assert "new epoch with 1 launch (decode_tok_s improved); the old one is kept" in said
    assert [ids(e) for e in stored(tmp_path).epochs] == [[1, 2], [3]]
    assert path_of(tmp_path, stored(tmp_path)).read_text().startswith(before.partition("\n[provenance")[0])


def test_a_regression_needs_a_reason(tmp_path: Path, state: Path) -> None:
    record(tmp_path, state, fresh(1))
    slow = fresh(2, value=70, decode_tok_s="regressed", ttft_ms="improved")
    path = path_of(tmp_path, stored(tmp_path))
    before = path.read_bytes()
    for blank in (None, "", "  "):
        (said,) = record(tmp_path, state, slow, accept_regression=blank)
        assert "not recorded: decode_tok_s regressed; to accept that, add --accept-regression" in said
    assert path.read_bytes() == before
    (said,) = record(tmp_path, state, slow, accept_regression="safer kernels")
    assert stored(tmp_path).current.reason == "accepted regression of decode_tok_s: safer kernels"
    assert [ids(e) for e in stored(tmp_path).epochs] == [[1], [2]]


@pytest.mark.parametrize("verdict", ["invalid", "inconclusive"])
@pytest.mark.parametrize("other", ["passed", "improved", "regressed", "no_baseline"])
def test_doubtful_results_are_never_stored(verdict: str, other: str) -> None:
    item = fresh(1, decode_tok_s=verdict, ttft_ms=other)
    for series in (None, Series(TEST, "sglang", PRINT, (Epoch("x", (make_launch(0),)),))):
        refusal = plan(series, item, accept_regression="please", force=True)
        assert isinstance(refusal, Refusal)
        assert f"decode_tok_s {verdict}" in str(refusal)


def test_ci_refuses_unless_forced() -> None:
    refusal = plan(None, fresh(1), ci=True)
    assert isinstance(refusal, Refusal)
    assert "--update-baselines=force" in str(refusal)
    assert isinstance(plan(None, fresh(1), ci=True, force=True), Change)


def test_a_result_without_launches_is_refused() -> None:
    assert isinstance(plan(None, fresh()), Refusal)


def test_the_same_launches_again_change_no_byte(tmp_path: Path, state: Path) -> None:
    record(tmp_path, state, fresh(1, 2))
    path = path_of(tmp_path, stored(tmp_path))
    before = path.stat().st_mtime_ns, path.read_bytes()
    for verdict in ("passed", "improved", "no_baseline"):
        (said,) = record(tmp_path, state, fresh(1, 2, decode_tok_s=verdict))
        assert "nothing new" in said
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before


def test_a_reused_launch_counts_once(tmp_path: Path, state: Path) -> None:
    record(tmp_path, state, fresh(1, 2))
    record(tmp_path, state, fresh(2, 3, value=99))
    assert ids(stored(tmp_path).current) == [1, 2, 3]
    assert stored(tmp_path).current.launches[1] == make_launch(2)


def test_epochs_and_launches_are_bounded(tmp_path: Path, state: Path) -> None:
    record(tmp_path, state, fresh(*range(20)))
    record(tmp_path, state, fresh(*range(20, 50)))
    kept = ids(stored(tmp_path).current)
    assert kept == [*range(KEEP_FIRST), *range(50 - (KEEP_LAUNCHES - KEEP_FIRST), 50)]
    for n in range(50, 60):
        record(tmp_path, state, fresh(n, decode_tok_s="improved"))
    assert [ids(e) for e in stored(tmp_path).epochs] == [[n] for n in range(60 - KEEP_EPOCHS, 60)]


def test_nothing_but_the_baseline_appears_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "repository" / "baselines"
    record(folder, tmp_path / "state", fresh(1))
    assert [p for p in folder.rglob("*") if p.is_file()] == [path_of(folder, stored(folder))]


def test_fresh_results_travel_as_json() -> None:
    item = fresh(1, 2, decode_tok_s="improved")
    assert Fresh.from_json(json.loads(json.dumps(item.to_json()))) == item


# -- what another run wrote between plan and apply


def test_two_first_recordings_share_an_epoch(tmp_path: Path, state: Path) -> None:
    plans = [plan(None, fresh(n, decode_tok_s="no_baseline")) for n in (1, 2)]
    for change in plans:
        assert isinstance(change, Change)
        update.apply(tmp_path, [change], state)
    assert [ids(e) for e in stored(tmp_path).epochs] == [[1, 2]]


def test_two_improvements_over_one_epoch_share_the_next(tmp_path: Path, state: Path) -> None:
    record(tmp_path, state, fresh(1))
    plans = [plan(stored(tmp_path), fresh(n, decode_tok_s="improved")) for n in (2, 3)]
    update.apply(tmp_path, [p for p in plans if isinstance(p, Change)], state)
    assert [ids(e) for e in stored(tmp_path).epochs] == [[1], [2, 3]]


def test_launches_that_agreed_with_an_epoch_stay_with_it(tmp_path: Path, state: Path) -> None:
    record(tmp_path, state, fresh(1))
    late = plan(stored(tmp_path), fresh(3))
    record(tmp_path, state, fresh(2, value=90, decode_tok_s="improved"))
    assert isinstance(late, Change)
    update.apply(tmp_path, [late], state)
    assert [ids(e) for e in stored(tmp_path).epochs] == [[1, 3], [2]]


# -- merging two versions of a file (branches, machines)

numbers = st.lists(st.integers(0, 40), unique=True, max_size=40)


@given(st.lists(st.integers(0, 9), unique=True, min_size=1), numbers, numbers)
@settings(deadline=None)
def test_merging_is_a_union_in_any_order(base: list[int], ours: list[int], theirs: list[int]) -> None:
    root = Series(TEST, "sglang", PRINT, (_epoch(base),))
    a = root.extending(root.current.ids, map(make_launch, ours))
    b = root.extending(root.current.ids, map(make_launch, theirs))
    both = merged(a, b)
    assert toml_text.dump(both) == toml_text.dump(merged(b, a))
    assert toml_text.dump(merged(both, b)) == toml_text.dump(both)
    union = sorted({*base, *ours, *theirs})
    if len(union) <= KEEP_LAUNCHES:
        assert ids(both.current) == union


def _epoch(base: list[int], reason: str = "first recording") -> Epoch:
    return Epoch(reason, ()).plus(map(make_launch, base))


def sides(ids_: list[int], cuts: list[int]) -> Series:
    """A series whose epochs hold ``ids_`` cut at ``cuts``."""
    bounds = sorted({0, *(c % len(ids_) for c in cuts), len(ids_)})
    parts = [sorted(ids_)[low:high] for low, high in pairwise(bounds)]
    return Series(TEST, "sglang", PRINT, tuple(_epoch(p, f"from {p[0]}") for p in parts))


some = st.lists(st.integers(0, 15), unique=True, min_size=1, max_size=10)
cuts = st.lists(st.integers(0, 9), max_size=3)


@given(some, cuts, some, cuts)
@settings(deadline=None, max_examples=300)
def test_any_two_versions_merge_without_loss(a: list[int], at: list[int], b: list[int], bt: list[int]) -> None:
    one, other = sides(a, at), sides(b, bt)
    both = merged(one, other)
    assert toml_text.dump(both) == toml_text.dump(merged(other, one))
    assert toml_text.parse(toml_text.dump(both), "merged") == both
    assert sorted(n for e in both.epochs for n in ids(e)) == sorted({*a, *b})


def test_a_launch_in_two_epochs_stays_in_the_later() -> None:
    improved = Series(TEST, "sglang", PRINT, (_epoch([1]), _epoch([5], "decode_tok_s improved")))
    appended = Series(TEST, "sglang", PRINT, (_epoch([1, 5]),))
    assert [ids(e) for e in merged(appended, improved).epochs] == [[1], [5]]


def test_merging_keeps_every_epoch() -> None:
    base = Series(TEST, "sglang", PRINT, (_epoch([1, 2]),))
    a, b = base.starting(_epoch([5], "decode_tok_s improved")), base.extending(base.current.ids, [make_launch(4)])
    assert [ids(e) for e in merged(a, b).epochs] == [[1, 2, 4], [5]]
    assert merged(a, b) == merged(b, a)


def test_merging_recordings_without_a_common_past_makes_one_epoch() -> None:
    a, b = (Series(TEST, "sglang", PRINT, (_epoch(n),)) for n in ([1, 2], [3]))
    assert [ids(e) for e in merged(b, a).epochs] == [[1, 2, 3]]
    assert merged(a, b) == merged(b, a)


# -- real processes, a full disk

RECORDER = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.baselines.test_update import fresh, plan
from pytest_llmperf.baselines import update
folder, state, numbers = Path(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4])
print("ready", flush=True)
sys.stdin.readline()
for n in numbers:
    update.apply(folder, [plan(None, fresh(n)), plan(None, fresh(n, test="t.py::test_b"))], state)
"""


def start(folder: Path, state: Path, numbers: list[int]) -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[2])
    argv = [sys.executable, "-c", RECORDER, root, str(folder), str(state), json.dumps(numbers)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path, state: Path) -> None:
    writers = [start(tmp_path / "b", state, list(range(first, 30, 2))) for first in (0, 1)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    for test in (TEST, "t.py::test_b"):
        assert ids(stored(tmp_path / "b", test).current) == list(range(30))


def test_a_killed_writer_blocks_nobody(tmp_path: Path, state: Path) -> None:
    writer = start(tmp_path, state, list(range(10_000)))
    assert writer.stdin is not None
    writer.stdin.write("go\n")
    writer.stdin.flush()
    path = store.place(tmp_path, "t.py::test_b", "sglang")
    wait_for(lambda: path.exists() and any(path.iterdir()), "a file of test_b", 30.0)
    writer.kill()
    writer.communicate()
    record(tmp_path, state, fresh(9_999))
    assert ids(stored(tmp_path).current)[-1] == 9_999


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.baselines.test_update import BaselineError, fresh, plan, update
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1400, resource.RLIM_INFINITY))
big, small = fresh(*range(2, 9)), fresh(1, test="t.py::test_b")
try:
    update.apply(Path(sys.argv[2]), [plan(None, big), plan(None, small)], Path(sys.argv[3]))
except BaselineError as error:
    print(error)
"""


def test_a_full_disk_loses_nothing(tmp_path: Path, state: Path) -> None:
    record(tmp_path / "b", state, fresh(1))
    path = path_of(tmp_path / "b", stored(tmp_path / "b"))
    before = path.read_bytes()
    argv = [sys.executable, "-c", FULL_DISK, str(Path(__file__).parents[2]), str(tmp_path / "b"), str(state)]
    said = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert f"1 of 2 baselines not recorded:\n  {path} could not be written: File too large" in said
    assert "t.py::test_b [sglang]: recorded 1 launch" in said
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert ids(stored(tmp_path / "b", "t.py::test_b").current) == [1]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, state: Path) -> None:
    (tmp_path / "baselines").write_text("a file")
    with pytest.raises(BaselineError, match="could not be written"):
        record(tmp_path / "baselines", state, fresh(1))
    (tmp_path / "not-a-folder").write_text("")
    with pytest.raises(BaselineError, match=r"lock .* cannot be taken"):
        record(tmp_path, tmp_path / "not-a-folder", fresh(1))


def test_a_file_that_broke_meanwhile_is_left_alone(tmp_path: Path, state: Path) -> None:
    record(tmp_path, state, fresh(1))
    change = plan(stored(tmp_path), fresh(2))
    path = path_of(tmp_path, stored(tmp_path))
    path.write_text("<<<<<<< ours\n")
    assert isinstance(change, Change)
    with pytest.raises(BaselineError, match="git conflict"):
        update.apply(tmp_path, [change], state)
    assert path.read_text() == "<<<<<<< ours\n"
