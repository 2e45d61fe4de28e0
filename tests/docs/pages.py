"""The pages as the tests see them: fenced blocks, and the directives in comments before them.

A page with directives is a script. ``<!-- file: PATH -->`` writes the block below it to the project; ``<!-- run -->``
runs it: Python where this repository lies, console lines in the project, whose engines are the stand-in.
``<!-- run: exit 1; NAME=VALUE -->`` expects that exit code and sets a variable for it. ``<!-- output -->`` holds what
the last run must have printed: these lines in this order, with ``*`` for anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(
    r"(?:^<!-- (?P<word>\w+)(?:: (?P<argument>.*?))? -->\n)?^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block of ``page``; ``directive`` is empty for one that is only read."""

    page: Path
    line: int
    language: str
    text: str
    directive: str = ""
    argument: str = ""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def every_page() -> list[Path]:
    return sorted({*DOCS.rglob("*.md"), ROOT / "README.md", *(ROOT / "examples").rglob("*.md")})


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        yield Block(page, line, found["language"], found["text"], found["word"] or "", found["argument"] or "")


def commands(block: Block) -> Iterator[str]:
    """Command lines of a console block, without prompt and with continued lines joined."""
    for line in block.text.replace("\\\n", " ").splitlines():
        command = line.removeprefix("$ ").strip()
        if command and not command.startswith("#"):
            yield command
