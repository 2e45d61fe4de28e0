"""The reference page of the JSON report says what the schema says."""

from __future__ import annotations

import json
import re
from pathlib import Path

from jsonschema import Draft202012Validator

from pytest_llmperf.records import schema
from pytest_llmperf.records.results import SessionRecord
from pytest_llmperf.report import terminal
from pytest_llmperf.report.formats import FORMATS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "json-schema.md").read_text(encoding="utf-8")


def test_the_example_is_a_report() -> None:
    found = re.search(r"```json\n(.*?)```", PAGE, re.S)
    assert found
    data = json.loads(found[1])
    Draft202012Validator(schema.load()).validate(data)
    assert "regressed" in terminal.render(SessionRecord.from_json(data))


def test_every_field_is_explained() -> None:
    words = set(re.findall(r"`([\w.]+)(?:\[\])?`", PAGE))

    def names(node: object) -> set[str]:
        if isinstance(node, dict):
            own = set(node.get("properties", {})) if isinstance(node.get("properties"), dict) else set()
            return own.union(*(names(v) for v in node.values())) if node else own
        return set().union(*(names(v) for v in node)) if isinstance(node, list) else set()

    assert names(schema.load()) - words - {"results", "servers", "session"} == set()


def test_every_format_is_named() -> None:
    assert all(f"`{name}`" in PAGE for name in FORMATS)
