"""The identity of a server."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.server_config import ServerConfig

WORDS = st.text(min_size=1, max_size=8)


def test_the_order_of_a_declaration_is_no_difference() -> None:
    one = ServerConfig("sglang", "m", env={"A": "1", "B": "2"}, flags={"x": 1, "y": {"b": 1, "a": 2}})
    two = ServerConfig("sglang", "m", env={"B": "2", "A": "1"}, flags={"y": {"a": 2, "b": 1}, "x": 1})
    assert (one, one.key, hash(one)) == (two, two.key, hash(two))


def test_every_field_that_makes_another_server_is_in_the_key() -> None:
    base = ServerConfig("sglang", "m")
    others = [
        ServerConfig("vllm", "m"),
        ServerConfig("sglang", "n"),
        ServerConfig("sglang", "m", tp=2),
        ServerConfig("sglang", "m", cuda_graph=False),
        ServerConfig("sglang", "m", nccl={"NCCL_PROTO": "LL"}),
        ServerConfig("sglang", "m", env={"NCCL_PROTO": "LL"}),
        ServerConfig("sglang", "m", flags={"NCCL_PROTO": "LL"}),
        ServerConfig("sglang", "m", speculative={"method": "eagle3"}),
    ]
    assert len({c.key for c in (base, *others)}) == len(others) + 1


def test_what_only_steers_a_launch_is_not() -> None:
    base = ServerConfig("sglang", "m")
    assert ServerConfig("sglang", "m", startup_timeout=9.0, allow_mismatch=("tp",)) == base
    assert ServerConfig("sglang", "m", tp=1, env={}, cuda_graph=None) == base


@given(st.dictionaries(WORDS, WORDS, max_size=4), st.dictionaries(WORDS, st.integers() | WORDS | st.none(), max_size=4))
def test_the_canonical_form_is_json_and_stable(env: dict[str, str], flags: dict[str, object]) -> None:
    config = ServerConfig("vllm", "m", env=env, flags=flags)
    assert json.loads(json.dumps(config.canonical())) == json.loads(json.dumps(config.canonical()))
    assert len(config.key) == 12
    assert config.key == ServerConfig("vllm", "m", env=dict(reversed(env.items())), flags=flags).key


def test_labels_are_for_people() -> None:
    assert ServerConfig("sglang", "/models/Llama-3-8B/", tp=8).label == "sglang Llama-3-8B tp=8"
