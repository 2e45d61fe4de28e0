"""A sweep marker becomes the base and its variations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.tuning.plan import plan
from pytest_llmperf.tuning.presets import load_presets

PRESETS = load_presets()
DECLARED = {"model": "m", "tp": 8, "nccl": {"proto": "LL", "algo": "Ring"}, "attention_backend": "fa3"}


def made(declared: dict[str, Any] = DECLARED, **marker: Any) -> dict[str, dict[str, Any]]:
    """Each variation's keywords that are not the declared ones."""
    found = plan(marker, declared, PRESETS).variations
    return {v.name: {k: x for k, x in v.keywords.items() if declared.get(k, "nothing") != x} for v in found}


def test_one_knob_at_a_time_without_the_bases_own_values() -> None:
    assert made(attention_backend=["fa3", "triton"], nccl__proto=["LL", "Simple", None]) == {
        "attention_backend=triton": {"attention_backend": "triton"},
        "nccl.proto=Simple": {"nccl": {"proto": "Simple", "algo": "Ring"}},
        "nccl.proto=engine default": {"nccl": {"proto": None, "algo": "Ring"}},
    }


def test_the_base_moves_the_declared_server_first() -> None:
    found = plan({"base": {"nccl__proto": "Simple", "tp": 4}, "nccl__proto": ["LL", "Simple"]}, DECLARED)
    nccl = {"proto": "Simple", "algo": "Ring"}
    assert dict(found.base.keywords) == {**DECLARED, "nccl": nccl, "tp": 4}
    assert dict(found.base_settings) == {"nccl.proto": "Simple"}
    assert found.base.name == "base"
    (only,) = found.variations
    assert dict(only.keywords) == {**DECLARED, "nccl": {**nccl, "proto": "LL"}, "tp": 4}


def test_the_grid_is_every_combination_but_the_base() -> None:
    found = made(attention_backend=["fa3", "triton"], nccl__proto=["LL", "Simple"], full=True)
    assert list(found) == [
        "nccl.proto=Simple",
        "attention_backend=triton",
        "attention_backend=triton, nccl.proto=Simple",
    ]
    assert found["attention_backend=triton, nccl.proto=Simple"] == {
        "attention_backend": "triton",
        "nccl": {"proto": "Simple", "algo": "Ring"},
    }


@given(st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_the_number_of_variations(a: int, b: int, full: bool) -> None:
    knobs = {"x": [f"x{i}" for i in range(a)], "y": [f"y{i}" for i in range(b)]}
    found = plan({**knobs, "full": full}, {"x": "x0", "y": "other"})
    expected = a * (b + 1) - 1 if full else (a - 1) + b
    assert len(found.variations) == expected
    assert len({v.name for v in found.variations}) == expected


def test_whole_mappings_can_be_values() -> None:
    drafters = [{"method": "eagle3", "model": "a"}, {"model": "b", "method": "eagle3"}]
    found = made({**DECLARED, "speculative": {"method": "ngram", "num_steps": 3}}, speculative=[None, *drafters])
    # whole: nothing of the declared drafter is left in another one
    assert list(found.values()) == [{"speculative": d} for d in (None, *drafters)]
    assert 'speculative={"method":"eagle3","model":"b"}' in found


def test_engine_flags_and_environment_are_knobs_too() -> None:
    found = made(sglang__num_continuous_decode_steps=[1, 4], env__OMP_NUM_THREADS=["1"], cuda_graph=[True, False])
    assert found["sglang.num_continuous_decode_steps=4"] == {"sglang": {"num_continuous_decode_steps": 4}}
    assert found["env.OMP_NUM_THREADS=1"] == {"env": {"OMP_NUM_THREADS": "1"}}
    assert found["cuda_graph=false"] == {"cuda_graph": False}


@pytest.mark.parametrize("name", ["PROTO", "NCCL_PROTO"])
def test_a_name_of_nccl_is_the_bases_however_it_is_written(name: str) -> None:
    assert made(**{f"nccl__{name}": ["LL", "Simple"]}) == {
        f"nccl.{name}=Simple": {"nccl": {"proto": "Simple", "algo": "Ring"}}
    }


def test_a_variable_of_another_case_is_another_one() -> None:
    found = made({**DECLARED, "env": {"OMP": "1"}}, env__omp=["1"])
    assert found == {"env.omp=1": {"env": {"OMP": "1", "omp": "1"}}}


def test_secrets_are_not_shown() -> None:
    """Nor do they make another server."""
    declared = {"model": "m", "env": {"HF_TOKEN": "hf_0"}}
    found = plan({"env__HF_TOKEN": ["hf_1"], "env__PROXY": ["http://me:hunter2@proxy"], "tp": [2]}, declared)
    assert [v.name for v in found.variations] == ["env.PROXY=http://***@proxy", "tp=2"]
    assert dict(found.base_settings) == {"env.HF_TOKEN": "***", "env.PROXY": "engine default", "tp": "engine default"}
    assert found.variations[0].keywords["env"]["PROXY"] == "http://me:hunter2@proxy"
    (drafter,) = plan({"speculative": [{"model": "d", "api_key": "k"}]}, declared).variations
    assert drafter.name == 'speculative={"api_key":"***","model":"d"}'


def test_presets_are_values_under_their_name() -> None:
    found = plan({"base": {"nccl": "ll"}, "nccl": ["ll", "tree", None]}, {"model": "m"}, PRESETS)
    assert dict(found.base_settings) == {"nccl": "ll"}
    assert {v.name: v.keywords["nccl"] for v in (found.base, *found.variations)} == {
        "base": {"proto": "LL"},
        "nccl=tree": {"algo": "Tree"},
        "nccl=engine default": None,
    }


def test_nothing_that_was_declared_is_changed() -> None:
    declared = {"nccl": {"proto": "LL"}}
    found = plan({"nccl__algo": ["Tree"]}, declared).variations[0]
    assert declared == {"nccl": {"proto": "LL"}}
    with pytest.raises(TypeError):
        found.keywords["nccl"] = {}  # type: ignore[index]


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ({}, "varies nothing; name a knob"),
        ({"attention_backend": "fa3"}, "must be a list of values"),
        ({"nccl": {"proto": ["LL"]}}, "must be a list of values"),
        ({"tp": 4}, "must be a list of values"),
        ({"tp": []}, "has no value to try"),
        ({"tp": [8]}, "every value it names is the base's own"),
        ({"tp": [4, 4]}, "names 4 twice"),
        ({"base": ["tp"], "tp": [4]}, "must be a dict"),
        ({"tp": [4], "launches": 0}, "whole number from 1"),
        ({"tp": [4], "launches": True}, "whole number from 1"),
        ({"tp": [4], "full": "yes"}, "must be True or False"),
        ({"tp": [4], "name": ""}, "must be text"),
        ({"nccl": ["ll-rnig"]}, "no preset 'll-rnig' for nccl .did you mean 'll-ring'"),
        ({"base": {"nccl": "ll-rnig"}, "tp": [4]}, r"llm_sweep\(base=...\): no preset 'll-rnig'"),
        ({"nccl__": ["LL"]}, "write mapping__key"),
        ({"nccl": [{"proto": "LL"}], "nccl__proto": ["LL"]}, "varies both nccl and nccl__proto"),
        ({"x": list(range(20)), "y": list(range(20)), "full": True}, "440 variations; 64 is the most"),
    ],
)
def test_a_wrong_marker_names_the_knob(marker: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plan(marker, DECLARED, PRESETS)
    assert str(caught.value).startswith("llm_sweep")
