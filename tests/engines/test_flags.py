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
        (
            {"lora_paths": ["a", {"lora_name": "b", "pinned": True}]},
            ["--lora-paths", "a", '{"lora_name":"b","pinned":true}'],
        ),
        ({"a": 1, "b": True}, ["--a", "1", "--b"]),
    ],
)
def test_argv(declared: dict[str, Any], expected: list[str]) -> None:
    assert command_flags.argv(declared, Spelling()) == expected


def test_false_is_spelled_out_where_the_engine_has_a_no_form() -> None:
    flags = {"async_scheduling": False, "x": True}
    assert command_flags.argv(flags, Spelling(negates=True)) == ["--no-async-scheduling", "--x"]
    assert command_flags.argv(flags, Spelling(dashes=False, negates=True)) == ["--no_async_scheduling", "--x"]


@pytest.mark.parametrize(
    ("written", "form"),
    [
        ({"--tp-size": 1, "max-num-seqs": 2}, {"tp_size": 1, "max_num_seqs": 2}),
        ({"stream-interval": "2"}, {"stream_interval": 2}),
        ({"--stream-interval": 2.0}, {"stream_interval": 2}),
        ({"mem_fraction_static": "0.90"}, {"mem_fraction_static": 0.9}),
        ({"bs": ["1", 2.0]}, {"bs": [1, 2]}),
        ({"config": '{"mode": 3}'}, {"config": {"mode": 3}}),
        (
            {"--config.pass_config.fuse": "false", "config.mode": 3},
            {"config": {"pass_config": {"fuse": False}, "mode": 3}},
        ),
        ({"config": {"a": {"b": 1}}, "config.a.c": "x"}, {"config": {"a": {"b": 1, "c": "x"}}}),
        ({"config.size": "1k", "config.name": "1k"}, {"config": {"size": 1000, "name": 1000}}),
        ({"-ep": True}, {"enable_expert_parallel": True}),
        ({"-cc.cudagraph_mode": "FULL"}, {"config": {"cudagraph_mode": "FULL"}}),
        ({"length": "32K", "other": "32K"}, {"length": 32768, "other": "32K"}),
        ({"length": "25.6k"}, {"length": 25600}),
        ({"revision": "1.10", "tag": "007", "name": "{x"}, {"revision": "1.10", "tag": "007", "name": "{x"}),
        ({"a": 1, "--a": 2}, {"a": 2}),
        ({"-x": 1}, {"-x": 1}),
    ],
)
def test_however_a_flag_is_written_it_has_one_form(written: dict[str, Any], form: dict[str, Any]) -> None:
    spelling = Spelling(
        aliases={"-ep": "enable_expert_parallel", "-cc": "config"},
        dotted=True,
        suffixes={"k": 1000, "K": 1024},
        suffixed=frozenset({"length"}),
    )
    assert command_flags.normal(written, spelling) == form
    assert command_flags.normal(form, spelling) == form
