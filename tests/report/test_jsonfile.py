"""The JSON file: its form, its schema, and that it is never half written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.records import jsonfile, results, schema
from tests.report import samples
from tests.report.hostile import hostile

SESSIONS = {"full": samples.FULL, "green": samples.GREEN, "empty": samples.EMPTY, "hostile": hostile()}


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    Draft202012Validator.check_schema(schema.load())
    return Draft202012Validator(schema.load())


@pytest.mark.parametrize("name", SESSIONS)
def test_what_is_written_is_valid_and_reads_back_the_same(
    name: str, validator: Draft202012Validator, tmp_path: Path
) -> None:
    session = SESSIONS[name]
    path = tmp_path / "deep" / "er" / "report.json"
    jsonfile.dump(session, path)
    data = json.loads(path.read_text())
    assert results.SessionRecord.from_json(data).to_json() == session.to_json()
    if name == "hostile":  # whose roles are no roles
        with pytest.raises(ConfigError, match=r"\$\.results\[0\]\.launches\[0\]\.role"):
            jsonfile.load(path)
    else:
        validator.validate(data)
        assert jsonfile.load(path).to_json() == session.to_json()
    assert [p.name for p in path.parent.iterdir()] == ["report.json"]


def test_the_documented_form() -> None:
    data = samples.FULL.to_json()
    assert data["schema"] == 1
    assert set(data) == {"schema", "session", "servers", "results", "gaps", "sweeps", "curves"}
    regressed = data["results"][1]
    assert regressed["direction"] == "higher"
    assert regressed["band"] == [80.87, 84.16]
    assert regressed["baseline"]["launches"] == 5
    assert [x["role"] for x in regressed["launches"]] == ["screen", "confirm", "confirm"]
    assert data["results"][2]["direction"] == "lower"


def test_a_result_survives_the_way_there_and_back() -> None:
    for result in samples.FULL.results:
        again = results.Result.from_json(json.loads(json.dumps(result.to_json())))
        if result.verdict == "invalid":
            assert math.isnan(again.launches[0].values[1])
        else:
            assert again == result


def test_fields_of_a_later_version_are_ignored() -> None:
    data = samples.FULL.to_json()
    data["results"][0]["new_field"] = 1
    data["servers"][0]["launches"][0]["new_field"] = 1
    assert results.SessionRecord.from_json(data).results[0] == samples.PASSED


def test_only_built_in_types_leave() -> None:
    """numpy's numbers and read-only mappings would stop json or xdist's serializer."""
    result = replace(
        samples.PASSED, value=np.float64(79.93), nu=np.float32(4), required_launches=np.int64(3),
        workload=MappingProxyType({"a": np.int32(1), "b": (1, 2)}), mde=math.inf,
    )  # fmt: skip
    data = result.to_json()
    assert [type(data[k]) for k in ("value", "nu", "required_launches", "mde")] == [float, float, int, type(None)]
    assert data["workload"] == {"a": 1, "b": [1, 2]}


def _broken(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(samples.FULL.to_json()))
    change(data)
    return data


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(schema=2),
        lambda d: d.pop("results"),
        lambda d: d["results"][0].update(verdict="fine"),
        lambda d: d["results"][0].update(value="79.93"),
        lambda d: d["results"][0].update(value=None),
        lambda d: d["results"][0].update(launches=[]),
        lambda d: d["results"][0].update(band=[1.0]),
        lambda d: d["results"][0].update(direction="up"),
        lambda d: d["results"][0].pop("mde"),
        lambda d: d["results"][0].update(typo=1),
        lambda d: d["results"][0]["baseline"].update(launches=0),
        lambda d: d["results"][0]["launches"][0].update(role="rerun"),
        lambda d: d["servers"][0]["launches"][0].update(startup_s=-1.0),
        lambda d: d["session"]["messages"].append({"kind": "shout", "text": ""}),
        lambda d: d["session"].update(alpha=1.5),
        lambda d: d["gaps"][0].update(ratio=0),
        lambda d: d["curves"][0]["points"][0].update(concurrency=0),
    ],
)
def test_the_schema_refuses(change: Callable[[dict[str, Any]], object], validator: Draft202012Validator) -> None:
    assert validator.is_valid(_broken(lambda d: None))
    assert not validator.is_valid(_broken(change))


def test_the_schema_knows_every_field() -> None:
    """A field added to a record without a word in the schema would make every file invalid."""
    defs = schema.load()["$defs"]
    result = {f.name for f in fields(results.Result)} - {"higher_is_better"} | {"direction"}
    assert set(defs["result"]["properties"]) == result
    for name, example in (
        ("server", samples.SGLANG), ("gap", samples.GAP), ("sweep", samples.SWEEP), ("curve", samples.CURVE),
    ):  # fmt: skip
        assert set(defs[name]["properties"]) == {f.name for f in fields(example)}
    assert sorted(defs["result"]["properties"]["verdict"]["enum"]) == sorted(results.VERDICTS)
    kinds = defs["session"]["properties"]["messages"]["items"]["properties"]["kind"]["enum"]
    assert tuple(kinds) == results.MESSAGE_KINDS


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    jsonfile.dump(samples.GREEN, path)
    before = path.read_bytes()
    with pytest.raises(UnicodeEncodeError):
        jsonfile.write(path, "half \ud800")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write the report .*file/report\.json"):
        jsonfile.dump(samples.GREEN, tmp_path / "file" / "report.json")
    with pytest.raises(ConfigError, match="cannot write the report"):
        jsonfile.dump(samples.GREEN, tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", '{"schema": 2}', '{"schema": 1}', '{"schema": 1, "session": {}, "servers": 3, "results": []}',
     '{"schema": 1, "session": {}, "servers": [], "results": [{}]}', "\x00", "[" * 100_000],
)  # fmt: skip
def test_a_file_that_is_no_report_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"other\.json is not a report of --llmperf-json"):
        jsonfile.load(path)
    with pytest.raises(ConfigError, match="cannot read the report"):
        jsonfile.load(tmp_path / "none.json")


def test_message_kinds_are_checked() -> None:
    with pytest.raises(ValueError, match="shout"):
        results.message("shout", "text")
