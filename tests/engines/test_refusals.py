"""Declarations that an engine cannot honour: each is refused in a sentence that says what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmperf.server_config import ServerConfig

from .test_commands import EAGLE3, ENGINES, NGRAM, config


@pytest.mark.parametrize(
    ("engine", "declared", "said"),
    [
        ("sglang", {"attention_backend": "flashinfr"}, "did you mean 'flashinfer'?"),
        ("sglang", {"attention_backend": "FLASH_ATTN"}, "sglang has no attention_backend='FLASH_ATTN'"),
        ("vllm", {"attention_backend": "flashinfer_mlaa"}, "did you mean 'FLASHINFER_MLA'?"),
        ("vllm", {"attention_backend": "fa3"}, "vllm has no attention_backend='fa3'"),
        ("sglang", {"flags": {"port": 1}}, "sglang={'port': ...} is the plugin's to set; use port = ..."),
        ("sglang", {"flags": {"tp-size": 2}}, "use tp=..."),
        ("vllm", {"flags": {"--host": "0.0.0.0"}}, "use bind = ..."),
        ("vllm", {"flags": {"api_key": "x"}}, "each launch gets a key of its own"),
        ("llamacpp", {"flags": {"alias": "x"}}, "use model=..."),
        ("sglang", {"flags": {"not a flag": 1}}, "is not the name of a flag"),
        ("sglang", {"flags": {"x": {1, 2}}}, "must be a text, a number, a boolean"),
        ("sglang", {"flags": {"x": [object()]}}, "must be a text, a number, a boolean"),
        ("vllm", {"flags": {"-tp": 2}}, "vllm={'-tp': ...} is the plugin's to set; use tp=..."),
        ("vllm", {"flags": {"--model.x": 2}}, "use model=..."),
        ("vllm", {"flags": {"-O3": True}}, "is a short name that this plugin does not know: write the long one"),
        ("sglang", {"flags": {"-dcp": 4}}, "sglang={'-dcp': ...} is a short name"),
        ("llamacpp", {"flags": {"-fmoe": 99}}, "llamacpp={'-fmoe': ...} is a short name"),
        ("sglang", {"flags": {"cuda_graph_config.decode": 1}}, "and sglang takes none: give 'cuda_graph_config' whole"),
        ("sglang", {"tp": 0}, "tp=0 must be a whole number above 0"),
        ("llamacpp", {"max_running_requests": 0}, "max_running_requests=0 must be"),
        ("vllm", {"speculative": {**EAGLE3, "topk": 4}}, "vllm has no speculative key 'topk'"),
        ("vllm", {"speculative": {"method": "eagle3", "model": "d"}}, "needs speculative={'num_tokens': ...}"),
        ("sglang", {"speculative": {"method": "egle3"}}, "did you mean 'eagle3'?"),
        ("sglang", {"speculative": {"method": "eagle3"}}, "needs a model"),
        ("sglang", {"speculative": {**EAGLE3, "num_steps": 5}}, "disagree"),
        ("sglang", {"speculative": {**EAGLE3, "topk": 4}}, "needs num_steps"),
        ("sglang", {"speculative": {**NGRAM, "topk": 4}}, "no num_steps or topk"),
        ("sglang", {"speculative": {**EAGLE3, "num_tokens": 0}}, "must be a whole number above 0"),
        ("sglang", {"speculative": {**EAGLE3, "num_tokens": "3"}}, "must be a whole number above 0"),
        ("sglang", {"speculative": {**EAGLE3, "acceptance_length": 0.5}}, "1 or more"),
        ("sglang", {"speculative": {**EAGLE3, "num_token": 3}}, "did you mean 'num_tokens'?"),
        ("sglang", {"speculative": {"num_tokens": 3}}, "sglang needs a speculative method"),
    ],
)
def test_what_cannot_be_honoured(engine: str, declared: dict[str, Any], said: str) -> None:
    problems = ENGINES[engine].problems(config(engine, **declared))
    assert any(said in p for p in problems), problems


def test_llamacpp_says_what_it_serves() -> None:
    adapter = ENGINES["llamacpp"]
    (problem,) = adapter.problems(ServerConfig(engine="llamacpp", model="org/m"))
    assert "GGUF" in problem
    assert adapter.problems(ServerConfig(engine="llamacpp", model="tiny")) == []
