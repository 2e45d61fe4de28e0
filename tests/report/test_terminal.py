"""The terminal's report: aligned, within its width, inert, as loud as asked for."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from pytest_llmperf.records.gaps_and_sweeps import Effect
from pytest_llmperf.records.results import BaselineRef, Result, SessionRecord
from pytest_llmperf.report import layout, terminal
from tests.report import samples
from tests.report.hostile import hostile

ANSI = re.compile(r"\x1b\[[0-9;]*m")
SESSIONS = {"full": samples.FULL, "green": samples.GREEN, "empty": samples.EMPTY, "hostile": hostile()}


def _row(out: str, test: str) -> str:
    return next(line for line in out.splitlines() if re.match(rf"[^│|▸>].{test}", line))


@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("width", [10, 40, 80, 140])
@pytest.mark.parametrize("name", SESSIONS)
def test_no_line_is_wider_than_the_terminal(name: str, width: int, unicode: bool) -> None:
    for verbosity in (-1, 0, 1):
        out = terminal.render(SESSIONS[name], width=width, verbosity=verbosity, unicode=unicode)
        assert max(cell_len(line) for line in out.splitlines()) <= max(width, 20)
        assert unicode or out.isascii()
        assert out.endswith("\n")


@pytest.mark.parametrize("width", [70, 80, 100, 120, 140, 160, 200])
def test_columns_are_aligned_and_whole(width: int) -> None:
    """Every cell that is shown is shown whole, under its heading, in each server's group."""
    out = terminal.render(samples.FULL, width=width)
    heading, *_ = out.splitlines()
    at = heading.find("band")  # gives way to the target that was missed where there is little room
    for r in samples.FULL.results:
        row = _row(out, re.escape(r.nodeid.partition("::")[2])[:6])
        if r.band and at > 0:
            assert re.match(r"\[[\d.]+, [\d.]+\]( |$)", row[at:])
        assert "…" not in row.split("  ", 1)[1]
    assert {"value", "target", "verdict"} <= set(heading.split())
    if width >= 80:
        assert {"band", "change"} <= set(heading.split())
    if width >= 120:
        assert {"k", "MDE", "unit"} <= set(heading.split())
    if width >= 140:
        assert {"metric", "baseline"} <= set(heading.split())


def test_the_whole_row() -> None:
    out = terminal.render(samples.FULL, width=180)
    assert " ".join(_row(out, "test_single_stream").split()) == (
        "✗ test_single_stream decode_tok_s 63.61 tok/s [80.87, 84.16] ◀ ├──┼──┤ 82.51 5 82.50 -22.9% regressed 2.1%"
    )
    assert "├─●┼──┤" in _row(out, "test_long_prompt")
    assert _row(out, r"test_load").split()[-1] == "6.7%!"
    assert "prior" in _row(out, r"test_load")


def test_several_metrics_of_one_test_stay_apart_when_narrow() -> None:
    ttft = replace(samples.PASSED, metric="ttft_ms", unit="ms")
    out = terminal.render(SessionRecord({}, (samples.SGLANG,), (samples.PASSED, ttft)), width=60)
    assert "decode_tok_s" in out
    assert "ttft_ms" in out


def test_grouped_by_server() -> None:
    lines = terminal.render(samples.FULL, width=140).splitlines()
    servers = [i for i, line in enumerate(lines) if line.startswith("▸")]
    assert [lines[i] for i in servers] == [
        "▸ sglang Kimi-K2.5 tp=8  3f2a91c0b7de  3 launches, start-up 212 s, 181 s, 184 s",
        "▸ vllm Kimi-K2.5 tp=8  9be07745aa10  1 launch, start-up 242 s",
        "▸ vllm Kimi-K2.5 tp=8  77aa01ff02c3  no launch",
    ]
    assert sum("decode_tok_s" in line for line in lines[servers[1] : servers[2]]) == 1
    assert any("• vllm Kimi-K2.5 tp=8 did not start (31.2 s): out of GPU" in line for line in lines[servers[2] :])


