"""Command lines: every portable key on every engine is translated, or refused with a reason."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any

import pytest

from pytest_llmperf.engines.base import PORTABLE, Command, Endpoint, EngineSettings
from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.server_config import ServerConfig
from pytest_llmperf.testing.engine_contract import SAMPLES

ENGINES = builtin()
ENDPOINT = Endpoint("127.0.0.1", 4321, "the-key")
#: What each engine's command line starts with, for model="org/m".
PROGRAM = {
    "sglang": ["python", "-m", "sglang.launch_server"],
    "vllm": ["vllm", "serve"],
    "llamacpp": [sys.executable, "-m", "pytest_llmperf.engines.llamacpp.llamacpp_serve"],
}
BARE = {
    "sglang": [
        *("--model-path", "org/m", "--served-model-name", "org/m", "--host", "127.0.0.1", "--port", "4321"),
        *("--api-key", "the-key", "--enable-metrics", "--enable-cache-report"),
    ],
    "vllm": [
        *("org/m", "--served-model-name", "org/m", "--host", "127.0.0.1", "--port", "4321"),
        *("--api-key", "the-key", "--enable-prompt-tokens-details"),
    ],
    "llamacpp": [
        *("--model", "m.gguf", "--alias", "m.gguf", "--host", "127.0.0.1", "--port", "4321", "--metrics", "--slots"),
        *("--threads", "1", "--parallel", "4", "--ctx-size", "0"),
    ],
}
EAGLE3 = {"method": "eagle3", "model": "org/drafter", "num_tokens": 3}
NGRAM = {"method": "ngram", "num_tokens": 4}

#: (engine, declared, arguments added to the bare command line)
TRANSLATED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("sglang", {"tokenizer": "org/t"}, ["--tokenizer-path", "org/t"]),
    ("sglang", {"tp": 8}, ["--tp-size", "8"]),
    ("sglang", {"dp": 2}, ["--dp-size", "2"]),
    ("sglang", {"pp": 2}, ["--pp-size", "2"]),
    ("sglang", {"dtype": "bfloat16"}, ["--dtype", "bfloat16"]),
    ("sglang", {"quantization": "fp8"}, ["--quantization", "fp8"]),
    ("sglang", {"load_format": "dummy"}, ["--load-format", "dummy"]),
    ("sglang", {"attention_backend": "flashinfer"}, ["--attention-backend", "flashinfer"]),
    ("sglang", {"cuda_graph": True}, []),
    (
        "sglang",
        {"cuda_graph": False},
        ["--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"],
    ),
    ("sglang", {"custom_all_reduce": True}, []),
    ("sglang", {"custom_all_reduce": False}, ["--disable-custom-all-reduce"]),
    ("sglang", {"prefix_cache": True}, []),
    ("sglang", {"prefix_cache": False}, ["--disable-radix-cache"]),
    ("sglang", {"max_running_requests": 32}, ["--max-running-requests", "32"]),
    ("sglang", {"context_length": 4096}, ["--context-length", "4096"]),
    ("sglang", {"seed": 7}, ["--random-seed", "7"]),
    (
        "sglang",
        {"speculative": EAGLE3},
        [
            *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "org/drafter"),
            *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
        ],
    ),
    (
        "sglang",
        {"speculative": {**EAGLE3, "num_tokens": 16, "num_steps": 5, "topk": 4}},
        [
            *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "org/drafter"),
            *("--speculative-num-steps", "5", "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "16"),
        ],
    ),
    ("sglang", {"speculative": {"method": "mtp"}}, ["--speculative-algorithm", "NEXTN"]),
    (
        "sglang",
        {"speculative": NGRAM},
        ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "5"],
    ),
    ("vllm", {"tokenizer": "org/t"}, ["--tokenizer", "org/t"]),
    ("vllm", {"tp": 8}, ["--tensor-parallel-size", "8"]),
    ("vllm", {"dp": 2}, ["--data-parallel-size", "2"]),
    ("vllm", {"pp": 2}, ["--pipeline-parallel-size", "2"]),
    ("vllm", {"dtype": "bfloat16"}, ["--dtype", "bfloat16"]),
    ("vllm", {"quantization": "fp8"}, ["--quantization", "fp8"]),
    ("vllm", {"load_format": "dummy"}, ["--load-format", "dummy"]),
    ("vllm", {"attention_backend": "flashinfer"}, ["--attention-backend", "FLASHINFER"]),
    ("vllm", {"attention_backend": "triton"}, ["--attention-backend", "TRITON_ATTN"]),
    ("vllm", {"cuda_graph": True}, []),
    ("vllm", {"cuda_graph": False}, ["--enforce-eager"]),
    ("vllm", {"custom_all_reduce": True}, []),
    ("vllm", {"custom_all_reduce": False}, ["--disable-custom-all-reduce"]),
    ("vllm", {"prefix_cache": True}, ["--enable-prefix-caching"]),
    ("vllm", {"prefix_cache": False}, ["--no-enable-prefix-caching"]),
    ("vllm", {"max_running_requests": 32}, ["--max-num-seqs", "32"]),
    ("vllm", {"context_length": 4096}, ["--max-model-len", "4096"]),
    ("vllm", {"seed": 7}, ["--seed", "7"]),
    (
        "vllm",
        {"speculative": EAGLE3},
        ["--speculative-config", '{"method":"eagle3","num_speculative_tokens":3,"model":"org/drafter"}'],
    ),
    (
        "vllm",
        {"speculative": {**EAGLE3, "acceptance_length": 2.5}},
        [
            "--speculative-config",
            '{"method":"eagle3","num_speculative_tokens":3,"model":"org/drafter",'
            '"rejection_sample_method":"synthetic","synthetic_acceptance_length":2.5}',
        ],
    ),
    (
        "vllm",
        {"speculative": NGRAM, "flags": {"speculative_config": {"prompt_lookup_min": 2}}},
        [
            "--speculative-config",
            '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4,"prompt_lookup_min":2}',
        ],
    ),
    ("llamacpp", {"prefix_cache": True}, ["--cache-prompt"]),
    ("llamacpp", {"prefix_cache": False}, ["--no-cache-prompt"]),
    ("llamacpp", {"seed": 7}, ["--seed", "7"]),
    (
        "llamacpp",
        {"speculative": {**NGRAM, "acceptance_length": 2}},
        [
            *("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "4"),
            *("--spec-synth-len", "2"),
        ],
    ),
    (
        "llamacpp",
        {"speculative": {"method": "draft_model", "model": "d.gguf", "num_tokens": 3}},
        ["--spec-type", "draft-simple", "--model-draft", "d.gguf", "--spec-draft-n-max", "3"],
    ),
]
#: Changes to values of the bare command line instead of additions.
CHANGED = [
    ("llamacpp", {"max_running_requests": 2, "context_length": 2048}, ("2", "4096")),
    ("llamacpp", {"context_length": 1024}, ("4", "4096")),
]


def config(engine: str, **declared: Any) -> ServerConfig:
    return ServerConfig(engine=engine, model="m.gguf" if engine == "llamacpp" else "org/m", **declared)


PLAIN = EngineSettings()


def command(engine: str, settings: EngineSettings = PLAIN, **declared: Any) -> Command:
    return ENGINES[engine].command(config(engine, **declared), settings, ENDPOINT)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_bare_command_line(engine: str) -> None:
    assert list(command(engine).argv) == PROGRAM[engine] + BARE[engine]


@pytest.mark.parametrize(("engine", "declared", "added"), TRANSLATED, ids=lambda v: v if isinstance(v, str) else None)
def test_portable_keys(engine: str, declared: dict[str, Any], added: list[str]) -> None:
    assert ENGINES[engine].problems(config(engine, **declared)) == []
    assert list(command(engine, **declared).argv) == PROGRAM[engine] + BARE[engine] + added


@pytest.mark.parametrize(("engine", "declared", "values"), CHANGED)
def test_slots_share_the_context(engine: str, declared: dict[str, Any], values: tuple[str, str]) -> None:
    argv = command(engine, **declared).argv
    assert (argv[argv.index("--parallel") + 1], argv[argv.index("--ctx-size") + 1]) == values


@pytest.mark.parametrize("key", PORTABLE)
@pytest.mark.parametrize("engine", ENGINES)
def test_no_key_is_dropped_in_silence(engine: str, key: str) -> None:
    """Each portable key changes the command, or is a problem that names engine and key."""
    adapter, declared = ENGINES[engine], {key: SAMPLES[key]}
    problems = adapter.problems(config(engine, **declared))
    if key in adapter.portable:
        assert problems == []
        assert command(engine, **declared) != command(engine)
    else:
        assert len(problems) == 1
        assert engine in problems[0]
        assert f"{key}=" in problems[0]


def test_the_samples_cover_the_config() -> None:
    others = {"engine", "model", "env", "flags", "startup_timeout", "allow_mismatch"}
    assert {f.name for f in fields(ServerConfig)} - others == set(PORTABLE) == set(SAMPLES)


def test_nccl_and_env_reach_the_server_only() -> None:
    made = command("sglang", nccl={"NCCL_PROTO": "LL"}, env={"X": "1", "NCCL_ALGO": "Ring"})
    assert made.env.items() >= {"NCCL_PROTO": "LL", "X": "1", "NCCL_ALGO": "Ring"}.items()
    assert command("llamacpp", env={"X": "1"}).env == {"X": "1", "LLAMA_API_KEY": "the-key"}


def test_keys_stay_off_the_command_line_where_the_engine_can_read_them_elsewhere() -> None:
    assert not any("the-key" in argument for argument in command("llamacpp").argv)


def test_a_launch_does_not_change_vllms_compile_cache_key() -> None:
    """vLLM hashes its own variables into that key (``envs.compile_factors``): what differs per launch is a flag."""
    first, second = (
        ENGINES["vllm"].command(config("vllm"), EngineSettings(), Endpoint("127.0.0.1", port, api_key=key))
        for port, key in ((4321, "one"), (4322, "two"))
    )
    assert first.env == second.env
    assert first.argv[first.argv.index("--api-key") + 1] == "one"


@pytest.mark.parametrize("engine", ENGINES)
def test_no_key_where_there_is_none(engine: str) -> None:
    made = ENGINES[engine].command(config(engine), EngineSettings(), Endpoint("127.0.0.1", 4321))
    assert not any("key" in word.lower() for word in (*made.argv, *made.env))


@pytest.mark.parametrize(
    ("bind", "open_"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("10.0.0.1", False)],
)
def test_development_endpoints_on_loopback_only(bind: str, open_: bool) -> None:
    made = command("vllm", EngineSettings(bind=bind))
    assert made.argv[made.argv.index("--host") + 1] == bind
    assert ("VLLM_SERVER_DEV_MODE" in made.env) is open_


def test_a_users_own_program() -> None:
    own = ("/opt/v/bin/python", "-m", "vllm.entrypoints.openai.api_server")
    assert list(command("vllm", EngineSettings(command=own)).argv)[:5] == [*own, "--model", "org/m"]
    assert list(command("vllm", EngineSettings(command=("/opt/vllm", "serve"))).argv)[:3] == [
        "/opt/vllm",
        "serve",
        "org/m",
    ]
    assert command("llamacpp", EngineSettings(command=("llama-server",))).argv[:3] == (
        "llama-server",
        "--model",
        "m.gguf",
    )


def test_engine_only_flags_pass_verbatim_and_win() -> None:
    made = command(
        "sglang",
        attention_backend="fa3",
        flags={"num_continuous_decode_steps": 4, "disable_overlap_schedule": True, "attention-backend": "brand_new"},
    )
    argv = list(made.argv)
    assert argv[-3:] == ["--disable-overlap-schedule", "--num-continuous-decode-steps", "4"]
    assert argv.count("--attention-backend") == 1
    assert argv[argv.index("--attention-backend") + 1] == "brand_new"


def test_forced_acceptance() -> None:
    made = command("sglang", speculative={**EAGLE3, "acceptance_length": 2.5})
    assert made.env["SGLANG_SIMULATE_ACC_LEN"] == "2.5"
    assert made.env["SGLANG_SIMULATE_ACC_METHOD"] == "match-expected"
    assert "SGLANG_SIMULATE_ACC_LEN" not in command("sglang", speculative=EAGLE3).env


@pytest.mark.parametrize(
    ("engine", "declared", "gpus"),
    [
        ("sglang", {"tp": 4, "pp": 2, "dp": 2}, 16),
        ("sglang", {"tp": 8, "dp": 8, "flags": {"enable_dp_attention": True}}, 8),
        ("sglang", {"tp": 16, "flags": {"nnodes": 2, "node_rank": 0}}, 8),
        ("vllm", {"tp": 4, "pp": 2, "dp": 2}, 16),
        ("vllm", {"tp": 16, "flags": {"nnodes": 2}}, 8),
        ("vllm", {"tp": 4, "flags": {"nnodes": "two"}}, 4),
        ("vllm", {"tp": 3, "flags": {"--nnodes": "2"}}, 2),
        ("sglang", {"tp": 8, "dp": 8, "flags": {"enable-dp-attention": True}}, 8),
        ("sglang", {"tp": 8, "flags": {"attn_dp_size": 8}}, 8),
        ("sglang", {"tp": 2, "flags": {"device": "cpu"}}, 0),
        ("vllm", {"tp": 4, "dp": 4, "flags": {"data_parallel_size_local": 2, "data_parallel_address": "10.0.0.1"}}, 8),
        ("vllm", {"tp": 4, "dp": 4, "flags": {"-dpl": "2"}}, 8),
        ("vllm", {"tp": 4, "dp": 4, "flags": {"data_parallel_size_local": 0}}, 0),
        ("vllm", {"tp": 4, "dp": 4, "flags": {"data_parallel_rank": 0}}, 4),
        ("vllm", {"tp": 16, "dp": 2, "flags": {"nnodes": 4, "data_parallel_size_local": 1}}, 8),
        ("vllm", {"tp": 4, "flags": {"prefill_context_parallel_size": 2}}, 8),
        ("vllm", {"tp": 8, "flags": {"decode_context_parallel_size": 8}}, 8),
        ("vllm", {"flags": {"device": "cpu"}}, 0),
        ("llamacpp", {}, 0),
    ],
)
def test_gpus_to_lease(engine: str, declared: dict[str, Any], gpus: int) -> None:
    assert ENGINES[engine].gpu_count(config(engine, **declared)) == gpus
