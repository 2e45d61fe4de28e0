from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.baselines import merge, store, toml_text
from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.series import Epoch, Series, StoredLaunch, rounded, seconds, utc
from pytest_llmperf.errors import BaselineError

from .conftest import DAY, PRINT, START, make_launch, path_of

Make = Callable[..., StoredLaunch]
TEST = "tests/perf/test_decode.py::test_single_stream"


def series(*launches: StoredLaunch, test: str = TEST, engine: str = "sglang") -> Series:
    return Series(test, engine, PRINT, (Epoch("first recording", launches or (make_launch(0),)),))


words = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
numbers = st.floats(min_value=1e-300, max_value=1e300, allow_nan=False, allow_infinity=False)
launches = st.builds(
    StoredLaunch,
    id=words,
    recorded=st.integers(0, 4_000_000_000).map(utc),
    host=words,
    cache=st.none() | words,
    metrics=st.dictionaries(words, st.lists(numbers, min_size=1, max_size=5).map(tuple), min_size=1, max_size=3),
    provenance=st.dictionaries(words, st.text(st.characters(exclude_categories=("Cs",)), max_size=20), max_size=3),
)
epochs = st.lists(launches, min_size=1, max_size=6, unique_by=lambda x: x.id).flatmap(
    lambda xs: st.integers(1, len(xs)).map(lambda cut: (xs[:cut], xs[cut:]))
)


@given(words, words, st.dictionaries(words, words), epochs, words)
@settings(max_examples=150, deadline=None)
def test_any_series_survives_the_file(
    test: str, engine: str, fields: dict[str, str], halves: tuple[list[StoredLaunch], list[StoredLaunch]], reason: str
) -> None:
    both = tuple(Epoch(reason, tuple(half)) for half in halves if half)
    before = Series(test, engine, Fingerprint(fields), both)
    written = toml_text.dump(before)
    after = toml_text.parse(written, "x.toml")
    assert after == before
    assert toml_text.dump(after) == written


@given(numbers)
def test_rounding_again_changes_nothing(value: float) -> None:
    assert rounded(rounded(value)) == rounded(value)
    assert abs(rounded(value) / value - 1) < 1e-5


def test_file_reads_well_and_holds_one_line_per_metric(launch: Make) -> None:
    written = toml_text.dump(series(launch(0, 82.51234567, ttft_ms=30.0, cache="warm")))
    assert written.splitlines()[1:] == [
        "schema = 1",
        f'test = "{TEST}"',
        'engine = "sglang"',
        "",
        "[fingerprint]",
        'gpu = "NVIDIA H200"',
        '"gpu count" = "1"',
        '"server.model" = "m"',
        '"workload.output_tokens" = "256"',
        "",
        "[[epochs]]",
        'reason = "first recording"',
        "",
        "[[epochs.launches]]",
        'id = "launch-0000"',
        'recorded = "2026-02-02T02:40:00Z"',
        'host = "h1"',
        'cache = "warm"',
        'provenance = "p6c14e715"',
        "[epochs.launches.metrics]",
        "decode_tok_s = [82.4298, 82.4711, 82.5123, 82.5536, 82.5949]",
        "ttft_ms = [29.97, 29.985, 30.0, 30.015, 30.03]",
        "",
        "[provenance.p6c14e715]",
        'driver = "570"',
    ]


def test_launches_of_one_build_share_their_provenance_and_keep_their_commit(launch: Make) -> None:
    facts = {"driver": "570", "engine version": "0.5.17"}
    launches = [launch(n, provenance={**facts, "commit": f"c{n}"}) for n in range(3)]
    s = series(*launches)
    written = toml_text.dump(s)
    assert written.count('"engine version" = "0.5.17"') == 1
    assert [x.provenance["commit"] for x in toml_text.parse(written, "t").current.launches] == ["c0", "c1", "c2"]
    assert toml_text.parse(written, "t") == s


def test_find_reads_back_what_was_written(tmp_path: Path, launch: Make) -> None:
    one, other = series(launch(1)), replace(series(launch(2)), fingerprint=Fingerprint({"gpu": "NVIDIA L4"}))
    for s in (one, other):
        assert store.write(path_of(tmp_path, s), s)
    assert store.find(tmp_path, TEST, "sglang") == [one, other]
    assert store.find(tmp_path, TEST, "vllm") == []
    assert store.find(tmp_path, TEST + "_two", "sglang") == []
    assert store.find(tmp_path / "missing", TEST, "sglang") == []
    assert list(store.files(tmp_path)) == sorted(path_of(tmp_path, s) for s in (one, other))
    assert list(store.files(tmp_path, "sglang", "l4-x1")) == [path_of(tmp_path, other)]