def test_a_regression_explains_itself() -> None:
    out = terminal.render(samples.FULL, width=200)
    block = out[out.index("✗ regressed: tests/perf/test_decode.py::test_single_stream (sglang, decode_tok_s)") :]
    block = block[: block.index("\n\n")]
    for said in ("63.61 tok/s over 3 launches", "-22.9% against the baseline's 82.51 tok/s over 5 launches",
                 "band [80.87, 84.16]", "target 82.50 tok/s", "smallest drop it could have seen 2.1%",
                 "below the band on 2 fresh launches"):  # fmt: skip
        assert said in block
    assert re.search(r"engine version +0\.5\.16 +0\.5\.17", block)
    assert re.search(r"NCCL_PROTO +- +LL", block)


def test_guards_are_told_with_their_advice() -> None:
    out = terminal.render(samples.FULL, width=200)
    assert "gpu clock: SM clock 480 MHz, under 70 % of 1965 MHz (look for a power cap or a stuck clock)" in out
    assert "host load" not in out


def test_what_is_said_at_the_end() -> None:
    out = terminal.render(samples.FULL, width=200)
    assert "unused: baselines/test_old_name.sglang.1a2b3c4d.toml belongs to no test of this run" in out
    assert out.index("refused: ") < out.index("unused: ") < out.index("update: ")
    assert "INCONCLUSIVE: 1 result not judged, neither passed nor failed: test_acceptance" in out
    assert "pytest --update-baselines --launches 3" in out
    last = out[out.rindex("llmperf: ") :].replace("\n  ", " ")
    assert last.startswith("llmperf: 1 error, 1 invalid, 1 regressed, 1 below target, 1 inconclusive, ")
    assert "10 metrics gated at alpha 0.10% each (1.0% for the session); 4 launches; 37 min" in last


def test_green_is_brief_and_says_what_it_could_not_see() -> None:
    out = terminal.render(samples.GREEN, width=200)
    assert "INCONCLUSIVE" not in out
    assert "reproduce" not in out
    said = "weak: passed, but a drop below 6.7% would not have been seen; 4 stored launches of this host would see less"
    assert said in out


def test_nothing_measured_is_said() -> None:
    assert terminal.render(samples.EMPTY, width=80) == "llmperf: nothing was measured\n"


def _recorded() -> SessionRecord:
    """As ``--update-baselines`` leaves it: a first recording beside a test that already had a baseline."""
    first = replace(
        samples.NO_BASELINE, launches=(replace(samples.NO_BASELINE.launches[0], role="record"),), reasons=()
    )
    return replace(samples.GREEN, results=(first, samples.PASSED))


def test_a_first_recording_is_no_problem() -> None:
    out = terminal.render(_recorded(), width=140)
    assert re.search(r"^\+ test_new .* recorded", out, re.M)
    assert "no baseline" not in out
    assert "record what is missing" not in out
    assert "llmperf: 1 recorded, 1 passed" in out
    assert terminal.render(_recorded(), width=140, verbosity=-1).count("\n") == 1


def test_a_guard_that_the_reasons_tell_is_not_told_twice() -> None:
    evidence = samples.INCONCLUSIVE.guards[0]["evidence"]
    told = replace(samples.INCONCLUSIVE, reasons=(f"gpu clock: {evidence}; look for a power cap",))
    assert terminal.render(replace(samples.GREEN, results=(told,)), width=200).count(evidence) == 1


def test_a_sweep_alone_is_not_nothing() -> None:
    out = terminal.render(SessionRecord({}, sweeps=(samples.SWEEP,)), width=120)
    assert "nothing was measured" not in out
    assert out.startswith("\n│ sweep of nccl on sglang")


def test_quiet_gives_problems_and_one_line() -> None:
    out = terminal.render(samples.FULL, width=200, verbosity=-1)
    assert "test_long_prompt" not in out
    assert "✗ regressed: tests/perf/test_decode.py::test_single_stream (sglang, decode_tok_s): 63.61 tok/s" in out
    assert "vllm Kimi-K2.5 tp=8 did not start (31.2 s): out of GPU memory" in out
    assert "INCONCLUSIVE" in out
    assert terminal.render(samples.GREEN, width=200, verbosity=-1).count("\n") == 1


