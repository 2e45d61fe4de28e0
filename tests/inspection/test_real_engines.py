"""The real wheels of several releases. ``LLMPERF_ENGINE_WHEELS`` names a folder that holds them, filled by

pip download --no-deps -d FOLDER sglang==0.4.6.post5   # and each release below, one by one
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_llmperf.inspection import Inspection, ModelFacts, Source, facts, inspect, open_source

pytestmark = pytest.mark.real_engine

PLAIN, LATENT = facts.usual_models()
KIMI = ModelFacts(
    "Kimi-K2.5 INT4",
    {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "vision_config": {"hidden_size": 1152},
        "text_config": {
            **LATENT.config,
            "architectures": ["DeepseekV3ForCausalLM"],
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "n_routed_experts": 384,
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "group_size": 32, "strategy": "group", "type": "int"}}
                },
            },
        },
    },
)
GPT_OSS = ModelFacts(
    "gpt-oss",
    {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "head_dim": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "num_hidden_layers": 36,
        "sliding_window": 128,
        "vocab_size": 201088,
        "quantization_config": {"quant_method": "mxfp4"},
    },
)

#: (package, release): {(model, GPU): attention backend}. Checked by hand against the code of each release.
EXPECTED = {
    ("sglang", "0.4.6.post5"): {
        (PLAIN, "sm_90"): "fa3",
        (PLAIN, "sm_120"): "flashinfer",
        (PLAIN, "gfx942"): "aiter",
        (LATENT, "sm_90"): "fa3",
        (LATENT, "sm_100"): "triton",
        (LATENT, "sm_120"): "triton",
    },
    ("sglang", "0.5.2"): {
        (PLAIN, "sm_90"): "fa3",
        (PLAIN, "sm_100"): "flashinfer",
        (PLAIN, "gfx942"): "aiter",
        (LATENT, "sm_100"): "flashinfer",
        (LATENT, "sm_120"): "triton",
        (GPT_OSS, "sm_90"): "fa3",
        (GPT_OSS, "sm_100"): "trtllm_mha",
        (GPT_OSS, "sm_120"): "triton",
    },
    ("sglang", "0.5.17"): {
        (PLAIN, "sm_90"): "fa3",  # as the log of a real H200 says
        (PLAIN, "sm_100"): "trtllm_mha",
        (PLAIN, "sm_120"): "flashinfer",
        (LATENT, "sm_90"): "fa3",
        (LATENT, "sm_100"): "trtllm_mla",
        (LATENT, "sm_120"): "triton",
        (KIMI, "sm_120"): "triton",
        (KIMI, "sm_100"): "trtllm_mla",
    },
    ("sglang", "0.5.23"): {
        (PLAIN, "sm_90"): "fa3",
        (PLAIN, "sm_100"): "trtllm_mha",
        (PLAIN, "sm_120"): "flashinfer",
        (PLAIN, "gfx942"): "aiter",
        (LATENT, "sm_90"): "fa3",
        (LATENT, "sm_100"): "trtllm_mla",
        (LATENT, "sm_120"): "triton",
        (KIMI, "sm_120"): "triton",
        (KIMI, "sm_100"): "trtllm_mla",
        (GPT_OSS, "sm_120"): "triton",
    },
    ("vllm", "0.10.2"): {
        (PLAIN, "sm_90"): "FlashAttentionBackend",
        (PLAIN, "sm_100"): "FlashInferBackend",
        (LATENT, "sm_100"): "CutlassMLABackend",
        (LATENT, "sm_120"): "TritonMLABackend",
    },
    ("vllm", "0.26.0"): {
        (PLAIN, "sm_90"): "FLASH_ATTN",  # as the log of a real H200 says
        (PLAIN, "sm_100"): "FLASHINFER",
        (LATENT, "sm_90"): "FLASH_ATTN_MLA",
        (LATENT, "sm_100"): "FLASHINFER_MLA",
        (LATENT, "sm_120"): "TRITON_MLA",
    },
    ("vllm", "0.33.0"): {
        (PLAIN, "sm_90"): "FLASH_ATTN",
        (PLAIN, "sm_100"): "FLASHINFER",
        (PLAIN, "sm_120"): "FLASH_ATTN",
        (PLAIN, "gfx942"): "ROCM_ATTN",
        (LATENT, "sm_90"): "FLASH_ATTN_MLA",
        (LATENT, "sm_100"): "FLASHINFER_MLA",
        (LATENT, "sm_120"): "TRITON_MLA",
        (KIMI, "sm_120"): "TRITON_MLA",
    },
}
_CASES = [
    pytest.param(release, model, gpu, backend, id=f"{release[0]}-{release[1]}-{model.label.split()[0]}-{gpu}")
    for release, table in EXPECTED.items()
    for (model, gpu), backend in table.items()
]


def _wheels() -> Path:
    folder = os.environ.get("LLMPERF_ENGINE_WHEELS")
    if not folder:
        pytest.skip("LLMPERF_ENGINE_WHEELS names no folder of engine wheels")
    return Path(folder)


@pytest.fixture(scope="module")
def opened() -> dict[tuple[str, str], Source]:
    """Sources by release, opened once: what was parsed is remembered in them."""
    return {}


@pytest.fixture
def release(request: pytest.FixtureRequest, opened: dict[tuple[str, str], Source]) -> Source:
    package, version = request.param
    if (package, version) not in opened:
        found = sorted(_wheels().glob(f"{package}-{version}-*.whl"))
        if not found:
            pytest.skip(f"no wheel of {package} {version} in {_wheels()}")
        opened[package, version] = open_source(package, source=found[0])
    return opened[package, version]


@pytest.mark.parametrize(("release", "model", "gpu", "backend"), _CASES, indirect=["release"])
def test_the_backend_it_would_take(release: Source, model: ModelFacts, gpu: str, backend: str) -> None:
    found = inspect(release, model, gpu)
    default = found.defaults[0].settled
    assert default is not None, found.defaults[0]
    assert default.answer["attention_backend"] == backend
    place = default.places["attention_backend"]
    if not backend.endswith("Backend"):  # older vLLM puts the class path together from pieces
        assert backend in release.text(place.file).splitlines()[place.line - 1]


def _every(package: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("release", [r for r in EXPECTED if r[0] == package], indirect=True, ids=str)


def settled(found: Inspection, name: str) -> str | None:
    (default,) = (d for d in found.defaults if d.fields == (name,))
    assert default.settled is not None, default
    return default.settled.answer[name]


@_every("sglang")
def test_speculation_caps_running_requests_at_48(release: Source) -> None:
    given = {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "drafter"}
    assert settled(inspect(release, PLAIN, "sm_90", given), "max_running_requests") == "48"
    assert settled(inspect(release, PLAIN, "sm_90"), "max_running_requests") is None


@_every("sglang")
def test_what_sglang_offers(release: Source) -> None:
    found = inspect(release, PLAIN, "sm_90")
    offered = {c.flag: c.options for c in found.choices}
    assert {"triton", "fa3", "flashinfer", "flashmla"} <= set(offered["--attention-backend"])
    assert {"flashinfer", "pytorch"} <= set(offered["--sampling-backend"])
    flags = {f.name for f in found.flags}
    assert {"--max-running-requests", "--stream-interval", "--disable-custom-all-reduce", "--tp-size"} <= {
        *flags,
        *({"--tp-size"} if "--tensor-parallel-size" in flags else ()),
    }
    assert all(f.help for f in found.flags if f.name == "--attention-backend")
    written = {e.name for e in found.environment}
    assert {"NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE", "CUDA_DEVICE_MAX_CONNECTIONS"} <= written


@pytest.mark.parametrize("release", [("sglang", "0.5.17")], indirect=True)
def test_what_a_real_h200_launch_resolved_to(release: Source) -> None:
    """``/server_info`` of SGLang 0.5.17 on an H200, started with these flags, said the same."""
    found = inspect(release, PLAIN, "H200", {"attention_backend": "triton", "sampling_backend": "pytorch"})
    real = {
        "sampling_backend": "pytorch",
        "moe_runner_backend": "auto",
        "mamba_backend": "triton",
        "linear_attn_backend": "triton",
        "page_size": "1",
        "disable_overlap_schedule": "False",
        "kv_cache_dtype": "auto",
    }
    assert {name: settled(found, name) for name in real} == real
    assert found.defaults[0].outcomes.values("attention_backend") == ["triton"]


@pytest.mark.parametrize("release", [("sglang", "0.5.23")], indirect=True)
def test_kimi_on_data_centre_blackwell_takes_the_int4_kernels(release: Source) -> None:
    found = inspect(release, KIMI, "sm_100")
    assert settled(found, "moe_runner_backend") == "flashinfer_trtllm"
    assert settled(found, "page_size") == "64"


@_every("vllm")
def test_what_vllm_offers(release: Source) -> None:
    found = inspect(release, PLAIN, "sm_90")
    assert {"FLASH_ATTN", "FLASHINFER", "TRITON_MLA"} <= set(found.choices[0].options)
    flags = {f.name: f for f in found.flags}
    assert flags["--enforce-eager"].default == "False"
    assert {"--tensor-parallel-size", "--max-num-seqs", "--block-size", "--kv-cache-dtype"} <= set(flags)
    assert "auto" in flags["--kv-cache-dtype"].choices
