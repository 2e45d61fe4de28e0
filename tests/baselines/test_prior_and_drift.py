from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_llmperf.baselines import drift, fitted_priors, store
from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.series import Epoch, Series
from pytest_llmperf.measure.metrics import METRICS
from pytest_llmperf.stats import Prior

from .conftest import PRINT, make_launch, path_of

USUAL = Prior(s0=0.006)


def fill(folder: Path, spread: float, count: int = 40, fingerprint: Fingerprint = PRINT, hosts: int = 1) -> None:
    """``count`` series of five launches of their own, whose values differ by ``spread`` (standard deviation of
    logs)."""
    rng = random.Random(1)
    for i in range(count):
        launches = tuple(
            replace(
                make_launch(n, 100 * (1 + rng.gauss(0, spread)) * (1 + 0.2 * (n % hosts)), host=f"h{n % hosts}"),
                id=f"launch-{i}-{n}",
            )
            for n in range(5 * hosts)
        )
        series = Series(f"t.py::test_{i}", "sglang", fingerprint, (Epoch("first recording", launches),))
        store.write(path_of(folder, series), series)


@pytest.mark.parametrize("spread", [0.002, 0.012])
def test_prior_is_what_the_stored_series_show(tmp_path: Path, state: Path, spread: float) -> None:
    fill(tmp_path, spread)
    found = fitted_priors.fit(tmp_path, "sglang", PRINT, 0.006, state)
    assert found.of(METRICS["decode_tok_s"], 0.006).s0 == pytest.approx(spread, rel=0.2)
    assert found.of(METRICS["ttft_ms"], 0.006) == Prior(s0=0.12), "times to the first token differ by more"
    assert found.of(METRICS["ttft_ms"], 0.2) == Prior(s0=0.2)
    assert (found.files, found.broken) == (40, ())


def test_hosts_that_differ_do_not_widen_the_launch_spread(tmp_path: Path, state: Path) -> None:
    fill(tmp_path, 0.004, hosts=2)
    assert fitted_priors.fit(tmp_path, "sglang", PRINT, 0.006, state).of(
        METRICS["decode_tok_s"], 0.006
    ).s0 == pytest.approx(0.004, rel=0.2)


def test_other_hardware_and_engines_say_nothing(tmp_path: Path, state: Path) -> None:
    same_label = Fingerprint({**PRINT.fields, "gpu memory": "80 GiB"})
    fill(tmp_path, 0.012, fingerprint=same_label)
    assert fitted_priors.fit(tmp_path, "sglang", PRINT, 0.006, state).of(METRICS["decode_tok_s"], 0.006) == USUAL
    assert fitted_priors.fit(tmp_path, "vllm", same_label, 0.006, state).files == 0
    assert fitted_priors.fit(tmp_path, "sglang", same_label, 0.006, state).of(METRICS["decode_tok_s"], 0.006) != USUAL


def test_an_empty_folder_gives_the_default(tmp_path: Path, state: Path) -> None:
    assert (
        fitted_priors.fit(tmp_path / "none", "sglang", PRINT, 0.006, state).of(METRICS["decode_tok_s"], 0.006) == USUAL
    )


def test_fit_is_cached_by_content_outside_the_folder(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "b", 0.01)
    before = sorted((tmp_path / "b").rglob("*"))
    first = fitted_priors.fit(tmp_path / "b", "sglang", PRINT, 0.006, state)
    assert sorted((tmp_path / "b").rglob("*")) == before
    parsed = []
    monkeypatch.setattr(fitted_priors, "parse", lambda *a: parsed.append(a))
    for path in store.files(tmp_path / "b"):
        path.touch()
    assert fitted_priors.fit(tmp_path / "b", "sglang", PRINT, 0.006, state) == first
    assert not parsed
    monkeypatch.undo()
    fill(tmp_path / "b", 0.015)
    assert fitted_priors.fit(tmp_path / "b", "sglang", PRINT, 0.006, state) != first


def test_a_spoilt_or_unwritable_cache_costs_time_only(tmp_path: Path, state: Path) -> None:
    fill(tmp_path / "b", 0.01)
    first = fitted_priors.fit(tmp_path / "b", "sglang", PRINT, 0.006, state)
    for entry in state.iterdir():
        for text in ("", "[]", "{}", '{"digest": 1}', entry.read_text().replace('"d0"', '"d1"')):
            entry.write_text(text)
            assert fitted_priors.fit(tmp_path / "b", "sglang", PRINT, 0.006, state) == first
    (tmp_path / "file").write_text("")
    assert fitted_priors.fit(tmp_path / "b", "sglang", PRINT, 0.006, tmp_path / "file") == first


def test_broken_files_are_named_and_left_out(tmp_path: Path, state: Path) -> None:
    fill(tmp_path, 0.01)
    path = next(store.files(tmp_path))
    path.write_bytes(b"\xff")
    found = fitted_priors.fit(tmp_path, "sglang", PRINT, 0.006, state)
    assert found.broken == (str(path),)
    assert found == fitted_priors.fit(tmp_path, "sglang", PRINT, 0.006, state)


def test_only_a_sample_of_many_files_is_read(tmp_path: Path, state: Path) -> None:
    fill(tmp_path, 0.01, count=fitted_priors.SAMPLE + 10)
    found = fitted_priors.fit(tmp_path, "sglang", PRINT, 0.006, state)
    assert found.files == fitted_priors.SAMPLE
    assert found.of(METRICS["decode_tok_s"], 0.006).s0 == pytest.approx(0.01, rel=0.2)


