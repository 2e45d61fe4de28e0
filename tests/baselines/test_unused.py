from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmperf.baselines import store, unused
from pytest_llmperf.baselines.series import Epoch, Series
from pytest_llmperf.baselines.unused import Renamed
from pytest_llmperf.errors import BaselineError

from .conftest import PRINT, make_launch, path_of


def put(folder: Path, *tests: str, engine: str = "sglang", launch: int = 0) -> list[Path]:
    every = [Series(t, engine, PRINT, (Epoch("first recording", (make_launch(launch),)),)) for t in tests]
    for series in every:
        store.write(path_of(folder, series), series)
    return [path_of(folder, series) for series in every]


def on(*tests: str, engine: str = "sglang") -> list[tuple[str, str]]:
    return [(t, engine) for t in tests]


def test_a_baseline_without_its_test_is_unused(tmp_path: Path) -> None:
    _, gone = put(tmp_path, "a.py::test_x", "a.py::test_gone")
    put(tmp_path, "a.py::test_gone", engine="vllm")
    assert unused.unused(tmp_path, on("a.py::test_x", "a.py::test_new")) == [gone]
    assert unused.unused(tmp_path, []) == []
    assert unused.unused(tmp_path / "none", on("a.py::test_x")) == []


def test_looking_for_unused_ones_opens_no_file(tmp_path: Path) -> None:
    (path,) = put(tmp_path, "a.py::test_x")
    path.write_text("broken")
    assert unused.unused(tmp_path, on("a.py::test_y")) == [path]


def test_a_renamed_or_moved_test_is_recognised(tmp_path: Path) -> None:
    put(tmp_path, "a.py::test_single_stream", "old/b.py::test_long[4k]", "a.py::test_kept", "a.py::test_removed")
    collected = on(
        "a.py::test_single_stream_decode", "new/b.py::test_long[4k]", "a.py::test_kept", "c.py::test_unlike_anything"
    )
    assert unused.renamed(tmp_path, collected) == [
        Renamed("old/b.py::test_long[4k]", "new/b.py::test_long[4k]", "sglang"),
        Renamed("a.py::test_single_stream", "a.py::test_single_stream_decode", "sglang"),
    ]


def test_one_new_name_is_offered_to_one_old_test_only(tmp_path: Path) -> None:
    put(tmp_path, "a.py::test_decode_a", "a.py::test_decode_b")
    found = unused.renamed(tmp_path, on("a.py::test_decode_ab"))
    assert [r.new for r in found] == ["a.py::test_decode_ab"]


def test_renaming_moves_every_engine_and_keeps_the_launches(tmp_path: Path, state: Path) -> None:
    put(tmp_path, "a.py::test_old")
    put(tmp_path, "a.py::test_old", engine="vllm")
    said = unused.rename(tmp_path, "a.py::test_old", "b/c.py::test_new", state)
    assert len(said) == 2
    assert said[0].startswith("sglang/a/test_old/h200-x1--")
    for engine in ("sglang", "vllm"):
        (series,) = store.find(tmp_path, "b/c.py::test_new", engine)
        assert series.current.launches == (make_launch(0),)
    assert {p.parent.parent.parent.name for p in store.files(tmp_path)} == {"b"}


def test_renaming_onto_a_recorded_test_merges(tmp_path: Path, state: Path) -> None:
    put(tmp_path, "a.py::test_old")
    put(tmp_path, "a.py::test_new", launch=1)
    unused.rename(tmp_path, "a.py::test_old", "a.py::test_new", state)
    (series,) = store.find(tmp_path, "a.py::test_new", "sglang")
    assert [x.id for x in series.current.launches] == ["launch-0000", "launch-0001"]


def test_renaming_a_module_takes_all_its_tests_along(tmp_path: Path, state: Path) -> None:
    put(tmp_path, "a.py::test_x", "a.py::test_y[1]", "ab.py::test_x")
    unused.rename(tmp_path, "a.py", "z.py", state)
    assert sorted(store.read(p).test for p in store.files(tmp_path)) == [
        "ab.py::test_x", "z.py::test_x", "z.py::test_y[1]",
    ]  # fmt: skip


@pytest.mark.parametrize("old", ["a.py::test_none", "a.py::test_x"])
def test_nothing_to_rename_is_an_error(tmp_path: Path, state: Path, old: str) -> None:
    put(tmp_path, "a.py::test_x")
    with pytest.raises(BaselineError, match="no baseline of"):
        unused.rename(tmp_path, old, "a.py::test_x", state)
    assert store.find(tmp_path, "a.py::test_x", "sglang")


def test_pruning_removes_exactly_what_it_was_given(tmp_path: Path, state: Path) -> None:
    kept, gone = put(tmp_path, "a.py::test_x", "b.py::test_gone")
    assert unused.prune(tmp_path, [gone], state) == [f"removed {gone.relative_to(tmp_path)}"]
    assert list(store.files(tmp_path)) == [kept]
    assert not (tmp_path / "sglang" / "b").exists()