def test_verbose_gives_launches_and_repetitions() -> None:
    out = terminal.render(samples.FULL, width=200, verbosity=1)
    assert "│ launch 20261103T102400-b2, confirm: 63.71, repetitions 63.80 63.69 63.75 63.71 63.66\n" in out
    narrow = terminal.render(samples.FULL, width=40, verbosity=1)
    assert all(value in narrow for value in ("63.80", "63.69", "63.75", "63.66")), "wrapped, none left out"
    assert "effective engine_version=0.5.17" in out
    assert "other host" in out
    assert "reproduce: pytest tests/perf/test_decode.py::test_single_stream --engine sglang" in out


def test_colour_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("NO_COLOR", "1"), ("TERM", "dumb"), ("COLUMNS", "30")):
        monkeypatch.setenv(name, value)
    plain = terminal.render(samples.FULL, width=140)
    coloured = terminal.render(samples.FULL, width=140, color=True)
    assert "\x1b" not in plain
    assert "\x1b[1;31mregressed" in coloured
    assert ANSI.sub("", coloured) == plain


@pytest.mark.parametrize("width", [20, 33, 52, 80, 111])
@pytest.mark.parametrize("verbosity", [-1, 0, 1])
def test_a_strangers_text_never_begins_a_line(width: int, verbosity: int) -> None:
    """A runner reads ``::command::`` at the start of a line as a command, leading blanks aside."""
    ours = re.compile(r"[│▸✓✗▲▼?] |llmperf: |  |gap |sweep |load |$")
    for line in terminal.render(hostile(), width=width, verbosity=verbosity).splitlines():
        assert ours.match(line), line
        assert not line.lstrip().startswith("::")
        assert "##[" not in line


def test_a_sweeps_servers_are_told_apart_by_what_differs() -> None:
    moved = replace(samples.SGLANG, key="aaa", config={**samples.SGLANG.config, "attention_backend": "fa3", "nccl": {}})
    out = terminal.render(SessionRecord({}, (samples.SGLANG, moved), sweeps=(samples.SWEEP,)), width=140)
    first, other = (out[out.index(key) :].splitlines()[1] for key in (samples.SGLANG.key, "aaa"))
    assert "attention_backend=flashinfer" in first
    assert "NCCL_ALGO=Ring" in first
    assert other.startswith("│ attention_backend=fa3 no NCCL_")
    assert "num_continuous_decode_steps" not in out[out.index("aaa") :]


def test_sweep_and_gap() -> None:
    out = terminal.render(samples.FULL, width=140)
    assert re.search(r"▼ test_single_stream .* vllm +0\.771x +\[0\.759, 0\.783\] +63\.61 vs 82\.53 +3 vs 1", out)
    sweep = out[out.index("sweep of nccl on sglang") :]
    rows = ("base  ", "trtllm_mla", "nccl.proto=LL", "nccl.proto=Simple", "=triton  ", "base: nccl.proto=default")
    order = [sweep.index(s) for s in rows]
    assert order == sorted(order)
    assert "no credible effect" in sweep
    assert "attention_backend=triton: did not start: unsupported architecture sm_100" in sweep
    assert "peak 2370 tok/s, knee at 48 streams, max running requests 48" in out


def test_a_note_is_told_once_with_the_settings_it_holds_for() -> None:
    one, other, *rest = samples.SWEEP.effects
    noted = replace(samples.SWEEP, effects=(replace(one, note="n1"), replace(other, note="n1"), *rest))
    out = terminal.render(SessionRecord({}, sweeps=(noted,)), width=140)
    assert out.count("n1") == 1
    assert "attention_backend=trtllm_mla, nccl.proto=LL: n1" in out


def test_a_value_without_a_base_is_no_failure() -> None:
    alone = Effect("tp", "4", value=63.6, launches=2, note="no base to compare with: base has no ttft_ms")
    out = terminal.render(SessionRecord({}, sweeps=(replace(samples.SWEEP, effects=(alone,)),)), width=140)
    assert re.search(r"│ +tp=4 +63\.60 +- +- +2 +no base to compare with", out)


