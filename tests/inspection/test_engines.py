"""Whole inspections of small hand-made engines: old and new SGLang, and vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.inspection import Inspection, ModelFacts, Source, inspect
from pytest_llmperf.inspection.findings import Default
from tests.inspection.engines import DEEPSEEK, LLAMA, NEW_SGLANG, OLD_SGLANG, VLLM, source

PLAIN, LATENT = ModelFacts("llama", LLAMA), ModelFacts("deepseek", DEEPSEEK)


def attention(found: Inspection) -> Default:
    return next(d for d in found.defaults if d.fields[0] == "attention_backend")


def picked(engine: Source, model: ModelFacts, gpu: str, **given: str) -> list[str | None]:
    return attention(inspect(engine, model, gpu, given)).outcomes.values("attention_backend")


@pytest.mark.parametrize(
    ("model", "gpu", "expected"),
    [
        (PLAIN, "sm_90", ["fa3"]),
        (PLAIN, "sm_120", ["flashinfer"]),
        (PLAIN, "gfx942", ["aiter"]),
        (PLAIN, "cpu", ["triton"]),
        (LATENT, "h100", ["fa3"]),
        (LATENT, "b200", ["triton"]),
    ],
)
def test_old_sglang_chooses_in_its_model_runner(
    tmp_path: Path, model: ModelFacts, gpu: str, expected: list[str]
) -> None:
    assert picked(source(tmp_path, "sglang", OLD_SGLANG), model, gpu) == expected


@pytest.mark.parametrize(
    ("model", "gpu", "expected"),
    [
        (PLAIN, "sm_90", ["fa3"]),
        (PLAIN, "sm_100", ["flashinfer"]),
        (LATENT, "sm_100", ["trtllm_mla"]),
        (LATENT, "sm_120", ["triton"]),
        (PLAIN, "cpu", ["amx", "triton"]),
    ],
)
def test_new_sglang_chooses_in_its_pipeline(tmp_path: Path, model: ModelFacts, gpu: str, expected: list[str]) -> None:
    assert picked(source(tmp_path, "sglang", NEW_SGLANG), model, gpu) == expected


def test_the_line_that_decides_is_named(tmp_path: Path) -> None:
    engine = source(tmp_path, "sglang", NEW_SGLANG)
    lines = NEW_SGLANG["srt/arg_groups/overrides.py"].splitlines()
    found = attention(inspect(engine, LATENT, "sm_100")).settled
    assert found is not None
    place = found.places["attention_backend"]
    assert place.file == "sglang/srt/arg_groups/overrides.py"
    assert "trtllm_mla" in lines[place.line - 1]
    assert [(d.text, d.holds) for d in found.because] == [("is_sm100() and cfg.attention_backend is None", True)]


def test_an_open_question_is_named_with_both_answers(tmp_path: Path) -> None:
    default = attention(inspect(source(tmp_path, "sglang", NEW_SGLANG), PLAIN, "cpu"))
    assert default.settled is None
    assert {(o.answer["attention_backend"], o.depends[0].holds) for o in default.outcomes.all} == {
        ("amx", True),
        ("triton", False),
    }
    assert {o.depends[0].text for o in default.outcomes.all} == {"torch.cpu._is_amx_tile_supported()"}


def test_a_predicate_of_the_architecture_applies(tmp_path: Path) -> None:
    gemma = ModelFacts("gemma", {**LLAMA, "architectures": ["Gemma9ForCausalLM"]})
    found = attention(inspect(source(tmp_path, "sglang", NEW_SGLANG), gemma, "sm_120")).settled
    assert found is not None
    assert found.answer == {"attention_backend": "flashinfer", "prefill_attention_backend": "triton"}


def test_a_given_flag_changes_the_answer(tmp_path: Path) -> None:
    old = source(tmp_path / "old", "sglang", OLD_SGLANG)
    assert picked(old, PLAIN, "sm_90", speculative_eagle_topk="4") == ["flashinfer"]
    assert picked(old, PLAIN, "sm_90", attention_backend="triton") == ["triton"]


def test_speculation_caps_the_running_requests(tmp_path: Path) -> None:
    old = source(tmp_path, "sglang", OLD_SGLANG)
    for given, expected in (({}, [None]), ({"speculative_algorithm": "EAGLE3"}, ["48"])):
        found = inspect(old, PLAIN, "sm_90", given)
        (default,) = (d for d in found.defaults if d.fields == ("max_running_requests",))
        assert default.outcomes.values("max_running_requests") == expected


def test_a_launch_that_the_engine_refuses(tmp_path: Path) -> None:
    new = source(tmp_path, "sglang", NEW_SGLANG)
    found = attention(inspect(new, PLAIN, "sm_120", {"enable_deterministic_inference": "true"}))
    (only,) = found.outcomes.all
    assert only.refused is not None
    assert "deterministic inference cannot use flashinfer" in only.refused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"no_such_flag": "1"}, "has no such launch flag"),
        ({"attention_backend": "nope"}, "choose from triton, fa3"),
    ],
)
def test_a_flag_that_this_release_does_not_have(tmp_path: Path, given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        inspect(source(tmp_path, "sglang", OLD_SGLANG), PLAIN, "sm_90", given)


def test_without_a_model_and_a_gpu_the_usual_ones_stand_side_by_side(tmp_path: Path) -> None:
    found = inspect(source(tmp_path, "sglang", OLD_SGLANG))
    assert {(d.model[:3], d.gpu) for d in found.defaults} == {
        (m, g) for m in ("MHA", "MLA") for g in ("sm_90", "sm_100", "sm_120", "gfx942", "cpu")
    }


@pytest.mark.parametrize(
    ("model", "gpu", "expected"),
    [
        (PLAIN, "sm_90", "FLASH_ATTN"),
        (PLAIN, "sm_100", "FLASHINFER"),
        (PLAIN, "sm_75", "FLASHINFER"),
        (LATENT, "sm_120", "TRITON_MLA"),
        (ModelFacts("odd", {**LLAMA, "head_dim": 80}), "sm_100", "FLASH_ATTN"),
    ],
)
def test_vllm_tries_its_priorities_and_each_backends_checks(
    tmp_path: Path, model: ModelFacts, gpu: str, expected: str
) -> None:
    found = attention(inspect(source(tmp_path, "vllm", VLLM), model, gpu)).settled
    assert found is not None
    assert found.answer == {"attention_backend": expected}
    line = VLLM["platforms/cuda.py"].splitlines()[found.places["attention_backend"].line - 1]
    assert expected in line


def test_vllm_without_a_backend_that_fits_refuses(tmp_path: Path) -> None:
    odd = ModelFacts("odd", {**LLAMA, "head_dim": 80})
    (only,) = attention(inspect(source(tmp_path, "vllm", VLLM), odd, "sm_75")).outcomes.all
    assert only.refused is not None
    assert "No valid attention backend" in only.refused


def test_vllm_flags_take_default_choices_and_help_from_the_config_behind_them(tmp_path: Path) -> None:
    found = {f.name: f for f in inspect(source(tmp_path, "vllm", VLLM), PLAIN, "sm_90").flags}
    assert found["--block-size"].default == "16"
    assert found["--block-size"].help == "Size of a cache block in tokens."
    assert found["--kv-cache-dtype"].choices == ("auto", "fp8")
    assert found["--enforce-eager"].default == "False"


def test_sglang_flags_in_both_layouts(tmp_path: Path) -> None:
    old = {f.name: f for f in inspect(source(tmp_path / "old", "sglang", OLD_SGLANG), PLAIN, "sm_90").flags}
    assert old["--attention-backend"].choices == ("triton", "fa3", "flashinfer", "aiter")
    assert old["--attention-backend"].help == "Choose the kernels for attention."
    assert old["--sampling-backend"].choices == ("flashinfer", "pytorch")
    assert (old["--schedule-policy"].default, old["--schedule-policy"].help) == ("fcfs", "100% fair")
    assert "--log-level" not in old  # does not matter for speed
    new = {f.name: f for f in inspect(source(tmp_path / "new", "sglang", NEW_SGLANG), PLAIN, "sm_90").flags}
    assert (new["--stream-interval"].default, new["--stream-interval"].help) == ("1", "Tokens per chunk.")
    assert not [f for f in new if "cuda-graph-inner" in f]
    assert str(new["--stream-interval"].at).startswith("sglang/srt/arg_groups/fields/kernel.py:")


def test_lists_of_choices_that_no_flag_offers_are_shown(tmp_path: Path) -> None:
    found = inspect(source(tmp_path, "sglang", NEW_SGLANG), PLAIN, "sm_90")
    (deterministic,) = (c for c in found.choices if "deterministic" in c.kind)
    assert deterministic.options == ("fa3", "triton")
    assert found.choices[0].flag == "--attention-backend"


def test_forced_variables(tmp_path: Path) -> None:
    found = inspect(source(tmp_path, "sglang", OLD_SGLANG), PLAIN, "sm_90").environment
    assert [(e.name, e.value, e.how, e.function) for e in found] == [
        ("NCCL_ASYNC_ERROR_HANDLING", "", "removed", "_set_envs"),
        ("NCCL_CUMEM_ENABLE", "0", "set", "_set_envs"),
        ("NCCL_NVLS_ENABLE", "str(int(server_args.enable_nvls))", "default", "_set_envs"),
        ("TRTLLM_ENABLE_PDL", "1", "default", "_set_envs"),
    ]
    assert found[2].conditions == ("'NCCL_NVLS_ENABLE' not in os.environ",)
    pinned = inspect(source(tmp_path, "vllm", VLLM), PLAIN, "sm_90").environment
    assert {(e.name, e.value) for e in pinned} == {("NCCL_PROTO", "Simple"), ("NCCL_ALGO", "allreduce:tree")}


def test_what_the_source_does_not_tell_is_said(tmp_path: Path) -> None:
    found = inspect(source(tmp_path, "vllm", {k: v for k, v in VLLM.items() if "registry" not in k}), PLAIN, "sm_90")
    assert found.defaults == ()
    assert "no registry of attention backends was found in this release" in found.silent
    assert "no choice of mamba backend was found in this source" in found.silent


def test_an_empty_package_says_what_it_lacks_and_does_not_fail(tmp_path: Path) -> None:
    for package in ("sglang", "vllm"):
        found = inspect(source(tmp_path, package, {"__init__.py": ""}))
        assert found.flags == ()
        assert found.silent
        assert found.version is None


@pytest.mark.parametrize("broken", ["def (", "import nothing_at_all\nclass ServerArgs(nothing_at_all.X): pass\n", ""])
def test_a_release_of_another_shape_is_survived(tmp_path: Path, broken: str) -> None:
    found = inspect(source(tmp_path, "sglang", OLD_SGLANG, srt__server_args=broken))
    assert found.silent


def test_no_reader_for_another_engine(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no reader for tgi; inspect reads sglang and vllm"):
        inspect(source(tmp_path, "tgi", {"__init__.py": ""}))
