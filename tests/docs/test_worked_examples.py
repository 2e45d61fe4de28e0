"""The worked examples show what their stored reports hold, as today's version prints it, and nothing of a machine."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.pages import DOCS

SCRIPT = DOCS / "examples" / "render.py"
FOLDERS = [DOCS / "examples" / name for name in ("h200", "h200-8b", "h200-today", "h200x2")]
REPORTS = sorted(report for folder in FOLDERS for report in folder.glob("*.json"))


@pytest.fixture(scope="module")
def render() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_examples", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_folder_is_rendered(render: ModuleType) -> None:
    assert list(render.FOLDERS) == FOLDERS


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_the_page_is_current(render: ModuleType, folder: Path) -> None:
    page = folder.with_suffix(".md").read_text(encoding="utf-8")
    assert page == render.rendered(folder, page), "run: python docs/examples/render.py"
    assert set(re.findall(r"<!-- report: ([\w-]+) -->", page)) == {file.stem for file in folder.glob("*.json")}


@pytest.mark.parametrize("report", REPORTS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_each_report_has_its_page_and_its_numbers(render: ModuleType, report: Path) -> None:
    shown = report.with_suffix(".html").read_text(encoding="utf-8")
    launches = {x.id for server in render.session(report.parent, report.stem).servers for x in server.launches}
    assert launches
    assert all(launch in shown for launch in launches)
    assert "<svg" in render.web_page(report.parent, report.stem)


def test_no_machine_is_named() -> None:
    for file in [f for folder in FOLDERS for f in folder.rglob("*") if f.suffix in (".json", ".html", ".toml")]:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"/(opt|root|home|tmp|work|mnt|data)/", text), file
        assert not {u for u in re.findall(r"GPU-[0-9a-f-]{36}", text) if "-0000-0000-0000-" not in u}, file
