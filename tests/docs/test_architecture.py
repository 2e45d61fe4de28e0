"""Imports go one way: the table of docs/concepts/architecture.md, held against every import of the package."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_llmperf

PACKAGE = Path(pytest_llmperf.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "architecture.md"
FACE = frozenset({"pytest", "_pytest", "xdist"})


def allowed() -> dict[str, frozenset[str]]:
    """Room to what it may import of ours, as the page says."""
    table = PAGE.read_text(encoding="utf-8").split("## Who may import whom")[1].split("\n\n")[1]
    rows = [[re.findall("`(.+?)`", cell) for cell in line.split("|")[1:3]] for line in table.splitlines()[2:]]
    return {room: frozenset(others) for rooms, others in rows for room in rooms}


ALLOWED = allowed()


def imports(source: str, package: str) -> Iterator[str]:
    """Full names of the modules that ``source``, a module in ``package``, imports anywhere."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            # `from package import module` imports the module
            yield from (f"{base}.{alias.name}" if base == "pytest_llmperf" else base for alias in node.names)


def room_of(name: str) -> str:
    """``pytest_llmperf.stats.gate`` is in ``stats``; ``server.config`` is a room of its own."""
    parts = name.split(".")[1:]
    return "server.config" if parts[:2] == ["server", "config"] else parts[0] if parts else ""


def modules() -> Iterator[tuple[str, str, Path]]:
    """(full name, package, file) of every module."""
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = ["pytest_llmperf", *file.relative_to(PACKAGE).with_suffix("").parts]
        yield ".".join(parts), ".".join(parts[:-1]), file


def ours(name: str, package: str, file: Path) -> set[str]:
    """Rooms that a module imports, its own left out."""
    found = imports(file.read_text(encoding="utf-8"), package)
    return {room_of(x) for x in found if x.split(".")[0] == "pytest_llmperf"} - {room_of(name)}


def test_the_page_names_rooms_that_exist() -> None:
    assert {room_of(name) for name, _, _ in modules()} >= set(ALLOWED)
    assert set().union(*ALLOWED.values()) <= set(ALLOWED)


def test_imports_are_found_in_every_form() -> None:
    lines = ("import a.b", "from . import x", "from .. import stats", "from pytest_llmperf import plugin")
    source = "\n".join((*lines, "def f():", "    from ..c import d"))
    found = set(imports(source, "pytest_llmperf.server"))
    assert found == {
        "a.b",
        "pytest_llmperf.server",
        "pytest_llmperf.stats",
        "pytest_llmperf.plugin",
        "pytest_llmperf.c",
    }


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_a_room_imports_only_what_the_page_allows(room: str) -> None:
    for name, package, file in modules():
        if room_of(name) == room:
            wrong = ours(name, package, file) - ALLOWED[room] - {""}
            assert not wrong, f"{name} imports {wrong}"


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_a_room_below_the_face_knows_no_pytest(room: str) -> None:
    for name, package, file in modules():
        if room_of(name) == room:
            top = {x.split(".")[0] for x in imports(file.read_text(encoding="utf-8"), package)}
            assert not top & FACE, name


def test_nothing_imports_the_plugin_and_only_the_plugin_imports_active() -> None:
    users = {name: ours(name, package, file) & {"plugin", "active"} for name, package, file in modules()}
    assert {name: rooms for name, rooms in users.items() if rooms} == {"pytest_llmperf.plugin": {"active"}}


def test_a_session_that_measures_nothing_loads_no_heavy_library(tmp_path: Path) -> None:
    """In a process of its own: this one has loaded them long ago."""
    heavy = ("numpy", "scipy", "openai", "jinja2", "matplotlib")
    code = f"import sys, pytest_llmperf.plugin; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"
