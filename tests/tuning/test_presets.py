"""Presets: data that holds, names that resolve, users' own beside them."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmperf.engines import nccl
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.tuning.presets import expand, load_presets

SHIPPED = load_presets()


def test_the_founding_case_has_its_six_variables() -> None:
    declared = expand({"model": "m", "nccl": "ll-ring"}, SHIPPED, "t")
    assert nccl.variables(declared["nccl"], "t") == {
        "NCCL_PROTO": "LL",
        "NCCL_ALGO": "Ring",
        "NCCL_P2P_LEVEL": "SYS",
        "NCCL_MAX_NCHANNELS": "16",
        "NCCL_BUFFSIZE": "16777216",
        "NCCL_NTHREADS": "512",
    }
    assert declared["model"] == "m"


@pytest.mark.parametrize("preset", SHIPPED.values(), ids=lambda p: f"{p.key}.{p.name}")
def test_every_shipped_preset_holds(preset: Any) -> None:
    assert preset.reason.endswith(".")
    assert preset.values
    assert preset.key in ("nccl", "sglang", "vllm", "env")
    if preset.key == "nccl":
        nccl.variables(preset.values, "preset")


def test_a_list_merges_names_and_dicts_in_order() -> None:
    declared = expand({"nccl": ["ll-ring", {"proto": "LL128"}, "no-nvls"]}, SHIPPED, "t")
    assert (declared["nccl"]["proto"], declared["nccl"]["algo"], declared["nccl"]["nvls_enable"]) == (
        "LL128",
        "Ring",
        0,
    )


def test_dicts_and_other_keys_stay_as_they_are() -> None:
    declared = {"nccl": {"proto": "LL"}, "env": None, "attention_backend": "ll-ring", "tp": 8}
    assert expand(declared, SHIPPED, "t") == declared


def test_a_users_own_preset_beside_and_over_the_shipped() -> None:
    own = {
        "nccl": {
            "mine": {"values": {"proto": "LL"}, "reason": "r"},
            "simple": {"values": {"algo": "Tree"}, "reason": "r"},
        }
    }
    presets = load_presets(own)
    assert expand({"nccl": "mine"}, presets, "t")["nccl"] == {"proto": "LL"}
    assert expand({"nccl": "simple"}, presets, "t")["nccl"] == {"algo": "Tree"}
    assert ("nccl", "ll-ring") in presets


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"nccl": "ll-rnig"}, "no preset 'll-rnig' for nccl .did you mean 'll-ring'"),
        ({"nccl": "zzz"}, "there are: few-channels, "),
        ({"sglang": "ll-ring"}, "no preset 'll-ring' for sglang"),
        ({"nccl": ["ll-ring", 3]}, "names of presets and dicts, not 3"),
    ],
)
def test_a_wrong_name_names_the_test_and_the_nearest(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        expand(declared, SHIPPED, "t.py::test")
    assert str(caught.value).startswith("t.py::test: ")


@pytest.mark.parametrize(
    "own",
    [
        {"nccl": 1},
        {"nccl": {"x": {"reason": "r"}}},
        {"nccl": {"x": {"values": {}}}},
        {"nccl": {"x": 1}},
        {"nccl": {"x": {"values": {}, "reason": "r", "why": 1}}},
    ],
)
def test_a_table_of_another_shape(own: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"tool.llmperf.presets"):
        load_presets(own)
