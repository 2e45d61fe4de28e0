"""Drawing with SVG that fits any width: x in percent, y in pixels, so that text keeps its size on a phone.

Built as an element tree, which escapes what it is given; colours come from the page's style sheet by class.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeGuard

from markupsafe import Markup

from pytest_llmperf.records.text import clean


@dataclass(frozen=True)
class Scale:
    """A range of values on the percentages ``start`` to ``end`` (of the width) or pixels (of the height)."""

    low: float
    high: float
    start: float = 2.0
    end: float = 98.0
    log: bool = False

    @classmethod
    def around(cls, values: Iterable[float | None], *, start: float = 2.0, end: float = 98.0) -> Scale:
        """Wide enough for every finite value, with a margin on both sides."""
        seen = [v for v in values if drawable(v)]
        low, high = (min(seen), max(seen)) if seen else (0.0, 1.0)
        size = max(abs(low), abs(high))
        flat = high - low < size * 1e-9 or size < 1e-9
        room = max(size * 0.01, 1e-3) if flat else (high - low) * 0.06
        return cls(low - room, high + room, start, end)

    def __call__(self, value: float) -> float:
        low, high, value = (
            (math.log(v) for v in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        )
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def within(self, value: float) -> float:
        """The position of ``value``, held to the ends of the range (an infinite limit is drawn to the edge)."""
        return self.start if math.isnan(value) else self(min(max(value, self.low), self.high))

    def ticks(self, most: int = 5) -> list[tuple[float, str]]:
        """Round values within the range, ``most`` of them or fewer, with their labels."""
        rough = (self.high - self.low) / most
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(s * size for s in (1, 2, 5, 10) if s * size >= rough * 0.999)
        digits = max(0, -math.floor(math.log10(step)))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [(i * step, f"{i * step:.{digits}f}") for i in range(first, last + 1)]


class Drawing:
    """One ``<svg>`` as wide as its container. ``label`` tells a screen reader what it shows."""

    def __init__(self, height: float, label: str) -> None:
        self._root = ET.Element(
            "svg", {"class": "plot", "width": "100%", "height": _px(height), "role": "img", "aria-label": clean(label)}
        )
        self.height = height

    def rect(self, css: str, x: float, y: float, width: float, height: float, title: str = "") -> None:
        self._add("rect", css, title, x=_pct(x), y=_px(y), width=_pct(max(width, 0.0)), height=_px(height))

    def line(self, css: str, x1: float, y1: float, x2: float, y2: float, title: str = "") -> None:
        self._add("line", css, title, x1=_pct(x1), y1=_px(y1), x2=_pct(x2), y2=_px(y2))

    def dot(self, css: str, x: float, y: float, radius: float = 3.5, title: str = "") -> None:
        self._add("circle", css, title, cx=_pct(x), cy=_px(y), r=_px(radius))

    def shape(self, css: str, x: float, y: float, path: str, title: str = "") -> None:
        """A path in pixels around the point (``x`` percent, ``y`` pixels)."""
        anchor = ET.SubElement(self._root, "svg", {"x": _pct(x), "y": _px(y), "overflow": "visible"})
        self._add("path", css, title, anchor, d=path)

    def text(self, css: str, x: float, y: float, text: str, anchor: str = "start") -> None:
        element = self._add("text", css, "", x=_pct(x), y=_px(y))
        element.set("text-anchor", anchor)
        element.text = clean(text)

    def axis(self, scale: Scale, y: float, most: int = 5) -> None:
        """The scale's values under ``y``."""
        for value, label in scale.ticks(most):
            x = scale(value)
            self.text("tick", x, y + 14, label, "start" if x < 6 else "end" if x > 94 else "middle")

    def markup(self) -> Markup:
        return Markup(ET.tostring(self._root, encoding="unicode"))

    def _add(self, tag: str, css: str, title: str, parent: ET.Element | None = None, **attributes: str) -> ET.Element:
        element = ET.SubElement(self._root if parent is None else parent, tag, {"class": css, **attributes})
        if title:
            ET.SubElement(element, "title").text = clean(title)
        return element


#: Paths for ``Drawing.shape``.
DIAMOND = "M0-6L6 0L0 6L-6 0Z"
LEFT = "M-5 0L4-5V5Z"
RIGHT = "M5 0L-4-5V5Z"


def drawable(value: float | None) -> TypeGuard[float]:
    """Whether a number is there and of a size that something measured can have."""
    return value is not None and abs(value) < 1e12  # false for NaN and infinity


def _pct(x: float) -> str:
    return f"{x:.2f}%"


def _px(y: float) -> str:
    return f"{y:.1f}"
