"""A healthy server is never refused for how a value is spelled; a value that it did not take is seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_llmperf.engines.base import Endpoint, EngineSettings
from pytest_llmperf.engines.declaration import server_config
from pytest_llmperf.engines.mismatches import Mismatch
from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.engines.vllm.vllm_read import INFO
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.server_config import ServerConfig

from .probe import Recorded

ENGINES = builtin()


def declared(engine: str, settings: EngineSettings | None = None, **said: Any) -> ServerConfig:
    return server_config({"model": "m", **said}, ENGINES[engine], frozenset(ENGINES), settings)


def mismatches(config: ServerConfig, body: Mapping[str, Any], log: str = "") -> list[Mismatch]:
    """``body``: of SGLang's ``/server_info``, or the sections of vLLM's."""
    bodies = {"/server_info": body} if config.engine == "sglang" else {INFO: {"vllm_config": body}}
    engine = ENGINES[config.engine]
    return engine.mismatches(config, engine.effective(config, Recorded(log, bodies)))


@pytest.mark.parametrize(
    ("engine", "flags", "body"),
    [
        # numbers (sglang#13208, vllm#35048, vllm#41306)
        ("sglang", {"watchdog_timeout": 9000}, {"watchdog_timeout": 9000.0}),
        ("sglang", {"schedule_conservativeness": 1}, {"schedule_conservativeness": 1.0}),
        ("sglang", {"mem_fraction_static": "0.90"}, {"mem_fraction_static": 0.9}),
        ("sglang", {"max_total_tokens": "1.5k"}, {"max_total_tokens": 1500}),
        ("sglang", {"max_prefill_tokens": "16Ki"}, {"max_prefill_tokens": 16384}),
        ("sglang", {"context_length": "32Ki"}, {"context_length": 32768}),
        ("vllm", {"swap_space": 16}, {"cache_config": {"swap_space": 16.0}}),
        ("vllm", {"cpu_offload_gb": 8}, {"cache_config": {"cpu_offload_gb": 8.0}}),
        ("vllm", {"gpu_memory_utilization": "0.90"}, {"cache_config": {"gpu_memory_utilization": 0.9}}),
        ("vllm", {"max_model_len": "32K"}, {"model_config": {"max_model_len": 32768}}),
        ("vllm", {"max_num_batched_tokens": "8k"}, {"scheduler_config": {"max_num_batched_tokens": 8000}}),
        # no demand
        ("sglang", {"kv_cache_dtype": "auto"}, {"kv_cache_dtype": "fp8_e4m3"}),
        ("sglang", {"moe_runner_backend": "auto"}, {"moe_runner_backend": "flashinfer_cutlass"}),
        ("vllm", {"dtype": "auto"}, {"model_config": {"dtype": "torch.bfloat16"}}),
        ("vllm", {"moe_backend": "auto"}, {"kernel_config": {"moe_backend": "triton"}}),
        ("vllm", {"max_model_len": -1}, {"model_config": {"max_model_len": 131072}}),
        ("vllm", {"max_model_len": "auto"}, {"model_config": {"max_model_len": 131072}}),
        # no answer
        ("vllm", {"moe_backend": "triton"}, {"kernel_config": {"moe_backend": "triton"}}),
        ("vllm", {"kv_cache_dtype": "fp8"}, {"cache_config": {"cache_dtype": "auto"}}),
        # the same by another name
        ("sglang", {"kv_cache_dtype": "bf16"}, {"kv_cache_dtype": "bfloat16"}),
        ("sglang", {"speculative_algorithm": "NEXTN"}, {"speculative_algorithm": "EAGLE"}),
        ("sglang", {"attention_backend": "tokenspeed_mla"}, {"attention_backend": "cutedsl_mla"}),
        ("sglang", {"decode_attention_backend": "tokenspeed_mla"}, {"decode_attention_backend": "cutedsl_mla"}),
        ("sglang", {"prefill_attention_backend": "cutedsl_mla"}, {"prefill_attention_backend": "trtllm_mla"}),
        ("sglang", {"quantization": "awq"}, {"quantization": "awq_marlin"}),
        ("sglang", {"quantization": "modelopt"}, {"quantization": "modelopt_fp4"}),
        ("sglang", {"moe_runner_backend": "flashinfer_trtllm"}, {"moe_runner_backend": "flashinfer_trtllm_routed"}),
        ("vllm", {"dtype": "bfloat16"}, {"model_config": {"dtype": "torch.bfloat16"}}),
        ("vllm", {"quantization": "awq"}, {"model_config": {"quantization": "awq_marlin"}}),
        ("vllm", {"-q": "gptq"}, {"model_config": {"quantization": "auto_gptq"}}),
        ("vllm", {"kv_cache_dtype": "fp8"}, {"cache_config": {"cache_dtype": "fp8_e4m3"}}),
        # switches
        ("vllm", {"enable_chunked_prefill": True}, {"scheduler_config": {"enable_chunked_prefill": True}}),
        ("vllm", {"-ep": True}, {"parallel_config": {"enable_expert_parallel": True}}),
    ],
)
def test_a_healthy_server_is_not_refused_for_spelling(engine: str, flags: dict[str, Any], body: dict[str, Any]) -> None:
    assert mismatches(declared(engine, **{engine: flags}), body) == []


@pytest.mark.parametrize(
    ("engine", "flags", "body", "field"),
    [
        ("sglang", {"stream-interval": "4"}, {"stream_interval": 1}, "stream_interval"),
        ("sglang", {"mem_fraction_static": "0.90"}, {"mem_fraction_static": 0.88}, "mem_fraction_static"),
        ("sglang", {"chunked_prefill_size": 8192}, {"chunked_prefill_size": -1}, "chunked_prefill_size"),
        ("sglang", {"moe_a2a_backend": "deepep"}, {"moe_a2a_backend": "none"}, "moe_a2a_backend"),
        ("sglang", {"context_length": "32k"}, {"context_length": 32768}, "context_length"),
        ("sglang", {"decode_attention_backend": "cutedsl_mla"}, {"decode_attention_backend": "trtllm_mla"}, None),
        ("sglang", {"quantization": "awq_marlin"}, {"quantization": "awq"}, "quantization"),
        ("vllm", {"max_model_len": "32k"}, {"model_config": {"max_model_len": 32768}}, "context_length"),
        ("vllm", {"-q": "awq"}, {"model_config": {"quantization": "gptq"}}, "quantization"),
        ("vllm", {"kv-cache-dtype": "fp8"}, {"cache_config": {"cache_dtype": "bfloat16"}}, "kv_cache_dtype"),
        ("vllm", {"-ep": True}, {"parallel_config": {"enable_expert_parallel": False}}, "enable_expert_parallel"),
    ],
)
def test_what_a_server_did_not_take_is_seen(
    engine: str, flags: dict[str, Any], body: dict[str, Any], field: str | None
) -> None:
    (found,) = mismatches(declared(engine, **{engine: flags}), body)
    assert found.field == (field or next(iter(flags)))
    assert mismatches(declared(engine, **{engine: flags}, allow_mismatch=list(flags)), body) == [found]


@pytest.mark.parametrize(
    ("log", "taken"),
    [
        ("Using TRITON Unquantized MoE backend out of potential backends: ['TRITON'].", True),
        ("Using BATCHED_TRITON Fp8 MoE backend out of potential backends: ['TRITON'].", True),
        ("Using FlashInfer CUTLASS Unquantized MoE backend out of potential backends: ['TRITON'].", False),
    ],
)
def test_a_moe_backend_is_what_the_log_says(log: str, taken: bool) -> None:
    config = declared("vllm", vllm={"moe_backend": "triton"})
    found = mismatches(config, {"kernel_config": {"moe_backend": "triton"}}, log)
    assert [(m.field, m.effective) for m in found] == ([] if taken else [("moe_backend", "FlashInfer CUTLASS")])


@pytest.mark.parametrize(
    ("attention", "asked", "share", "taken"),
    [
        (False, 128, 128, True),
        (True, 128, 32, True),
        (True, 130, 32, True),
        (True, 128, 8, False),
        (False, 128, 8, False),
    ],
)
def test_replicas_of_plain_dp_have_all_running_requests_and_groups_of_dp_attention_share_them(
    attention: bool, asked: int, share: int, taken: bool
) -> None:
    """sglang#3890, sglang#20063"""
    info = {
        **{"dp_size": 4, "enable_dp_attention": attention, "max_running_requests": asked},
        "internal_states": [{"effective_max_running_requests_per_dp": share}] * 4,
    }
    flags = {"enable_dp_attention": True} if attention else {}
    config = declared("sglang", dp=4, max_running_requests=asked, sglang=flags)
    assert [m.field for m in mismatches(config, info)] == ([] if taken else ["max_running_requests"])
    if attention:  # 0.5.23's own words for it
        newer = {**info, "dp_size": 1, "attn_dp_size": 4}
        assert [m.field for m in mismatches(config, newer)] == ([] if taken else ["max_running_requests"])


