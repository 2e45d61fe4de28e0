"""Imports go one way: the table of docs/concepts/architecture.md, held against every import of the package."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import pytest_llmperf

PACKAGE = Path(pytest_llmperf.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "architecture.md"


def table() -> dict[str, tuple[frozenset[str], bool]]:
    """Room to what it may import of ours and whether it knows pytest, as the page says."""
    lines = PAGE.read_text(encoding="utf-8").split("## Who may import whom")[1].split("\n\n")[2].splitlines()[2:]
    cells = [line.split("|")[1:4] for line in lines]
    names = [[re.findall("`(.+?)`", cell) for cell in row[:2]] + [row[2].strip() == "yes"] for row in cells]
    return {room: (frozenset(others), knows) for rooms, others, knows in names for room in rooms}


TABLE = table()


def imports(source: str, package: str) -> Iterator[str]:
    """Full names of the modules that ``source``, a module in ``package``, imports anywhere, for types too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            # `from package import module` imports the module
            yield from (name if name in MODULES else base for name in (f"{base}.{alias.name}" for alias in node.names))


def modules() -> dict[str, Path]:
    """Full name to file of every module; a package by its own name."""
    files = sorted(PACKAGE.rglob("*.py"))
    names = [".".join(["pytest_llmperf", *f.relative_to(PACKAGE).with_suffix("").parts]) for f in files]
    return {name.removesuffix(".__init__"): file for name, file in zip(names, files, strict=True)}


MODULES = modules()


def found(name: str) -> set[str]:
    file = MODULES[name]
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    return set(imports(file.read_text(encoding="utf-8"), package))


def room_of(name: str) -> str:
    """``pytest_llmperf.stats.gate`` is in ``stats``; a module at the top is a room."""
    return name.split(".")[1] if "." in name else ""


ROOMS = {room_of(name) for name in MODULES} - {"", "__main__"}
CLASSES = [
    node.name
    for file in MODULES.values()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
]


def test_the_page_names_every_room() -> None:
    assert set(TABLE) == ROOMS
    assert set().union(*(others for others, _ in TABLE.values())) <= ROOMS


def test_the_table_goes_one_way() -> None:
    """Raises ``CycleError`` with the rooms of a circle."""
    TopologicalSorter({room: others for room, (others, _) in TABLE.items()}).prepare()


def test_no_two_modules_import_each_other() -> None:
    """Raises ``CycleError`` with the modules of a circle."""
    TopologicalSorter({name: found(name) & set(MODULES) - {name} for name in MODULES}).prepare()


def test_the_top_is_small() -> None:
    top = [name for name, file in MODULES.items() if file.parent == PACKAGE and file.name != "__init__.py"]
    assert len(top) <= 8, top


@pytest.mark.parametrize(
    "names",
    [[name.rpartition(".")[2] for name in MODULES if not name.endswith("__main__")], CLASSES],
    ids=["modules", "classes"],
)
def test_a_name_is_used_once(names: list[str]) -> None:
    assert [name for name, times in Counter(names).items() if times > 1] == []


def test_imports_are_found_in_every_form() -> None:
    lines = ("import a.b", "from . import pool", "from .. import stats", "from pytest_llmperf import plugin")
    source = "\n".join((*lines, "def f():", "    from ..c import d"))
    ours = {f"pytest_llmperf.{name}" for name in ("server.pool", "stats", "plugin", "c")}
    assert set(imports(source, "pytest_llmperf.server")) == {"a.b"} | ours


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_imports_only_what_the_page_allows(room: str) -> None:
    others, knows_pytest = TABLE[room]
    for name in (n for n in MODULES if room_of(n) == room):
        seen = found(name)
        wrong = {room_of(x) for x in seen if x.startswith("pytest_llmperf.")} - others - {room}
        assert not wrong, f"{name} imports {wrong}"
        assert knows_pytest or not {x.split(".")[0] for x in seen} & {"pytest", "_pytest", "xdist"}, name


def test_only_the_plugin_imports_the_hooks_of_a_session() -> None:
    users = {name for name in MODULES if "pytest_llmperf.session.hooks" in found(name)}
    assert users <= {"pytest_llmperf.plugin", "pytest_llmperf.fixtures", "pytest_llmperf.cli.collect"}
    assert not any("pytest_llmperf.plugin" in found(name) for name in MODULES)


def test_a_session_that_measures_nothing_loads_no_heavy_library(tmp_path: Path) -> None:
    """In a process of its own: this one has loaded them long ago."""
    heavy = ("numpy", "scipy", "openai", "jinja2", "matplotlib")
    code = f"import sys, pytest_llmperf.plugin; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"
