"""Effective config and counters of SGLang, from bodies and logs of real servers."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pytest_llmperf.engines.base import EffectiveConfig, Mismatch
from pytest_llmperf.engines.sglang.sglang_adapter import SGLang
from pytest_llmperf.server_config import ServerConfig

from .probe import Recorded, sample, sample_json

ENGINE = SGLang()
LOG = sample("sglang-0.5.17-h200.log")
INFO = sample_json("sglang-0.5.17-h200-server_info.json")  # launched with --attention-backend triton


def config(**declared: Any) -> ServerConfig:
    return ServerConfig(engine="sglang", model="MODEL", **declared)


def read(info: Any = INFO, log: str = "", declared: ServerConfig | None = None) -> EffectiveConfig:
    return ENGINE.effective(declared or config(), Recorded(log, {"/server_info": info} if info else {}))


def changed(**values: Any) -> dict[str, Any]:
    info: dict[str, Any] = copy.deepcopy(INFO)
    info.update(values)
    return info


def fields(found: list[Mismatch]) -> dict[str, tuple[str, str]]:
    return {m.field: (m.declared, m.effective) for m in found}


def test_everything_that_server_info_tells() -> None:
    effective = read()
    assert effective.engine_version == "0.5.17"
    assert effective.versions == {"sglang": "0.5.17"}
    assert effective.attention_backend == "triton"
    assert effective.prefill_attention_backend is None
    assert effective.decode_attention_backend is None
    assert effective.cuda_graph is True
    assert effective.custom_all_reduce is True
    assert effective.prefix_cache is True
    assert effective.max_running_requests == 16
    assert effective.context_length == 4096
    assert effective.kv_tokens == 272433
    assert effective.tp == 1
    assert effective.speculative is None
    assert effective.dtype is None, "dtype=auto is a request, not an answer"
    assert effective.other["num_continuous_decode_steps"] == "1"
    assert effective.sources["attention_backend"] == "/server_info"
    assert not any("api_key" in key for key in effective.other)


def test_the_log_alone() -> None:
    effective = read(None, LOG)
    assert effective.attention_backend == "fa3"
    assert effective.max_running_requests == 16
    assert effective.context_length == 4096
    assert effective.kv_tokens == 272433
    assert effective.dtype == "bfloat16"
    assert effective.cuda_graph is None
    assert effective.engine_version is None
    assert set(effective.sources.values()) == {"log"}


def test_nothing_read_is_nothing_known() -> None:
    assert read(None) == EffectiveConfig()
    assert ENGINE.mismatches(config(tp=8, attention_backend="fa3", cuda_graph=True), EffectiveConfig()) == []


def test_the_older_endpoint() -> None:
    effective = ENGINE.effective(config(), Recorded(bodies={"/get_server_info": INFO}))
    assert effective.attention_backend == "triton"
    assert effective.sources["attention_backend"] == "/get_server_info"


def test_graphs_are_read_from_the_newer_form() -> None:
    """``--cuda-graph-backend-decode disabled`` leaves ``disable_cuda_graph`` false."""
    info = changed(disable_cuda_graph=False)
    info["cuda_graph_config"]["decode"]["backend"] = "disabled"
    assert read(info).cuda_graph is False
    assert fields(ENGINE.mismatches(config(cuda_graph=True), read(info))) == {"cuda_graph": ("True", "False")}
    old = {k: v for k, v in INFO.items() if k != "cuda_graph_config"}
    assert read({**old, "disable_cuda_graph": True}).cuda_graph is False


def test_graphs_that_were_asked_for_and_never_captured() -> None:
    """On a CPU the configuration says ``full``; start-up spent no time on a graph."""
    info = sample_json("sglang-0.5.23-cpu-server_info.json")
    assert info["cuda_graph_config"]["decode"]["backend"] == "full"
    assert read(info).cuda_graph is False
    verify = {"prefill": 0.0, "decode": 0.0, "target_verify": 3.2}
    assert read({**info, "startup_time": {"cuda_graph": verify}}).cuda_graph is True


@pytest.mark.parametrize(
    ("log", "graphs"),
    [
        ("", True),
        (
            "Decode batch, #running-req: 1, cuda graph: False, gen\nDecode batch, cuda graph: False",
            False,
        ),
        (
            "Decode batch, #running-req: 1, cuda graph: True, gen\nDecode batch, cuda graph: False",
            True,
        ),
        ("Prefill batch, #new-seq: 1, cuda graph: False, input throughput", True),
    ],
)
def test_decode_lines_without_a_graph_beat_what_was_asked_for(log: str, graphs: bool) -> None:
    assert read(log=log).cuda_graph is graphs


def test_a_real_server_on_a_cpu() -> None:
    effective = read(sample_json("sglang-0.5.23-cpu-server_info.json"), sample("sglang-0.5.23-cpu.log"))
    assert effective.engine_version == "0.5.23"
    assert effective.attention_backend == "torch_native"  # chosen by itself
    assert effective.prefix_cache is False
    assert effective.dtype == "float16"
    assert effective.max_running_requests == 2048
    assert effective.context_length == 2048
    assert effective.kv_tokens == 4096
    assert effective.other["device"] == "cpu"


def test_declared_values_that_were_taken() -> None:
    declared = config(attention_backend="triton", max_running_requests=16, context_length=4096, custom_all_reduce=True)
    assert ENGINE.mismatches(declared, read()) == []


@pytest.mark.parametrize(
    ("declared", "info", "expected"),
    [
        ({"attention_backend": "flashinfer"}, {}, {"attention_backend": ("flashinfer", "triton")}),
        (
            {"attention_backend": "triton"},
            {"decode_attention_backend": "trtllm_mla"},
            {"decode_attention_backend": ("triton", "trtllm_mla")},
        ),
        (
            {"attention_backend": "triton", "flags": {"decode_attention_backend": "trtllm_mla"}},
            {"decode_attention_backend": "trtllm_mla"},
            {},
        ),
        ({"custom_all_reduce": True}, {"disable_custom_all_reduce": True}, {"custom_all_reduce": ("True", "False")}),
        ({"tp": 8}, {}, {"tp": ("8", "1")}),
        ({"context_length": 8192}, {}, {"context_length": ("8192", "4096")}),
        ({"prefix_cache": False}, {}, {"prefix_cache": ("False", "True")}),
        ({"dtype": "bfloat16"}, {"dtype": "float16"}, {"dtype": ("bfloat16", "float16")}),
        ({"dtype": "half"}, {"dtype": "float16"}, {}),
        ({"quantization": "awq"}, {"quantization": "awq_marlin"}, {}),
        ({"quantization": "awq"}, {"quantization": "gptq"}, {"quantization": ("awq", "gptq")}),
        (
            {"flags": {"num_continuous_decode_steps": 4}},
            {},
            {"num_continuous_decode_steps": ("4", "1")},
        ),
        ({"flags": {"mem_fraction_static": 0.5, "disable_radix_cache": False, "page_size": 1}}, {}, {}),
        ({"flags": {"attention_backend": "fa3"}}, {}, {"attention_backend": ("fa3", "triton")}),
    ],
)
def test_declared_values_that_were_not(
    declared: dict[str, Any], info: dict[str, Any], expected: dict[str, tuple[str, str]]
) -> None:
    wanted = config(**declared)
    assert fields(ENGINE.mismatches(wanted, read(changed(**info), declared=wanted))) == expected


def test_speculative_mode_resets_the_requests_served_at_once() -> None:
    spec = {"method": "eagle3", "model": "d", "num_tokens": 3}
    state = [{"effective_max_running_requests_per_dp": 48}]
    info = changed(speculative_algorithm="EAGLE3", max_running_requests=48, internal_states=state)
    (found,) = ENGINE.mismatches(config(speculative=spec), read(info))
    assert (found.field, found.declared, found.effective) == ("max_running_requests", "nothing", "48")
    assert "speculative mode" in found.why
    assert ENGINE.mismatches(config(speculative=spec, max_running_requests=48), read(info)) == []
    assert fields(ENGINE.mismatches(config(speculative=spec, max_running_requests=256), read(info))) == {
        "max_running_requests": ("256", "48")
    }


def test_what_the_scheduler_allows_counts_not_what_was_asked() -> None:
    info = changed(max_running_requests=64, dp_size=2, internal_states=[{"effective_max_running_requests_per_dp": 8}])
    assert read(info).max_running_requests == 8, "of each replica"
    assert read({**info, "enable_dp_attention": True}).max_running_requests == 16, "which share the replica"


@pytest.mark.parametrize(
    ("line", "off"),
    [
        ("Custom allreduce is disabled because this process group spans across nodes.", True),
        ("CustomAllreduce is disabled because it's not supported on more than two PCIe-only GPUs.", True),
        ("CustomAllReduceV2 is disabled because your platform lacks GPU P2P capability", True),
        ("CustomAllreduce is disabled due to an unsupported world size: 3.", True),
        ("Setup Custom allreduce failed with invalid literal for int() with base 10: 'GPU-1'.", True),
        ("Custom quick allreduce is disabled because this process group spans across nodes.", False),
    ],
)
def test_custom_all_reduce_that_the_ranks_switched_off(line: str, off: bool) -> None:
    effective = read(INFO, f"[2026-01-01 00:00:00 TP0] {line}\n")
    assert effective.custom_all_reduce is not off
    assert effective.sources["custom_all_reduce"] == ("log" if off else "/server_info")


@pytest.mark.parametrize(
    ("log", "state", "running"),
    [
        ("", {"effective_max_running_requests_per_dp": 9}, 9),
        # sglang#38846: the body has the argument alone
        ("max_running_requests is capped to 9 by the mamba state cache (max_mamba_cache_size=47, 5 state slots", {}, 9),
        ("max_running_requests=9, context_len=262144, available_gpu_mem=3.10 GB", {}, 9),
        (
            "max_running_requests=32, context_len=1\nPost-capture KV sizing: max_running_requests 32 -> 9",
            {},
            9,
        ),
        ("max_running_requests=9, context_len=1", {"effective_max_running_requests_per_dp": 8}, 8),
        ("", {}, 32),
    ],
)
def test_the_schedulers_own_cap_counts_not_what_was_asked(log: str, state: dict[str, Any], running: int) -> None:
    info = changed(max_running_requests=32, internal_states=[state])
    assert read(info, log).max_running_requests == running
    found = fields(ENGINE.mismatches(config(max_running_requests=32), read(info, log)))
    assert found == ({} if running == 32 else {"max_running_requests": ("32", str(running))})


def test_speculation_through_engine_flags_brings_the_cap_too() -> None:
    """SpecForge#310's command, verbatim."""
    flags = {
        **{"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "d", "speculative_num_steps": 3},
        **{"speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4},
    }
    state = [{"effective_max_running_requests_per_dp": 48}]
    info = changed(**flags, max_running_requests=48, internal_states=state)
    assert fields(ENGINE.mismatches(config(flags=flags), read(info))) == {"max_running_requests": ("nothing", "48")}
    assert ENGINE.mismatches(config(flags={**flags, "max-running-requests": 48}), read(info)) == []


@pytest.mark.parametrize(
    ("log", "body", "name", "value"),
    [
        ("KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 1", "auto", "kv_cache_dtype", "fp8_e4m3"),
        ("", "fp8_e5m2", "kv_cache_dtype", "fp8_e5m2"),
        ("", "auto", "kv_cache_dtype", None),
        ("", "flashinfer_cutlass", "moe_runner_backend", "flashinfer_cutlass"),
        (
            "Use flashinfer_trtllm as MoE runner backend on SM100 for Llama4",
            "auto",
            "moe_runner_backend",
            "flashinfer_trtllm",
        ),
        ("", "auto", "moe_runner_backend", None),
        ("", "flashinfer", "sampling_backend", "flashinfer"),
    ],
)
def test_what_it_chose_stands_for_what_was_asked(log: str, body: str, name: str, value: str | None) -> None:
    assert read(changed(**{name: body}), log).other.get(name) == value


def test_a_secret_flag_is_not_kept() -> None:
    declared = config(flags={"admin_api_key": "hush", "ssl_keyfile_password": "hush", "page_size": 1})
    effective = read(changed(admin_api_key="hush", ssl_keyfile_password="hush"), declared=declared)
    assert "hush" not in repr(effective)
    assert effective.other["page_size"] == "1"


def test_what_nccl_says_of_itself() -> None:
    log = (
        "host:1:1 [0] NCCL INFO NCCL version 2.28.3+cuda13.0\n"
        "host:1:1 [0] NCCL INFO NCCL_PROTO set by environment to LL\n"
        "host:1:1 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 16777216.\n"
    )
    effective = read(INFO, log)
    assert effective.nccl_env == {"NCCL_PROTO": "LL", "NCCL_BUFFSIZE": "16777216"}
    assert effective.versions["nccl"] == "2.28.3+cuda13.0"
    assert fields(ENGINE.mismatches(config(nccl={"NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring"}), effective)) == {
        "NCCL_PROTO": ("Simple", "LL")
    }


@pytest.mark.parametrize(
    "body", [[], {}, {"internal_states": []}, {"internal_states": [None]}, {"cuda_graph_config": "x"}]
)
def test_strange_bodies_are_unknown_not_a_traceback(body: Any) -> None:
    assert read(body).attention_backend is None


@pytest.mark.parametrize("line", LOG.splitlines())
def test_no_line_of_a_good_start_looks_like_a_crash(line: str) -> None:
    assert not [what for pattern, what in ENGINE.crash_patterns if pattern.search(line)]


def test_signs_of_progress_in_a_real_start() -> None:
    seen = [what for line in LOG.splitlines() for pattern, what in ENGINE.progress_patterns if pattern.search(line)]
    assert list(dict.fromkeys(seen)) == [
        "joining ranks",
        "loading weights",
        "weights loaded",
        "allocating the KV cache",
        "capturing graphs",
        "warming up",
    ]


def test_two_lives_of_a_server_are_told_apart_and_its_tokenizers_are_not() -> None:
    def born(**values: Any) -> str | None:
        return ENGINE.birthmark(Recorded(bodies={"/server_info": changed(**values)}))

    took = INFO["startup_time"]
    assert born() == born(startup_time={**took, "tokenizer_e2e": 99.0}, internal_states=[])
    assert len({born(), born(random_seed=7), born(startup_time={**took, "scheduler_e2e": 8.5})}) == 3