def test_writing_the_same_again_leaves_the_file_alone(tmp_path: Path) -> None:
    path = path_of(tmp_path, series())
    store.write(path, series())
    os.utime(path, ns=(1, 1))
    assert not store.write(path, store.read(path))
    assert path.stat().st_mtime_ns == 1
    assert [p.name for p in path.parent.iterdir()] == [path.name]


IDS = [
    "t.py::test_a",
    "t.py::test_A",
    "t.py::test_a[1]",
    "t.py::test_a[1-2]",
    "t.py::test_a[1_2]",
    "t.py::test_a[1 2]",
    "t.py::test_a[é]",
    "t.py::test_a[☃]",
    "t.py::test_a[☂]",
    "t.py::test_a[../../x]",
    "t.py::TestA::test_a",
    "t.py::Testa::test_a",
    "t.py::test_" + "a" * 300,
    "t.py::test_" + "a" * 299 + "b",
    "T.py::test_a",
    "../t.py::test_a",
    "/t.py::test_a",
    "t/py.py::test_a",
    "t.py",
    "t/t.py::test_a",
    "",
]


def test_every_test_has_its_own_safe_place(tmp_path: Path) -> None:
    places = [store.place(tmp_path, test, "sglang") for test in IDS]
    assert len({str(p).lower() for p in places}) == len(IDS)
    for place in places:
        assert all(0 < len(part) <= 80 for part in place.relative_to(tmp_path).parts)
        assert str(place.relative_to(tmp_path)).replace("/", "a").replace("-", "a").replace("_", "a").isalnum()
        assert str(place).isascii()
        assert ".." not in place.parts


@given(st.lists(st.text(max_size=100), unique=True, min_size=2, max_size=20))
def test_distinct_names_have_distinct_slugs(names: list[str]) -> None:
    assert len({store.slug(n) for n in names}) == len(names)


def _without(t: str, start: str) -> str:
    """A file's text from ``start`` to the provenance cut out."""
    return t[: t.index(start)] + t[t.index("[provenance") :]


def _launch_of(t: str) -> str:
    return t[t.index("[[epochs.launches]]") : t.index("[provenance")]