def test_metrics_that_follow_from_others_are_told_when_asked() -> None:
    others = [replace(samples.SWEEP, metric=m) for m in ("tpot_ms", "ttft_ms")]
    record = SessionRecord({}, sweeps=(samples.SWEEP, *others))
    assert re.findall(r"test_nccl: (\w+),", terminal.render(record, width=140)) == ["decode_tok_s", "ttft_ms"]
    assert "tpot_ms" in terminal.render(record, width=140, verbosity=1)
    assert "tpot_ms" in terminal.render(SessionRecord({}, sweeps=(others[0],)), width=140)


def test_lower_is_better_sorts_the_other_way() -> None:
    sweep = replace(samples.SWEEP, higher_is_better=False)
    out = terminal.render(SessionRecord({}, sweeps=(sweep,)), width=140)
    assert out.index("=Simple") < out.index("=trtllm_mla")
    assert re.search(r"▲ nccl.proto=Simple.*better", out)


def _bar(value: float, low: float, high: float, center: float) -> str:
    result = replace(samples.PASSED, value=value, band=(low, high), baseline=BaselineRef("p", 3, center))
    return layout.bar(result, layout.UNICODE)


@pytest.mark.parametrize(
    ("value", "drawn"),
    [
        (100.0, "  ├──●──┤  "),
        (97.0, "  ●──┼──┤  "),
        (103.0, "  ├──┼──●  "),
        (101.0, "  ├──┼●─┤  "),
        (96.0, " ●├──┼──┤  "),
        (90.0, "◀ ├──┼──┤  "),
        (110.0, "  ├──┼──┤ ▶"),
    ],
)
def test_the_bar(value: float, drawn: str) -> None:
    assert _bar(value, 97, 103, 100) == drawn


def test_the_bar_of_odd_numbers() -> None:
    assert _bar(1.0, 1.0, 1.0, 1.0) == ""
    assert _bar(float("inf"), 1.0, 2.0, 1.5)[-1] == "▶"
    assert _bar(float("nan"), 1.0, 2.0, 1.5) == ""
    assert layout.bar(samples.INVALID, layout.UNICODE) == ""


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdefgh", 6, "abc…gh"),
        ("模型模型模型", 7, "模…型"),
        ("abcdef", 2, "ab"),
        ("abc", 0, ""),
    ],
)
def test_shorten(text: str, width: int, short: str) -> None:
    assert layout.shorten(text, width, "…") == short
    assert cell_len(short) <= width


def test_names_are_as_short_as_they_can_be() -> None:
    def named(*nodeids: str) -> str:
        results = tuple(replace(samples.PASSED, nodeid=f"{n}[sglang]", test=n) for n in nodeids)
        return terminal.render(SessionRecord({}, (samples.SGLANG,), results), width=120)

    assert "✓ test_x " in named("a/test_1.py::test_x", "a/test_1.py::test_y")
    assert "✓ test_2.py::test_x " in named("a/test_1.py::test_x", "a/test_2.py::test_x")
    assert "✓ b/test_1.py::test_x " in named("a/test_1.py::test_x", "b/test_1.py::test_x")


def test_columns_that_say_nothing_are_left_out() -> None:
    lone = replace(samples.NO_BASELINE, nodeid="t.py::test_new[sglang]", test="t.py::test_new")
    heading, *lines = terminal.render(SessionRecord({}, (samples.SGLANG,), (lone,)), width=80).splitlines()
    assert heading.split() == ["test", "metric", "tok/s", "verdict"]
    [row] = (line for line in lines if line.startswith("✗ test_new"))
    assert row.split() == ["✗", "test_new", "decode_tok_s", "80.00", "no", "baseline"]


def test_eighty_columns_hold_a_verdict_with_its_unit_and_its_whole_name() -> None:
    heading, *lines = terminal.render(samples.GREEN, width=80).splitlines()
    assert heading.split()[:2] == ["test", "tok/s"]
    assert heading.split()[-1] == "MDE"
    assert any(line.startswith("✓ test_long_prompt ") for line in lines)
    units = terminal.render(replace(samples.GREEN, results=(samples.PASSED, samples.IMPROVED)), width=80)
    assert units.split()[:3] == ["test", "value", "unit"]


def test_a_result_without_a_server_record_is_still_shown() -> None:
    lone: Result = replace(samples.PASSED, server="gone")
    assert "test_long_prompt" in terminal.render(SessionRecord({}, (), (lone,)), width=100)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_missed_target_shows_its_target_at_every_width(width: int) -> None:
    heading = terminal.render(samples.FULL, width=width).splitlines()[0]
    assert "target" in heading.split()
    assert ("target" in terminal.render(samples.GREEN, width=width).splitlines()[0].split()) is False


