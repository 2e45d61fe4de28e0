"""The worked example shows what its stored reports hold, as today's version prints it, and nothing of a machine."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.pages import DOCS

FOLDER = DOCS / "examples" / "h200"
REPORTS = sorted(FOLDER.glob("*.json"))


@pytest.fixture(scope="module")
def render() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_h200", FOLDER / "render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(render: ModuleType) -> None:
    page = FOLDER.with_suffix(".md").read_text(encoding="utf-8")
    assert page == render.rendered(page), "run: python docs/examples/h200/render.py"
    assert set(re.findall(r"<!-- report: ([\w-]+) -->", page)) == {file.stem for file in REPORTS}


@pytest.mark.parametrize("report", REPORTS, ids=lambda p: p.stem)
def test_each_report_has_its_page_and_its_numbers(render: ModuleType, report: Path) -> None:
    shown = report.with_suffix(".html").read_text(encoding="utf-8")
    assert all(launch.id in shown for server in render.session(report.stem).servers for launch in server.launches)
    assert "<svg" in render.web_page(report.stem)


def test_no_machine_is_named() -> None:
    for file in [f for f in FOLDER.rglob("*") if f.suffix in (".json", ".html", ".toml")]:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"/(opt|root|home|tmp|work|mnt|data)/", text), file
        assert not {u for u in re.findall(r"GPU-[0-9a-f-]{36}", text) if "-0000-0000-0000-" not in u}, file