BROKEN: list[tuple[str, Callable[[str], str], str]] = [
    ("empty", lambda t: "", "is empty"),
    ("cut off", lambda t: t[: len(t) // 2].rstrip() + "\nx = [", "not valid TOML"),
    ("merge conflict", lambda t: t.replace("[[epochs]]", "<<<<<<< ours\n[[epochs]]", 1), "git conflict"),
    ("other schema", lambda t: t.replace("schema = 1", "schema = 2"), "schema 2"),
    ("schema true", lambda t: t.replace("schema = 1", "schema = true"), "schema True"),
    ("400 digits", lambda t: t.replace("82.5,", f"{'9' * 400},"), "beyond any measurement"),
    ("5000 digits", lambda t: t.replace("82.5,", f"{'9' * 5000},"), "not valid TOML"),
    ("unknown key", lambda t: t.replace("schema = 1", "schema = 1\nthreshold = 5"), "unknown key 'threshold'"),
    ("unknown launch key", lambda t: t.replace('host = "h1"', 'host = "h1"\nnode = "x"'), "unknown key 'node'"),
    ("zero", lambda t: t.replace("82.5]", "0]").replace("82.5,", "0,"), "decode_tok_s holds 0"),
    ("negative", lambda t: t.replace("82.5,", "-82.5,"), "decode_tok_s holds -82.5"),
    ("nan", lambda t: t.replace("82.5,", "nan,"), "decode_tok_s holds nan"),
    ("infinite", lambda t: t.replace("82.5,", "inf,"), "decode_tok_s holds inf"),
    ("text value", lambda t: t.replace("82.5,", '"82.5",'), "must be a list of numbers"),
    ("no values", lambda t: t.replace("[82.4175, 82.4588, 82.5, 82.5412, 82.5825]", "[]"), "no value at all"),
    ("no metrics", lambda t: "\n".join(x for x in t.splitlines() if "decode" not in x), "holds no metric"),
    ("no epochs", lambda t: _without(t, "[[epochs]]"), "holds no epochs"),
    ("no launches", lambda t: _without(t, "[[epochs.launches]]"), "holds no launches"),
    ("no test", lambda t: t.replace(f'test = "{TEST}"', "test = 3"), "needs test as text"),
    ("bad time", lambda t: t.replace("2026-02-02T02:40:00Z", "yesterday"), "is not a time"),
    ("impossible time", lambda t: t.replace("2026-02-02T02:40:00Z", "2026-13-02T02:40:00Z"), "is not a time"),
    ("launch twice", lambda t: t.replace("[provenance", _launch_of(t) + "[provenance"), "launch-0000 is stored twice"),
    ("provenance gone", lambda t: t.replace("[provenance.p", "[provenance.q"), "is not in the file"),
    ("deep nesting", lambda t: t + "x = " + "[" * 5000, "not valid TOML"),
]


@pytest.mark.parametrize(("breakage", "says"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_a_broken_file_is_named_and_left_alone(tmp_path: Path, breakage: Callable[[str], str], says: str) -> None:
    path = path_of(tmp_path, series())
    store.write(path, series())
    broken = breakage(path.read_text())
    path.write_text(broken)
    with pytest.raises(BaselineError) as caught:
        store.find(tmp_path, TEST, "sglang")
    assert str(path) in str(caught.value)
    assert says in str(caught.value)
    assert "record again with --update-baselines" in str(caught.value)
    assert path.read_text() == broken


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = path_of(tmp_path, series())
    store.write(path, series())
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BaselineError, match=f"{path} is not UTF-8"):
        store.find(tmp_path, TEST, "sglang")


def test_a_file_in_the_wrong_place_is_named(tmp_path: Path) -> None:
    path = path_of(tmp_path, series(test="t.py::test_old"))
    store.write(path, series(test="t.py::test_old"))
    path.parent.rename(path.parent.with_name("test_new"))
    with pytest.raises(BaselineError, match=f"it belongs at {path}"):
        store.find(tmp_path, "t.py::test_new", "sglang")


def test_a_folder_in_the_way_is_an_error_of_ours(tmp_path: Path) -> None:
    path = path_of(tmp_path, series())
    path.mkdir(parents=True)
    with pytest.raises(BaselineError, match="cannot be read"):
        store.find(tmp_path, TEST, "sglang")
    with pytest.raises(BaselineError, match="could not be written"):
        store.write(path, series())


def test_a_name_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    odd = series(test="t_\udcff.py::test_a")
    with pytest.raises(BaselineError, match="rename it"):
        store.write(path_of(tmp_path, odd), odd)


def test_removing_takes_empty_folders_along_and_no_others(tmp_path: Path) -> None:
    one, two = series(test="a/t.py::test_one"), series(test="a/t.py::test_two")
    for s in (one, two):
        store.write(path_of(tmp_path, s), s)
    store.remove(tmp_path, path_of(tmp_path, one))
    assert list(store.files(tmp_path)) == [path_of(tmp_path, two)]
    assert not path_of(tmp_path, one).parent.exists()
    store.remove(tmp_path, path_of(tmp_path, two))
    assert list(tmp_path.iterdir()) == []


def test_a_stale_temporary_file_is_no_baseline_and_goes_away() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = path_of(Path(folder), series())
        path.parent.mkdir(parents=True)
        path.with_name(f".{path.name}.new").write_text("half a fi")
        assert store.find(Path(folder), TEST, "sglang") == []
        store.write(path, series())
        assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_times_are_seconds_of_utc() -> None:
    assert utc(START + DAY) == "2026-02-03T02:40:00Z"
    assert seconds(utc(START)) == START


def test_files_that_named_the_length_of_a_measurement_are_brought_home(tmp_path: Path) -> None:
    """It was part of the fingerprint once."""
    old = Fingerprint({**PRINT.fields, "workload.repetitions": "10", "workload.precision": "0.005"})
    aside, folder = tmp_path / "old", tmp_path / "new"
    path = store.path_of(aside, TEST, "sglang", old)
    store.write(path, replace(series(), fingerprint=old))
    with pytest.raises(BaselineError, match=r"written by an earlier version.*`llmperf baselines merge OLD_FOLDER`"):
        store.find(aside, TEST, "sglang")
    merge.into(folder, [aside], tmp_path)
    [found] = store.find(folder, TEST, "sglang")
    assert found.fingerprint == PRINT
    assert found.current.ids == series().current.ids
