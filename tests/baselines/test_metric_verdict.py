from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.metric_verdict import GateTerms, MetricVerdict, verdict_of
from pytest_llmperf.baselines.series import Epoch, Series, StoredLaunch
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.measure.metrics import METRICS, Guard
from pytest_llmperf.records.results import VERDICTS, Result
from pytest_llmperf.records.text import percent
from pytest_llmperf.report import summary
from pytest_llmperf.report.explain import explain
from pytest_llmperf.stats import Prior

from .conftest import DAY, PRINT, START, make_launch

FOLDER = Path("/b")
TERMS = GateTerms("t.py::test_a[sglang]", "t.py::test_a", "sglang", "k", METRICS["decode_tok_s"], PRINT, "h1")
#: Launch-to-launch wobble that repeats: about 0.5 %.
WOBBLE = (0.0, 0.006, -0.004, 0.003, -0.006)


def series(count: int = 5, value: float = 82.5, **more: Any) -> Series:
    launches = tuple(make_launch(n, value * (1 + WOBBLE[n % 5]), **more) for n in range(count))
    return Series("t.py::test_a", "sglang", PRINT, (Epoch("first recording", launches),))


def judged(
    fresh: Sequence[StoredLaunch], confirmed: Sequence[StoredLaunch] = (), terms: GateTerms = TERMS, **more: Any
) -> MetricVerdict:
    given: dict[str, Any] = {"known": [series()], "folder": FOLDER, "now": START + 10 * DAY, **more}
    return verdict_of(terms, fresh, confirmed, **given)


def at(value: float, n: int = 100, **more: Any) -> StoredLaunch:
    return make_launch(n, value, **more)


#: What a launch at 60 tok/s is confirmed on.
TWICE = (at(60.0, 101), at(60.2, 102))


def test_an_unchanged_launch_passes_and_says_what_it_was_held_to() -> None:
    result = judged([at(82.4)]).result
    assert result.verdict == "passed"
    assert result.band is not None
    assert result.band[0] < 82.4 < result.band[1]
    assert result.value == pytest.approx(82.4, rel=1e-4)
    assert result.baseline is not None
    assert (result.baseline.launches, result.baseline.prior_only) == (5, False)
    assert result.baseline.path.startswith("sglang/t/test_a/h200-x1--")
    assert result.baseline.age_days == pytest.approx(6)
    assert result.mde is not None
    assert result.host_known
    assert (result.nodeid, result.test, result.engine, result.server) == (TERMS.nodeid, TERMS.test, "sglang", "k")
    assert [x.role for x in result.launches] == ["screen"]


def test_a_drop_is_suspect_then_confirmed_on_the_fresh_launches_alone() -> None:
    first = judged([at(79.0)])
    assert first.suspect
    assert first.result.verdict == "inconclusive"
    again = judged([at(79.0)], [at(78.9, 101), at(79.1, 102)])
    assert not again.suspect
    assert again.result.verdict == "regressed"
    assert [x.role for x in again.result.launches] == ["screen", "confirm", "confirm"]
    assert again.result.value == pytest.approx(79.0, rel=1e-3)
    cleared = judged([at(79.0)], [at(82.4, 101), at(82.6, 102)])
    assert (cleared.result.verdict, cleared.suspect) == ("passed", False)


def test_a_large_drop_fails_on_fresh_launches_only() -> None:
    assert judged([at(60.0)]).suspect
    assert judged([at(60.0)], TWICE).result.verdict == "regressed"


def test_without_confirmation_one_stage_decides() -> None:
    one = replace(TERMS, confirm_launches=0)
    assert judged([at(79.0)], terms=one).suspect is False
    assert judged([at(60.0)], terms=one).result.verdict == "regressed"


def test_an_improvement_tells_how_to_accept_it() -> None:
    assert judged([at(99.0)]).result.verdict == "passed", "one launch improves nothing"
    result = judged([at(99.0)], [at(99.0, 101), at(98.8, 102)]).result
    assert result.verdict == "improved"
    assert "--update-baselines" in result.reasons[0]


def test_lower_is_better_is_judged_the_right_way_round() -> None:
    terms = replace(TERMS, metric=METRICS["ttft_ms"])
    known = [series(5, ttft_ms=30.0)]
    for value, verdict in ((60.0, "regressed"), (15.0, "improved")):
        fresh = [at(1, n, ttft_ms=value) for n in (100, 101, 102)]
        assert judged(fresh[:1], fresh[1:], terms=terms, known=known).result.verdict == verdict


def test_no_baseline_is_said_and_fails() -> None:
    result = judged([at(82.0)], known=[]).result
    assert result.verdict == "no_baseline"
    assert "--update-baselines" in result.reasons[0]


