"""How a number, a name and a stranger's text look, in every report. The one place that formats or sanitises."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

MISSING = "-"

WORDS: Mapping[str, str] = {
    "error": "error",
    "invalid": "invalid",
    "regressed": "regressed",
    "below_target": "below target",
    "inconclusive": "inconclusive",
    "not_comparable": "not comparable",
    "no_baseline": "no baseline",
    "improved": "improved",
    "recorded": "recorded",
    "passed": "passed",
}

#: ESC sequences: CSI (colours, cursor), OSC and the other strings up to their terminator, two-byte escapes.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-Z\\^-~]"
)
#: Unicode categories that move the cursor, reorder or hide text, or are no text at all.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def clean(text: object, *, lines: bool = False, ascii_only: bool = False) -> str:
    """``text`` made inert for any output: terminal sequences removed, other control, formatting and undecodable
    characters shown as escapes, so that nothing moves the cursor, breaks a line or reorders what is read.

    ``lines`` keeps line breaks and tabs (log tails). ``ascii_only`` escapes all else too, for terminals without
    UTF-8. GitHub's old inline commands (``##[``) are broken up; its newer ones need to begin a line, which no report
    lets a stranger's text do.
    """
    out = _ESCAPES.sub("", str(text))
    if lines:
        out = out.replace("\r\n", "\n").expandtabs(4)
    if not out.isprintable() or (ascii_only and not out.isascii()):
        out = "".join(_visible(c, lines=lines, ascii_only=ascii_only) for c in out)
    return out.replace("##[", "## [")


def _visible(c: str, *, lines: bool, ascii_only: bool) -> str:
    if c == "\n" and lines:
        return c
    if unicodedata.category(c) in _UNSAFE or (ascii_only and ord(c) > 126):
        return c.encode("unicode_escape", "backslashreplace").decode("ascii")
    return c


def number(value: float | None) -> str:
    """Four significant digits in plain decimals; whole numbers above that (``82.51``, ``0.9876``, ``10996``). What no
    measurement gives (above a billion, below a millionth) has an exponent."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    if not 1e-6 <= abs(value) < 1e9:  # NaN and infinity too
        return f"{value:.3e}"
    digits = 3 - int(f"{value:.3e}".partition("e")[2])
    return f"{value:.{max(digits, 0)}f}"


def exact(value: float | None) -> str:
    """The shortest decimal that reads back as the same number, for machines; empty for None."""
    return "" if value is None else repr(float(value))


def percent(value: float | None, *, signed: bool = False) -> str:
    """A fraction as percent with one decimal, two below 1 % (``-22.9%``, ``0.08%``)."""
    if value is None or not math.isfinite(value):
        return MISSING
    scaled = 100 * value
    form = ".3e" if abs(scaled) >= 1e6 else ".1f" if abs(scaled) >= 0.995 or scaled == 0 else ".2f"
    return f"{scaled:{'+' if signed else ''}{form}}%"


def interval(value: tuple[float, float] | None) -> str:
    """``[81.20, 83.90]``."""
    return MISSING if value is None else f"[{number(value[0])}, {number(value[1])}]"


def ratio(value: float | None) -> str:
    """Three decimals: ``0.771x``."""
    return MISSING if value is None else f"{_factor(value)}x"


def ratios(value: tuple[float, float] | None) -> str:
    """``[0.764, 0.778]``."""
    return MISSING if value is None else f"[{_factor(value[0])}, {_factor(value[1])}]"


def _factor(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1e6 else f"{value:.3e}"


def seconds(value: float | None) -> str:
    """``0.42 s``, ``8.1 s``, ``212 s``, ``1 h 02 min``."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value < 9.95:
        return f"{value:.2g} s" if value < 1 else f"{value:.1f} s"
    if value < 599.5:
        return f"{value:.0f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def plural(count: int, one: str, many: str | None = None) -> str:
    """``1 launch``, ``3 launches`` (an ``es`` after ch, s and x, else an ``s``)."""
    if count == 1:
        return f"1 {one}"
    return f"{count} {many or one + ('es' if one.endswith(('ch', 's', 'x')) else 's')}"


def settings(config: Mapping[str, Any], skip: Iterable[str] = ()) -> list[tuple[str, str]]:
    """A config flattened to (name, value) pairs, nested mappings by their own keys; values not yet cleaned."""
    out: list[tuple[str, str]] = []
    for key, value in config.items():
        if key in skip or value is None or value in ({}, [], ()):
            continue
        if isinstance(value, Mapping):
            out.extend(settings(value))
        elif isinstance(value, (list, tuple)):
            out.append((key, ", ".join(str(v) for v in value)))
        elif isinstance(value, bool):
            out.append((key, "on" if value else "off"))
        else:
            out.append((key, str(value)))
    return out
