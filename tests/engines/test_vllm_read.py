"""Effective config and counters of vLLM, from bodies and logs of real servers."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmperf.engines.base import EffectiveConfig, Mismatch
from pytest_llmperf.engines.vllm.vllm_adapter import VLLM
from pytest_llmperf.engines.vllm.vllm_read import INFO as INFO_PATH
from pytest_llmperf.server_config import ServerConfig

from .probe import Recorded, sample, sample_json

ENGINE = VLLM()
LOG = sample("vllm-0.26.0-h200.log")
INFO = sample_json("vllm-0.26.0-h200-server_info.json")  # the text form


def config(**declared: Any) -> ServerConfig:
    return ServerConfig(engine="vllm", model="MODEL", **declared)


def read(log: str = "", declared: ServerConfig | None = None, **bodies: Any) -> EffectiveConfig:
    paths = {"info": INFO_PATH, "version": "/version"}
    return ENGINE.effective(declared or config(), Recorded(log, {paths[k]: v for k, v in bodies.items()}))


def fields(found: list[Mismatch]) -> dict[str, tuple[str, str]]:
    return {m.field: (m.declared, m.effective) for m in found}


def test_a_real_server_on_an_h200() -> None:
    effective = read(LOG, info=INFO, version={"version": "0.26.0"})
    assert effective.engine_version == "0.26.0"
    assert effective.model == "MODEL"
    assert effective.attention_backend == "FLASH_ATTN"
    assert effective.sources["attention_backend"] == "log"
    assert effective.other["flash_attention"] == "3"
    assert effective.cuda_graph is True
    assert effective.custom_all_reduce is True
    assert effective.prefix_cache is True
    assert effective.max_running_requests == 16
    assert effective.context_length == 4096
    assert effective.kv_tokens == 595_712
    assert effective.dtype == "bfloat16"
    assert effective.quantization is None
    assert effective.speculative is None
    assert effective.tp == 1
    assert effective.cache_state == "cold"
    assert effective.versions == {"vllm": "0.26.0", "torch": "2.11.0+cu130", "cuda": "13.0.88", "driver": "580.159.04"}
    wanted = config(dtype="bfloat16", attention_backend="FLASH_ATTN", max_running_requests=16, cuda_graph=True)
    assert ENGINE.mismatches(wanted, effective) == []


def test_the_log_alone_tells_almost_as_much() -> None:
    effective, both = read(LOG), read(LOG, info=INFO)
    for name in ("attention_backend", "cuda_graph", "dtype", "context_length", "tp", "kv_tokens", "engine_version"):
        assert getattr(effective, name) == getattr(both, name), name
        assert effective.sources[name] == "log"


def test_nothing_read_is_nothing_known() -> None:
    assert read() == EffectiveConfig()
    assert ENGINE.mismatches(config(tp=8, attention_backend="FLASHINFER", cuda_graph=True), EffectiveConfig()) == []


@pytest.mark.parametrize(
    ("line", "backend"),
    [
        ("Using FLASHINFER attention backend out of potential backends: ['FLASHINFER', 'FLASH_ATTN'].", "FLASHINFER"),
        ("Using AttentionBackendEnum.TRITON_ATTN backend.", "TRITON_ATTN"),
        ("Using TRITON_ATTN backend.", "TRITON_ATTN"),
        ("Using ROCM_AITER_FA backend (selected via --attention-backend).", "ROCM_AITER_FA"),
        ("Using ROCM_ATTN backend out of potential backends: ['ROCM_ATTN'].", "ROCM_ATTN"),
        ("Using TRITON Unquantized MoE backend out of potential backends: ['TRITON'].", None),
        ("Using default backend.", None),
    ],
)
def test_the_attention_backend_is_in_the_log_only(line: str, backend: str | None) -> None:
    assert read(f"(EngineCore pid=1) INFO 11-29 14:42:02 [cuda.py:482] {line}\n").attention_backend == backend


@pytest.mark.parametrize(
    ("declared", "log", "expected"),
    [
        ({"attention_backend": "flashinfer"}, LOG, {"attention_backend": ("FLASHINFER", "FLASH_ATTN")}),
        ({"attention_backend": "flash_attn"}, LOG, {}),
        ({"attention_backend": "triton"}, "Using TRITON_ATTN backend.", {}),
        (
            {"attention_backend": "flashinfer"},
            "Cannot use AttentionBackendEnum.FLASHINFER backend on CPU.",
            {"attention_backend": ("FLASHINFER", "another")},
        ),
        ({"flags": {"attention_backend": "FLASHINFER"}}, LOG, {"attention_backend": ("FLASHINFER", "FLASH_ATTN")}),
        (
            {"custom_all_reduce": True},
            "WARNING [custom_all_reduce.py:193] Custom allreduce is disabled because your platform lacks P2P",
            {"custom_all_reduce": ("True", "False")},
        ),
        ({"cuda_graph": False}, LOG, {"cuda_graph": ("False", "True")}),
        ({"tp": 2}, LOG, {"tp": ("2", "1")}),
        ({"max_running_requests": 8}, LOG, {"max_running_requests": ("8", "16")}),
        ({"flags": {"max_model_len": 8192}}, LOG, {"context_length": ("8192", "4096")}),
    ],
)
def test_mismatches(declared: dict[str, Any], log: str, expected: dict[str, tuple[str, str]]) -> None:
    wanted = config(**declared)
    assert fields(ENGINE.mismatches(wanted, read(log, wanted))) == expected


def test_custom_all_reduce_off_in_the_log_beats_the_argument() -> None:
    effective = read(LOG + "Custom allreduce is disabled due to an unsupported world size: 3.\n", info=INFO)
    assert effective.custom_all_reduce is False


HEAD = "(Worker_TP0 pid=955) INFO 04-30 20:34:43 [x.py:1] "


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        # vllm#41306, vllm#34249, vllm#31085, aiconfigurator#1346
        ("Using TRITON Unquantized MoE backend out of potential backends: ['TRITON'].", "moe_backend", "TRITON"),
        ("Using FLASHINFER_CUTLASS Fp8 MoE backend out of potential", "moe_backend", "FLASHINFER_CUTLASS"),
        ("Using FlashInfer TRTLLM Unquantized MoE backend out of", "moe_backend", "FlashInfer TRTLLM"),
        ("Using 'MARLIN' WNA16 MoE backend.", "moe_backend", "MARLIN"),
        ("Using 'VLLM_CUTLASS' NvFp4 MoE backend out of potential", "moe_backend", "VLLM_CUTLASS"),
        ("Using TritonExperts MoE backend", "moe_backend", "TritonExperts"),
        ("Using TRITON Unquantized MoE LoRA backend", "moe_backend", "TRITON"),
        (
            "Using ['CUSTOM', 'PYNCCL'] all-reduce backends (in dispatch order) for group 'tp:0' out of potential",
            "all_reduce_backends",
            "CUSTOM, PYNCCL",
        ),
        ("Using ['PYNCCL'] all-reduce backends (in dispatch order) for group 'ep:0' out", "all_reduce_backends", None),
        ("Using FlashInfer for top-p & top-k sampling.", "sampling_backend", "flashinfer"),
        ("FlashInfer top-p/top-k sampling unavailable: unsupported; falling back.", "sampling_backend", "native"),
        ("Using fp8_e4m3 data type to store kv cache. It reduces the GPU memory", "kv_cache_dtype", "fp8_e4m3"),
        ("Using fp8_ds_mla KV cache format for FLASHMLA_SPARSE backend.", "kv_cache_dtype", "fp8_ds_mla"),
    ],
)
def test_what_it_chose_is_in_the_log_only(line: str, name: str, value: str | None) -> None:
    """The configuration goes on saying ``auto``: two launches that differ in it must not read alike."""
    auto = {"vllm_config": {"kernel_config": {"moe_backend": "auto"}, "cache_config": {"cache_dtype": "auto"}}}
    effective = read(f"{HEAD}{line}\n", info=auto)
    assert effective.other == ({name: value} if value else {})
    assert effective.attention_backend is None


@pytest.mark.parametrize(
    ("lines", "on"),
    [
        (["Using ['CUSTOM', 'PYNCCL'] all-reduce backends (in dispatch order) for group 'tp:0'"], True),
        (["Using ['AITER_CUSTOM', 'PYNCCL'] all-reduce backends (in dispatch order) for group 'tp:0'"], True),
        (["Using ['PYNCCL'] all-reduce backends (in dispatch order) for group 'tp:0'"], False),
        (["Custom quick allreduce is disabled because this platform"], None),
        (
            [
                "Custom allreduce is disabled because this process group spans across nodes.",  # another group's
                "Using ['CUSTOM'] all-reduce backends (in dispatch order) for group 'tp:0'",
            ],
            True,
        ),
    ],
)
def test_custom_all_reduce_is_on_where_the_tensor_parallel_group_uses_it(lines: list[str], on: bool | None) -> None:
    assert read("".join(f"{HEAD}{line}\n" for line in lines)).custom_all_reduce is on


@pytest.mark.parametrize(
    ("said", "graphs"),
    [
        ("Enforce eager set, disabling torch.compile and CUDAGraphs.", False),
        ("Cudagraph is disabled under eager mode", False),
        ("CUDAGraphMode.FULL is not supported with X backend; setting cudagraph_mode=NONE", False),
        ("Skipping CUDA graph capture. To turn on CUDA graph capture, ...", False),
        ("Skipping CUDA graph capture\nGraph capturing finished in 1 secs, took 0.12 GiB", True),
        ("Graph capturing finished in 1 secs, took 0.12 GiB", True),
    ],
)
def test_graphs_that_a_worker_did_not_capture_beat_what_was_asked_for(said: str, graphs: bool) -> None:
    assert "'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE" in INFO["vllm_config"]
    assert read(said, info=INFO).cuda_graph is graphs


@pytest.mark.parametrize(
    ("log", "state"),
    [
        ("Compiling a graph for compile range (1, 8192) takes 13.14 s", "cold"),
        ("Directly load AOT compilation from path ~/.cache/vllm/x", "warm"),
        ("Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 1.2 s", "warm"),
        ("Directly load AOT compilation from path x\nCompiling a graph for compile range (1, 2)", "cold"),
        (
            "[backbone] Compiling model again due to a load failure from x\nDirectly load AOT compilation from path y",
            "cold",
        ),
        ("[backbone] saved AOT compiled function to ~/.cache/vllm/torch_compile_cache/x", "cold"),
        ("Enforce eager set", None),
    ],
)
def test_state_of_the_compile_cache(log: str, state: str | None) -> None:
    assert read(log).cache_state == state


def test_a_cold_start_on_a_cpu() -> None:
    effective = read(sample("vllm-0.32.0-cpu-cold.log"))
    assert effective.cache_state == "cold"
    assert effective.kv_tokens == 131_072
    assert effective.engine_version == "0.32.0"


@pytest.mark.parametrize(
    "body", [[], {}, {"vllm_config": None}, {"vllm_config": {"model_config": None}}, {"system_env": 3}]
)
def test_strange_bodies_are_unknown_not_a_traceback(body: Any) -> None:
    assert read(info=body, version=[]) == EffectiveConfig()


@pytest.mark.parametrize("line", LOG.splitlines())
def test_no_line_of_a_good_start_looks_like_a_crash(line: str) -> None:
    assert not [what for pattern, what in ENGINE.crash_patterns if pattern.search(line)]


def test_signs_of_progress_in_a_real_start() -> None:
    seen = {what for line in LOG.splitlines() for pattern, what in ENGINE.progress_patterns if pattern.search(line)}
    assert seen == {
        *("joining ranks", "loading weights", "weights loaded", "compiling kernels", "autotuning kernels"),
        *("allocating the KV cache", "capturing graphs"),
    }
