"""The reports know values, not pytest, and no other room but the leaf that names errors."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest_llmperf.report

FOLDER = Path(pytest_llmperf.report.__file__).parent


def test_report_imports_only_itself_and_errors() -> None:
    seen = set()
    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                seen |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                seen.add(node.module or "")
    assert "rich.text" in seen
    ours = {name for name in seen if name.startswith("pytest_llmperf")}
    assert {n for n in ours if not n.startswith("pytest_llmperf.report")} == {"pytest_llmperf.errors"}
    assert not {name for name in seen - ours if name.split(".")[0] in ("pytest", "_pytest", "xdist")}
