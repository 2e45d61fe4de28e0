"""What other programs read: JUnit properties, github-action-benchmark, Bencher."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_llmperf.records.results import SessionRecord
from pytest_llmperf.report import export, junit
from tests.report import samples
from tests.report.hostile import hostile


def test_junit_properties() -> None:
    assert dict(junit.properties(samples.REGRESSED)) == {
        "llmperf.decode_tok_s.verdict": "regressed",
        "llmperf.decode_tok_s.value": "63.61",
        "llmperf.decode_tok_s.unit": "tok/s",
        "llmperf.decode_tok_s.direction": "higher",
        "llmperf.decode_tok_s.band_low": "80.87",
        "llmperf.decode_tok_s.band_high": "84.16",
        "llmperf.decode_tok_s.baseline": "82.51",
        "llmperf.decode_tok_s.baseline_launches": "5",
        "llmperf.decode_tok_s.baseline_path": "test_single_stream.sglang.3f2a91c0.toml",
        "llmperf.decode_tok_s.change": "-0.22903",
        "llmperf.decode_tok_s.mde": "0.0209",
        "llmperf.decode_tok_s.target": "82.5",
        "llmperf.decode_tok_s.launches": "3",
        "llmperf.decode_tok_s.engine": "sglang",
        "llmperf.decode_tok_s.server": "3f2a91c0b7de",
        "llmperf.decode_tok_s.reasons": "63.61 tok/s is below the band on 2 fresh launches; "
        "target 82.5 tok/s: the upper limit 64.4 is under it",
    }


def test_junit_leaves_out_what_is_unknown() -> None:
    names = {name for name, _ in junit.properties(samples.INVALID)}
    assert "llmperf.decode_tok_s.value" not in names
    assert "llmperf.decode_tok_s.band_low" not in names
    assert "llmperf.decode_tok_s.reasons" in names


def test_junit_properties_are_xml_whatever_they_hold() -> None:
    """pytest writes names unescaped into the tree; what is in them must be legal in XML 1.0."""
    for result in hostile().results:
        suite = ET.Element("properties")
        for name, value in junit.properties(result):
            ET.SubElement(suite, "property", name=name, value=value)
        again = ET.fromstring(ET.tostring(suite))
        assert [(p.get("name"), p.get("value")) for p in again] == junit.properties(result)


def test_github_action_benchmark_has_one_file_a_direction() -> None:
    out = export.github_action_benchmark(samples.FULL)
    bigger, smaller = out["customBiggerIsBetter"], out["customSmallerIsBetter"]
    assert [e["name"] for e in smaller] == ["tests/perf/test_decode.py::test_ttft (sglang) ttft_ms"]
    regressed = next(e for e in bigger if "test_single_stream (sglang)" in e["name"])
    assert regressed == {
        "name": "tests/perf/test_decode.py::test_single_stream (sglang) decode_tok_s",
        "unit": "tok/s",
        "value": 63.61,
        "range": "63.4 .. 63.8",
        "extra": "verdict: regressed\nband: [80.87, 84.16]\nMDE: 2.1%",
    }
    assert len(bigger) + len(smaller) == len(samples.FULL.results) - 2
    assert not any("test_tools" in e["name"] for e in bigger)


def test_bencher_metric_format() -> None:
    out = export.bencher(samples.FULL)
    assert out["tests/perf/test_decode.py::test_single_stream (sglang)"] == {
        "decode_tok_s": {"value": 63.61, "lower_value": 63.4, "upper_value": 63.8}
    }
    assert "tests/perf/test_decode.py::test_tools (sglang)" not in out


def test_bencher_keeps_several_metrics_of_a_test() -> None:
    ttft = replace(samples.PASSED, metric="ttft_ms", value=141.2, launches=samples.IMPROVED.launches)
    out = export.bencher(SessionRecord({}, (), (samples.PASSED, ttft)))
    assert set(out["tests/perf/test_decode.py::test_long_prompt (sglang)"]) == {"decode_tok_s", "ttft_ms"}


@pytest.mark.parametrize("session", [samples.FULL, samples.EMPTY, hostile()], ids=["full", "empty", "hostile"])
def test_exports_are_json(session: SessionRecord, tmp_path: Path) -> None:
    for value in (export.bencher(session), export.github_action_benchmark(session)):
        assert json.loads(json.dumps(value, allow_nan=False)) == value
