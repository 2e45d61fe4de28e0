"""The dependency review is complete."""

from __future__ import annotations

import re

import tomli

from tests.docs.pages import DOCS, ROOT


def test_every_dependency_is_reviewed() -> None:
    project = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    names = {re.split(r"[\[;<>=! ]", requirement)[0] for requirement in wanted} - {project["name"]}
    page = (DOCS / "reference" / "dependencies.md").read_text(encoding="utf-8")
    assert names - set(re.findall(r"`([\w-]+)`", page)) == set()


def test_every_file_it_names_is_there() -> None:
    page = (DOCS / "reference" / "dependencies.md").read_text(encoding="utf-8")
    files = set(re.findall(r"`((?:\w+/)*\w+\.py|\w+/)`", page))
    assert files
    assert [f for f in files if not (ROOT / "pytest_llmperf" / f).exists()] == []