def test_tests_of_the_same_launches_are_one_piece_of_evidence(tmp_path: Path, state: Path) -> None:
    """Ten tests of one server config: five launches in all, however many series hold them."""
    rng = random.Random(1)
    for i in range(10):
        launches = tuple(make_launch(n, 100 * (1 + rng.gauss(0, 0.03))) for n in range(5))
        series = Series(f"t.py::test_{i}", "sglang", PRINT, (Epoch("first recording", launches),))
        store.write(path_of(tmp_path, series), series)
    assert fitted_priors.fit(tmp_path, "sglang", PRINT, 0.006, state).of(METRICS["decode_tok_s"], 0.006) == USUAL


def test_a_machine_whose_launches_fall_into_two_groups_is_a_finding(tmp_path: Path, state: Path) -> None:
    rng = random.Random(1)
    for i in range(6):
        values = [100 * (1 + rng.gauss(0, 0.003)) * (0.76 if n in (1, 3, 4) else 1) for n in range(6)]
        launches = tuple(replace(make_launch(n, v), id=f"launch-{i}-{n}") for n, v in enumerate(values))
        series = Series(f"t.py::test_{i}", "sglang", PRINT, (Epoch("first recording", launches),))
        store.write(path_of(tmp_path, series), series)
    found = fitted_priors.fit(tmp_path, "sglang", PRINT, 0.006, state)
    assert found.of(METRICS["decode_tok_s"], 0.006).s0 < 0.01, "the groups are no spread to learn"
    assert found.bimodal == {"decode_tok_s": (6, 6)}
    assert "6 of 6 stored series fall into two groups" in found.findings[0]
    assert fitted_priors.fit(tmp_path, "sglang", PRINT, 0.006, state) == found, "from the cache too"
    fill(tmp_path, 0.006)
    assert fitted_priors.fit(tmp_path, "sglang", PRINT, 0.006, state).findings == ()


# -- drift

WOBBLE = (0.0, 0.003, -0.002, 0.002, -0.003)


def drifting(step: float, count: int = 15) -> Series:
    launches = tuple(make_launch(n, 100 * (1 + step) ** n * (1 + WOBBLE[n % 5])) for n in range(count))
    return Series("t.py::test_a", "sglang", PRINT, (Epoch("first recording", launches),))


def test_small_steps_that_add_up_are_reported() -> None:
    fresh = [make_launch(100, 100 * 0.995**15)]
    said = drift.check(drifting(-0.005), "decode_tok_s", fresh)
    assert said is not None
    assert "below the launches of 2026-02-02 to 2026-02-06" in said


def test_noise_and_improvement_are_not_drift() -> None:
    assert drift.check(drifting(0.0), "decode_tok_s", [make_launch(100, 99.8)]) is None
    assert drift.check(drifting(0.005), "decode_tok_s", [make_launch(100, 108)]) is None


@pytest.mark.parametrize(("loss", "said"), [(0.02, False), (0.04, False), (0.30, True)])
def test_hosts_that_differ_are_no_drift(loss: float, said: bool) -> None:
    """Two hosts of one GPU model differ by 4 % and launches by 0.3 %: only what no pair of hosts explains is drift."""
    launches = tuple(
        make_launch(n, 100 * (1 + WOBBLE[n % 5]) * (1 if n < 5 else 1 - loss), host="a" if n < 5 else "b")
        for n in range(9)
    )
    series = Series("t.py::test_a", "sglang", PRINT, (Epoch("first recording", launches),))
    found = drift.check(series, "decode_tok_s", [make_launch(100, 100 * (1 - loss), host="b")], prior=USUAL)
    assert (found is not None) == said


def test_drift_on_one_host_is_seen_among_launches_of_another() -> None:
    """The newest launches alternate between hosts; on the one that the epoch began on, speed has gone."""
    launches = [make_launch(n, 100 * (1 + WOBBLE[n % 5]), host="a") for n in range(5)]
    launches += [make_launch(n, 94 if n % 2 else 104, host="ab"[n % 2 == 0]) for n in range(5, 12)]
    series = Series("t.py::test_a", "sglang", PRINT, (Epoch("first recording", tuple(launches)),))
    assert drift.check(series, "decode_tok_s", [make_launch(100, 94, host="a")], prior=USUAL) is not None
    assert drift.check(series, "decode_tok_s", [make_launch(100, 104, host="b")], prior=USUAL) is None


def test_direction_counts() -> None:
    slower = drifting(0.005)
    said = drift.check(slower, "decode_tok_s", [make_launch(100, 108)], higher_is_better=False)
    assert said is not None
    assert "above" in said


@pytest.mark.parametrize("count", [1, 5, 6])
def test_too_few_launches_say_nothing(count: int) -> None:
    assert drift.check(drifting(-0.05, count), "decode_tok_s", [make_launch(100, 50)]) is None


def test_a_launch_that_is_stored_already_is_not_counted_again() -> None:
    series = drifting(-0.005, 7)
    assert drift.check(series, "decode_tok_s", [series.current.launches[-1]]) is None


def test_a_new_epoch_forgets_the_old_level() -> None:
    fresh_start = replace(
        drifting(-0.005), epochs=(*drifting(-0.005).epochs, Epoch("accepted", (make_launch(50, 92),)))
    )
    assert drift.check(fresh_start, "decode_tok_s", [make_launch(100, 92)]) is None