def test_what_many_errors_have_in_common_is_told_once() -> None:
    many = tuple(replace(samples.ERROR, nodeid=f"t.py::test_{i}", test=f"t.py::test_{i}") for i in range(8))
    out = terminal.render(replace(samples.GREEN, results=many), width=120)
    assert "✗ error: 8 results of test_0, test_1, test_2, test_3, test_4 and 3 more\n" in out
    assert out.count("out of GPU memory") == 1
    assert "llmperf: 8 error" in out


LONG = "test_decode[a_long_prompt_with_much_text_in_it]"


def _named(name: str, *metrics: str) -> tuple[Result, ...]:
    return tuple(replace(samples.PASSED, nodeid=f"t.py::{name}", test=f"t.py::{name}", metric=m) for m in metrics)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_names_are_whole_at_every_width(width: int) -> None:
    """Folded where the terminal is narrower than the name; shortened nowhere."""
    results = (*samples.FULL.results, *_named(LONG, "decode_tok_s"))
    out = terminal.render(replace(samples.FULL, results=results), width=width)
    table = out[: out.index("\n\n")].replace("\n│ xt_in_it]", "xt_in_it]")
    for r in results:
        assert re.search(rf"^[✓✗?▲+] {re.escape(r.test.partition('::')[2])}( |$)", table, re.M), r.test
    assert "…" not in table


def test_a_long_name_stands_above_its_row_and_takes_no_column() -> None:
    results = (samples.PASSED, samples.REGRESSED, *_named(LONG, "decode_tok_s"))
    out = terminal.render(replace(samples.GREEN, results=results), width=80).splitlines()
    assert {"band", "change", "verdict"} <= set(out[0].split())
    at = next(i for i, line in enumerate(out) if line == f"✓ {LONG}")
    assert out[at + 1].startswith("│ ")
    assert out[at + 1].index("79.93") == out[at - 1].index("63.61")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_rows_of_gaps_say_their_metric(width: int) -> None:
    gaps = tuple(replace(samples.GAP, metric=m, higher_is_better=m != "ttft_ms") for m in ("decode_tok_s", "ttft_ms"))
    out = terminal.render(SessionRecord({}, gaps=gaps), width=width)
    rows = [line for line in out.splitlines() if line.endswith("0.771x") or "0.771x " in line]
    assert [re.findall(r"decode_tok_s|ttft_ms", row) for row in rows] == [["decode_tok_s"], ["ttft_ms"]]


def test_sweeps_of_two_tests_are_told_apart() -> None:
    sweeps = (samples.SWEEP, replace(samples.SWEEP, test="t.py::test_other"))
    out = terminal.render(SessionRecord({}, sweeps=sweeps), width=140)
    assert re.findall(r"sweep of nccl on sglang, (\w+): decode_tok_s", out) == ["test_nccl", "test_other"]


def test_what_pytest_has_told_in_full_has_its_row_alone() -> None:
    told = {r.nodeid for r in samples.FULL.results}
    out = terminal.render(samples.FULL, width=200, told=told)
    assert _row(out, "test_single_stream").split()[-2] == "regressed"
    assert "below the band on 2 fresh launches" not in out
    assert "SM clock 480 MHz" not in out
    assert "▲ improved: tests/perf/test_decode.py::test_ttft" in out, "no failure, and so told by nobody else"


def test_a_server_that_did_not_start_is_told_above_its_rows_alone() -> None:
    cause = samples.BROKEN.failures[0].partition(";")[0]
    dead = tuple(replace(r, server=samples.BROKEN.key, engine="vllm", verdict="error", value=None, reasons=(cause,))
                 for r in _named("test_dead", "decode_tok_s", "ttft_ms"))  # fmt: skip
    out = terminal.render(SessionRecord({}, (samples.BROKEN,), dead), width=200)
    assert out.count(cause) == 1
    assert terminal.render(SessionRecord({}, (samples.BROKEN,), dead), width=200, verbosity=-1).count(cause) >= 1