def test_other_hardware_is_not_comparable_and_names_the_fields() -> None:
    here = Fingerprint({**PRINT.fields, "gpu": "NVIDIA B200", "gpu count": "8"})
    farther = replace(series(), fingerprint=Fingerprint({"cpu": "x"}))
    result = judged([at(82.0)], terms=replace(TERMS, fingerprint=here), known=[farther, series()]).result
    assert result.verdict == "not_comparable"
    assert "gpu: NVIDIA H200 there, NVIDIA B200 here; gpu count: 1 there, 8 here" in result.reasons[0]
    assert result.baseline is None


def test_a_metric_that_was_never_recorded_has_no_baseline() -> None:
    result = judged([at(82.0, ttft_ms=30.0)], terms=replace(TERMS, metric=METRICS["ttft_ms"])).result
    assert result.verdict == "no_baseline"
    assert "holds no ttft_ms yet" in result.reasons[0]


@pytest.mark.parametrize("known", [[], [series()]], ids=["alone", "beside a baseline"])
def test_a_missed_target_fails(known: list[Series]) -> None:
    """What may be recorded is the gate's to say."""
    found = judged([at(82.4)], terms=replace(TERMS, target=120.0), known=known)
    assert (found.result.verdict, found.gate) == ("below_target", "passed" if known else "no_baseline")
    assert "target 120" in found.result.reasons[0]
    assert found.result.target == 120.0


def test_a_loss_is_a_loss_whatever_the_target() -> None:
    lost = judged([at(60.0)], TWICE, terms=replace(TERMS, target=120.0))
    assert (lost.result.verdict, lost.gate) == ("regressed", "regressed")
    assert any("target 120" in reason for reason in lost.result.reasons)
    better = judged([at(99.0)], [at(99.1, 101), at(98.9, 102)], terms=replace(TERMS, target=120.0))
    assert (better.result.verdict, better.gate) == ("below_target", "improved")


def test_a_target_is_held_to_the_spread_that_the_baseline_shows() -> None:
    vague = replace(TERMS, target=95.0, prior=Prior(s0=0.03, d0=1.0))
    assert judged([at(82.4)], terms=vague).result.verdict == "below_target"
    assert judged([at(82.4)], terms=vague, known=[]).result.verdict == "passed"


def test_a_target_that_is_met_replaces_a_missing_baseline() -> None:
    result = judged([at(82.4)], terms=replace(TERMS, target=80.0), known=[]).result
    assert result.verdict == "passed"
    assert "no baseline" in result.notes[0]


def test_a_met_target_does_not_excuse_a_regression() -> None:
    assert judged([at(60.0)], TWICE, terms=replace(TERMS, target=50.0)).result.verdict == "regressed"


SPOILT = Guard("gpu clock", True, "1980 -> 480 MHz", "cool the card", 480, 1800)


@pytest.mark.parametrize("value", [82.4, 99.0])
def test_what_spoilt_a_measurement_from_outside_makes_its_verdict_inconclusive(value: float) -> None:
    calm = Guard("host load", False, "0.1 of 2 cores")
    found = judged([at(value)], guards=[calm, SPOILT])
    assert (found.result.verdict, found.suspect) == ("inconclusive", False)
    assert found.result.reasons[0] == "gpu clock: 1980 -> 480 MHz; cool the card"
    assert [g["cause"] for g in found.result.guards] == ["host", "host"]


def test_a_spoilt_suspect_is_measured_once_more_before_it_is_inconclusive() -> None:
    first = judged([at(79.0)], guards=[SPOILT])
    assert (first.result.verdict, first.suspect) == ("inconclusive", True)
    fresh = [at(78.9, 101), at(79.1, 102)]
    assert judged([at(79.0)], fresh).result.verdict == "regressed"  # the fresh launches had nothing in their way
    again = judged([at(79.0)], fresh, guards=[SPOILT])
    assert (again.result.verdict, again.suspect) == ("inconclusive", False)


@pytest.mark.parametrize("name", ["captured graphs", "preemptions", "queueing", "drift"])
def test_what_an_engine_does_to_itself_explains_a_loss_and_never_excuses_it(name: str) -> None:
    guard = Guard(name, True, "12 of them", "give it more memory")
    lost = judged([at(60.0)], [at(59.0, 101), at(60.0, 102)], guards=[guard]).result
    assert (lost.verdict, lost.reasons[-1]) == ("regressed", f"{name}: 12 of them; give it more memory")
    assert lost.guards[0]["cause"] == "engine"
    fine = judged([at(82.4)], guards=[guard]).result
    assert (fine.verdict, fine.notes[-1]) == ("passed", f"{name}: 12 of them; give it more memory")