@pytest.mark.parametrize("written", [{"stream_interval": 2}, {"--stream-interval": "2"}, {"stream-interval": 2.0}])
def test_configs_that_differ_by_spelling_only_are_one(written: dict[str, Any]) -> None:
    one, other = declared("sglang", sglang={"stream_interval": 2}), declared("sglang", sglang=written)
    assert one == other
    assert one.canonical() == other.canonical(), "what a baseline's fingerprint is made of"


@pytest.mark.parametrize(
    ("engine", "key", "one", "other"),
    [
        ("vllm", "attention_backend", "flashinfer", "FLASHINFER"),
        ("vllm", "attention_backend", "flash_attn", "FLASH-ATTN"),
        ("vllm", "dtype", "half", "float16"),
        ("sglang", "dtype", "bf16", "bfloat16"),
    ],
)
def test_portable_values_have_one_form_too(engine: str, key: str, one: str, other: str) -> None:
    assert declared(engine, **{key: one}) == declared(engine, **{key: other})
    assert getattr(declared(engine, **{key: other}), key) == other, "what a test reads is what it wrote"


def test_short_dotted_and_suffixed_flags_are_the_flags_that_they_mean() -> None:
    short = {"-ep": True, "-cc.cudagraph_mode": "FULL_DECODE_ONLY", "max_num_batched_tokens": "8k"}
    config = {"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}}
    long = {"enable_expert_parallel": True, **config, "max-num-batched-tokens": 8000}
    assert declared("vllm", vllm=short) == declared("vllm", vllm=long)
    assert declared("vllm", vllm={"stream_interval": 2}) != declared("vllm", vllm={"stream_interval": 3})


@pytest.mark.parametrize(
    ("engine", "flags", "words"),
    [
        # vllm#34179, vllm#34552; its parser takes the last where --config.key and --config meet, so they are one here
        ("vllm", {"-dcp": 4}, ["--decode-context-parallel-size", "4"]),
        ("vllm", {"-ep": True}, ["--enable-expert-parallel"]),
        (
            "vllm",
            {"compilation-config.cudagraph_mode": "FULL_DECODE_ONLY"},
            ["--compilation-config", '{"cudagraph_mode":"FULL_DECODE_ONLY"}'],
        ),
        (
            "vllm",
            {"--compilation-config.pass_config.fuse_allreduce_rms": "false", "-cc": {"mode": 3}},
            ["--compilation-config", '{"pass_config":{"fuse_allreduce_rms":false},"mode":3}'],
        ),
        (
            "vllm",
            {"speculative": {"method": "ngram", "num_tokens": 4}, "-sc.prompt_lookup_min": 2},
            [
                "--speculative-config",
                '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4,"prompt_lookup_min":2}',
            ],
        ),
        ("vllm", {"lora_modules": [{"name": "sql", "path": "/l"}]}, ["--lora-modules", '{"name":"sql","path":"/l"}']),
        (
            "sglang",
            {"lora_paths": [{"lora_name": "a", "lora_path": "/l/a", "pinned": True}]},
            ["--lora-paths", '{"lora_name":"a","lora_path":"/l/a","pinned":true}'],
        ),
        ("sglang", {"ep": 2}, ["--ep-size", "2"]),
    ],
)
def test_flags_are_written_as_the_engine_reads_them(engine: str, flags: dict[str, Any], words: list[str]) -> None:
    said = {"speculative": flags.pop("speculative")} if "speculative" in flags else {}
    config = declared(engine, **said, **{engine: flags})
    argv = list(ENGINES[engine].command(config, EngineSettings(), Endpoint("127.0.0.1", 1)).argv)
    assert words in [argv[i : i + len(words)] for i in range(len(argv))], argv


def test_a_mismatch_is_allowed_under_the_name_that_was_written() -> None:
    config = declared("sglang", sglang={"--stream-interval": 2}, allow_mismatch=["--stream-interval"])
    assert config.allow_mismatch == ("stream_interval",)
    config = declared("vllm", vllm={"-ep": True}, allow_mismatch=["-ep", "tp", "NCCL_ALGO"])
    assert config.allow_mismatch == ("enable_expert_parallel", "tp", "NCCL_ALGO")
    with pytest.raises(ConfigError, match="names no field of the effective config: '--stream-intervall'"):
        declared("sglang", allow_mismatch=["--stream-intervall"])


VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@pytest.mark.parametrize("name", VISIBLE)
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_lease_decides_which_gpus_a_server_sees(engine: str, name: str) -> None:
    """sglang#22234"""
    said = "is the plugin's to set: a server sees the GPUs that are leased for it"
    with pytest.raises(ConfigError, match=rf"env={{'{name}': ...}} {said}"):
        declared(engine, env={name: "4,5"})
    with pytest.raises(ConfigError, match=rf"env in \[tool.llmperf.engines.{engine}\] sets {name}, which {said}"):
        declared(engine, EngineSettings(env={name: "4,5"}))
    with pytest.raises(ConfigError, match=rf"the command of {engine} sets {name}, which {said}"):
        declared(engine, EngineSettings(command=("env", f"{name}=4,5", "serve")))


@pytest.mark.parametrize(
    ("engine", "flag"), [("sglang", "--base-gpu-id"), ("sglang", "gpu_id_step"), ("vllm", "device_ids")]
)
def test_a_flag_that_chooses_gpus_is_refused(engine: str, flag: str) -> None:
    with pytest.raises(ConfigError, match=f"{engine}={{'{flag.lstrip('-').replace('-', '_')}': ...}} is the plugin's"):
        declared(engine, **{engine: {flag: 4}})


@pytest.mark.parametrize(
    ("engine", "said", "settings"),
    [
        ("sglang", {"sglang": {"device": "cpu"}}, EngineSettings()),
        ("llamacpp", {"model": "m.gguf"}, EngineSettings()),
        ("sglang", {"sglang": {"base_gpu_id": 4}}, EngineSettings(remote=True, env={VISIBLE[0]: "4,5"})),
    ],
    ids=["on a CPU", "no lease for this engine", "on another host"],
)
def test_where_no_gpu_is_leased_they_are_the_users_to_choose(
    engine: str, said: dict[str, Any], settings: EngineSettings
) -> None:
    assert declared(engine, settings, env={VISIBLE[0]: "1"}, **said).env == {VISIBLE[0]: "1"}
