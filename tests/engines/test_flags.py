"""Engine-only flags: verbatim, in the order given, one argument each."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmperf.engines import command_flags
from pytest_llmperf.engines.command_flags import Spelling


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({"num_continuous_decode_steps": 4}, ["--num-continuous-decode-steps", "4"]),
        ({"--tp-size": 2}, ["--tp-size", "2"]),
        ({"disable_overlap_schedule": True}, ["--disable-overlap-schedule"]),
        ({"disable_overlap_schedule": False}, []),
        ({"revision": None}, []),
        ({"cuda_graph_bs_decode": [1, 2, 4]}, ["--cuda-graph-bs-decode", "1", "2", "4"]),
        ({"mem_fraction_static": 0.5}, ["--mem-fraction-static", "0.5"]),
        ({"seed": -1}, ["--seed", "-1"]),
        ({"chat_template": "-x"}, ["--chat-template=-x"]),
        ({"model_name": "a b; rm -rf $HOME"}, ["--model-name", "a b; rm -rf $HOME"]),
        ({"compilation_config": {"mode": 3, "sizes": (1, 2)}}, ["--compilation-config", '{"mode":3,"sizes":[1,2]}']),
        ({"compilation-config.mode": 3}, ["--compilation-config.mode", "3"]),
        ({"a": 1, "b": True}, ["--a", "1", "--b"]),
    ],
)
def test_argv(declared: dict[str, Any], expected: list[str]) -> None:
    assert command_flags.argv(declared, Spelling()) == expected


def test_false_is_spelled_out_where_the_engine_has_a_no_form() -> None:
    flags = {"async_scheduling": False, "x": True}
    assert command_flags.argv(flags, Spelling(negates=True)) == ["--no-async-scheduling", "--x"]
    assert command_flags.argv(flags, Spelling(dashes=False, negates=True)) == ["--no_async_scheduling", "--x"]


def test_spellings_of_one_flag_meet() -> None:
    assert command_flags.normal({"--tp-size": 1, "max-num-seqs": 2}) == {"tp_size": 1, "max_num_seqs": 2}