def test_what_the_engine_did_is_said_once_beside_what_spoilt_the_measurement() -> None:
    drifted = Guard("drift", True, "moved by 20 %", "warm up longer")
    result = judged([at(82.4)], guards=[SPOILT, drifted]).result
    assert result.verdict == "inconclusive"
    assert sum("moved by 20 %" in line for line in summary.remarks(result)) == 1


def test_launches_that_would_mend_a_weak_pass_are_this_hosts() -> None:
    result = judged([at(82.4, host="h2")], terms=replace(TERMS, host="h2")).result
    assert result.weak
    [said] = [line for line in result.reasons if line.startswith("underpowered")]
    assert said.endswith("; 1 stored launch of this host would see it")
    assert summary.weak(result).endswith("; 1 stored launch of this host would see less")


@pytest.mark.parametrize("screened", [(79.5,), (80.4, 80.3, 80.2)])
def test_what_no_fresh_launch_can_confirm_is_not_recorded_as_normal(screened: tuple[float, ...]) -> None:
    """3.6 % down, or 2.6 % on three launches, which one look at this level cannot prove."""
    seen = judged(
        [at(v, 100 + n) for n, v in enumerate(screened)], terms=replace(TERMS, alpha=1e-6, confirm_launches=0)
    )
    assert (seen.result.verdict, seen.gate) == ("passed", "suspect")
    clear = judged([at(82.4)], terms=replace(TERMS, confirm_launches=0))
    assert (clear.result.verdict, clear.gate) == ("passed", "passed")


def test_what_fresh_launches_neither_prove_nor_clear_is_not_recorded_as_normal() -> None:
    seen = judged([at(79.0)], [at(80.0, 101), at(82.4, 102)])
    assert (seen.result.verdict, seen.gate) == ("passed", "suspect")
    cleared = judged([at(80.0)], [at(82.5, 101), at(82.4, 102)])
    assert (cleared.result.verdict, cleared.gate) == ("passed", "passed")


def test_a_guard_that_tripped_on_several_launches_is_said_once() -> None:
    launches = [replace(at(82.4), id=f"l{i}") for i in (1, 2, 3)]
    busy = [
        Guard("server starved", share > 0.05, f"waited {share:.0%}", "pin it", share, 0.05, launch=x.id)
        for x, share in zip(launches, (0.06, 0.01, 0.09), strict=True)
    ]
    hot = Guard("gpu temperature", True, "91 C", "check cooling", 91, 90, launch="l2")
    said = judged(launches, guards=[*busy, hot]).result.reasons[:3]
    assert said[0] == "server starved (launches 1 and 3 of 3, the worst here): waited 9%; pin it"
    assert said[1] == "gpu temperature (launch 2 of 3): 91 C; check cooling"
    assert "waited" not in said[2]
    [every] = judged(
        launches, guards=[replace(g, tripped=True, value=max(0.07, g.value or 0)) for g in busy]
    ).result.reasons[:1]
    assert every.startswith("server starved (all 3 launches, the worst here): waited 9%")


def test_an_invalid_measurement_is_invalid_whatever_the_numbers() -> None:
    result = judged([at(82.4)], invalid=["3 of 5 requests were short"]).result
    assert (result.verdict, result.reasons) == ("invalid", ("3 of 5 requests were short",))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_numbers_that_are_no_speed_are_invalid(bad: float) -> None:
    launch = replace(at(82.4), metrics={"decode_tok_s": (82.4, bad)})
    result = judged([launch], terms=replace(TERMS, target=1.0)).result
    assert result.verdict == "invalid"
    assert f"holds {bad:g}" in result.reasons[0]


@pytest.mark.parametrize("wrong", [{"target": 0.0}, {"max_regression": -1.0}, {"alpha": 0.9}, {"min_effect": -1.0}])
def test_settings_that_make_no_sense_are_an_error_that_names_the_test(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"t\.py::test_a\[sglang\]: decode_tok_s cannot be judged"):
        judged([at(82.4)], terms=replace(TERMS, **wrong))


def test_a_launch_without_the_metric_is_invalid_and_so_is_no_launch() -> None:
    assert judged([at(82.4)], terms=replace(TERMS, metric=METRICS["ttft_ms"])).result.verdict == "invalid"
    assert judged([]).result.verdict == "invalid"


def test_a_stored_launch_is_no_evidence_against_itself() -> None:
    kept = series(2)
    both = judged([kept.current.launches[0]], known=[kept]).result
    assert both.baseline is not None
    assert both.baseline.launches == 1
    alone = judged([series(1).current.launches[0]], known=[series(1)]).result
    assert alone.verdict == "inconclusive"
    assert "servers stop" in alone.reasons[0]


