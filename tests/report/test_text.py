"""Numbers look alike everywhere; strangers' text is inert everywhere."""

from __future__ import annotations

import math
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_llmperf.records import text
from tests.report.hostile import EVIL


@pytest.mark.parametrize(
    ("value", "shown"),
    [(82.514, "82.51"), (63.6, "63.60"), (0.98765, "0.9877"), (10996.4, "10996"), (1187.0, "1187"), (0.0731, "0.07310"),
     (99.996, "100.0"), (9.9996, "10.00"), (999.96, "1000"), (0.0, "0"), (-3.2, "-3.200"), (None, "-"),
     (math.nan, "nan"), (math.inf, "inf"), (1e-12, "1.000e-12"), (123456789.0, "123456789"), (-1e300, "-1.000e+300")],
)  # fmt: skip
def test_number(value: float | None, shown: str) -> None:
    assert text.number(value) == shown


@given(st.floats(min_value=1e-5, max_value=1e9))
def test_number_is_right_to_four_digits(value: float) -> None:
    assert float(text.number(value)) == pytest.approx(value, rel=5.1e-4)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_exact_reads_back(value: float) -> None:
    assert float(text.exact(value)) == value


@pytest.mark.parametrize(
    ("value", "signed", "shown"),
    [(-0.22903, True, "-22.9%"), (0.0085, True, "+0.85%"), (0.001004, False, "0.10%"), (0.0213, False, "2.1%"),
     (0.00996, False, "1.0%"), (0.0, True, "+0.0%"), (None, True, "-"), (math.nan, False, "-")],
)  # fmt: skip
def test_percent(value: float | None, signed: bool, shown: str) -> None:
    assert text.percent(value, signed=signed) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.4213, "0.42 s"), (8.13, "8.1 s"), (9.97, "10 s"), (212.4, "212 s"), (599.7, "10 min"), (2214.0, "37 min"),
     (3570.0, "1 h 00 min"), (3725.0, "1 h 02 min"), (0.0, "0 s"), (None, "-")],
)  # fmt: skip
def test_seconds(value: float | None, shown: str) -> None:
    assert text.seconds(value) == shown


def test_plural() -> None:
    assert [text.plural(n, "launch") for n in (0, 1, 2)] == ["0 launches", "1 launch", "2 launches"]
    assert text.plural(2, "metric") == "2 metrics"
    assert text.plural(2, "more launch", "more launches") == "2 more launches"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain täxt 模型", "plain täxt 模型"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]unterminated\nnext", "\\nnext"),
        ("\x1bPq payload\x1b\\after", "after"),
        ("\x9b31mred", "red"),
        ("a\r\nb\tc", "a\\r\\nb\\tc"),
        ("a\x00\x7f\x85b", "a\\x00\\x7f\\x85b"),
        ("a\u202eb\u2066c\u200bd\ufeff", "a\\u202eb\\u2066c\\u200bd\\ufeff"),
        ("a\u2028b", "a\\u2028b"),
        ("\ud800", "\\ud800"),
        ("##[error]x", "## [error]x"),
    ],
)
def test_clean(raw: str, shown: str) -> None:
    assert text.clean(raw) == shown


def test_clean_lines_keeps_lines() -> None:
    assert text.clean("a\r\nb\tc\n\x1b[2Jd\re", lines=True) == "a\nb   c\nd\\re"


@given(st.text() | st.text(alphabet="\x1b\x9b\x9d[]0;m\x07\\\n\r#a:"), st.booleans(), st.booleans())
@example(EVIL, False, False)
@example("#\x1b[0m#[x", False, False)
@example("\x1b\x1b[0m[31m", False, True)
def test_nothing_unsafe_comes_through(raw: str, lines: bool, ascii_only: bool) -> None:
    out = text.clean(raw, lines=lines, ascii_only=ascii_only)
    bad = [c for c in out if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and not (lines and c == "\n")]
    assert not bad
    assert "##[" not in out
    assert out.isascii() or not ascii_only
    out.encode("utf-8")
    assert text.clean(out, lines=lines, ascii_only=ascii_only) == out


def test_settings_are_flat() -> None:
    config = {
        "engine": "sglang",
        "tp": 8,
        "nccl": {"NCCL_PROTO": "LL"},
        "flags": {},
        "graph": True,
        "x": None,
        "l": [1, 2],
    }
    assert text.settings(config, skip={"engine"}) == [
        ("tp", "8"), ("NCCL_PROTO", "LL"), ("graph", "on"), ("l", "1, 2")
    ]  # fmt: skip
