"""Whatever numbers a session holds (none, NaN, infinite, zero, absurd), every report can be made from it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from pytest_llmperf.records import schema
from pytest_llmperf.records.gaps_and_sweeps import Curve, CurvePoint, Effect, Gap, Sweep
from pytest_llmperf.records.histories import ChangePoint, History, HistoryPoint
from pytest_llmperf.records.results import VERDICTS, BaselineRef, LaunchValues, Result, SessionRecord
from pytest_llmperf.report import export, github, html, junit, terminal
from tests.report import samples

ODD = st.sampled_from([0.0, -1.0, 1e-300, 1e300, float("nan"), float("inf"), float("-inf"), 82.5, 82.50000001])
NUMBER = ODD | st.floats()
MAYBE = st.none() | NUMBER
PAIR = st.none() | st.tuples(NUMBER, NUMBER)


@st.composite
def results(draw: st.DrawFn) -> Result:
    values = draw(st.lists(NUMBER, max_size=4))
    return replace(
        samples.PASSED,
        verdict=draw(st.sampled_from(VERDICTS)),
        higher_is_better=draw(st.booleans()),
        value=draw(MAYBE),
        band=draw(PAIR),
        target=draw(MAYBE),
        mde=draw(MAYBE),
        change=draw(MAYBE),
        baseline=draw(st.none() | st.builds(BaselineRef, st.just("p"), st.just(3), NUMBER, MAYBE, st.booleans())),
        launches=(LaunchValues("id", tuple(values), draw(NUMBER)),),
        required_launches=draw(st.none() | st.integers(0, 9)),
    )


@st.composite
def sessions(draw: st.DrawFn) -> SessionRecord:
    effects = st.builds(Effect, st.just("k"), st.just("v"), MAYBE, MAYBE, PAIR, st.booleans())
    points = st.builds(CurvePoint, st.integers(1, 512), NUMBER, MAYBE, MAYBE)
    words = map(st.just, ("t", "m", "u"))
    gaps = st.builds(Gap, *words, st.booleans(), st.just("a"), st.just("b"), NUMBER, NUMBER, NUMBER, PAIR)
    return SessionRecord(
        {"gated": 1, "alpha": draw(MAYBE), "level": draw(MAYBE), "duration_s": draw(MAYBE)},
        (samples.SGLANG,),
        tuple(draw(st.lists(results(), max_size=3))),
        tuple(draw(st.lists(gaps, max_size=2))),
        (Sweep("s", "e", "m", "u", draw(st.booleans()), {}, draw(MAYBE), tuple(draw(st.lists(effects, max_size=3)))),),
        (Curve("t", "e", tuple(draw(st.lists(points, max_size=3))), draw(st.none() | st.integers(1, 512)), 48),),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(session=sessions(), moved=NUMBER, values=st.lists(NUMBER, max_size=3), band=PAIR)
def test_every_report_can_be_made(session: SessionRecord, moved: float, values: list[float], band: Any) -> None:
    points = tuple(HistoryPoint(str(i), "2026-01-01", v, spread=(v, v)) for i, v in enumerate(values))
    past = History(
        samples.PASSED.test, "sglang", "decode_tok_s", "u", True, points, "", band, moved, (ChangePoint(1, moved),)
    )
    for verbosity in (-1, 1):
        terminal.render(session, width=100, verbosity=verbosity)
    page = html.page(session, [past])
    assert not any(bad in page for bad in ('"nan%"', '"inf%"', '"-inf%"', '="nan"', '="inf"'))
    html.history_page([past])
    github.summary(session)
    github.annotations(session)
    json.dumps([export.bencher(session), export.github_action_benchmark(session)], allow_nan=False)
    for result in session.results:
        junit.properties(result)
    again = SessionRecord.from_json(json.loads(json.dumps(session.to_json(), allow_nan=False)))
    assert again.to_json() == session.to_json()


def test_infinite_limits_survive_json() -> None:
    result = replace(samples.PASSED, band=(78.41, float("inf")))
    data = SessionRecord({}, (), (result,)).to_json()
    Draft202012Validator(schema.load()).validate(data)
    assert SessionRecord.from_json(data).results[0].band == (78.41, float("inf"))
    assert terminal.render(SessionRecord({}, (), (result,)), width=120).count("[78.41, inf]") == 1


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_levels_at_their_ends(level: float) -> None:
    assert "gated at alpha" in terminal.render(SessionRecord({"gated": 2, "alpha": level, "level": level}), width=80)