def test_an_unknown_host_is_judged_more_widely_and_says_so() -> None:
    here, there = judged([at(82.4)]).result, judged([at(82.4)], terms=replace(TERMS, host="h2")).result
    assert here.band is not None
    assert there.band is not None
    assert there.band[0] < here.band[0]
    assert there.host_known is False
    assert any("other host" in r for r in there.reasons)


def test_an_old_baseline_says_its_age() -> None:
    assert judged([at(82.4)]).result.notes == ()
    assert "200 days old" in judged([at(82.4)], now=START + 204 * DAY).result.notes[0]


def test_cold_against_warm_is_said() -> None:
    warm = [series(cache="warm")]
    assert judged([at(82.4, cache="warm")], known=warm).result.notes == ()
    result = judged([at(82.4, cache="cold")], known=warm).result
    assert "compile cache cold here, warm in the baseline" in result.notes
    assert [d.name for d in result.differences] == ["compile cache"]


def test_a_thin_baseline_says_what_it_lacks() -> None:
    result = judged([at(82.4)], terms=replace(TERMS, max_regression=0.05), known=[series(1)]).result
    assert result.baseline is not None
    assert result.baseline.prior_only
    assert any("underpowered" in r for r in result.reasons)
    assert result.required_launches


def test_a_failure_explains_itself() -> None:
    was = {"engine version": "0.5.16", "nccl version": "2.27", "NCCL_PROTO": "LL", "commit": "a"}
    now = {"engine version": "0.5.17", "nccl version": "2.27", "attention backend": "fa3", "commit": "b"}
    fresh = [at(70.0, 100 + n, provenance=now) for n in range(3)]
    terms = replace(TERMS, target=82.5)
    result = judged(fresh[:1], fresh[1:], terms=terms, known=[series(provenance=was)]).result
    lines = explain(result)
    assert lines[0].startswith("decode_tok_s regressed: ")
    text = "\n".join(lines)
    for part in (
        "measured  70.00 tok/s",
        f"baseline  82.48 tok/s ({percent(result.change, signed=True)}), sglang/t/test_a/h200-x1--",
        "target    82.50 tok/s",
        "launches  1 screened, 2 confirming, against 5 stored, newest 6 days old",
        "with 80% power",
    ):
        assert part in text
    start = lines.index("differs from the baseline:")
    assert [x.split("  ")[1] for x in lines[start + 1 :]] == [
        "engine version   ".strip(), "NCCL_PROTO", "attention backend", "commit",
    ]  # fmt: skip
    assert "engine version     0.5.16 -> 0.5.17" in text
    assert "NCCL_PROTO         LL -> -" in text


def test_a_regression_without_a_known_difference_says_that() -> None:
    assert "nothing recorded differs" in explain(judged([at(60.0)], TWICE).result)[-1]


def test_every_verdict_can_be_explained() -> None:
    blank = Result("n", "t", "e", "s", "decode_tok_s", "tok/s", True, "invalid")
    for verdict in VERDICTS:
        assert explain(replace(blank, verdict=verdict))


def test_results_survive_json() -> None:
    result = judged([at(79.0)], [at(78.9, 101), at(79.1, 102)]).result
    assert Result.from_json(result.to_json()) == result


def test_a_pass_that_would_not_have_seen_much_is_weak() -> None:
    vague = replace(TERMS, prior=Prior(s0=0.2))
    found = judged([at(82.4)], terms=vague).result
    assert (found.verdict, found.weak) == ("passed", True)
    assert found.mde is not None
    assert found.mde > 0.1
    assert not judged([at(82.4)]).result.weak


def test_an_odd_stored_launch_is_named_with_what_removes_it() -> None:
    odd = replace(series(), epochs=(Epoch("x", tuple(at(v, n) for n, v in enumerate((82.4, 82.5, 82.6, 78.0, 82.5)))),))
    found = judged([at(82.4, 100)], known=[odd]).result
    assert found.verdict == "passed"
    [note] = [n for n in found.notes if "llmperf baselines drop" in n]
    assert odd.current.launches[3].id in note
    assert "-5.5%" in note


def test_what_looks_faster_is_confirmed_before_an_epoch_begins() -> None:
    updating = replace(TERMS, updating=True)
    gate = judged([at(99.0)])
    assert (gate.result.verdict, gate.suspect) == ("passed", False)
    assert "faster, unconfirmed" in gate.result.reasons
    first = judged([at(99.0)], terms=updating)
    assert (first.result.verdict, first.suspect) == ("inconclusive", True)
    assert judged([at(99.0)], [at(99.1, 101), at(98.9, 102)], terms=updating).result.verdict == "improved"
    assert judged([at(99.0)], [at(82.4, 101), at(82.6, 102)], terms=updating).result.verdict == "passed"
