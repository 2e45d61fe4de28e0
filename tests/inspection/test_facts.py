"""GPU names and config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.inspection import ModelFacts, facts
from tests.inspection.engines import DEEPSEEK, LLAMA


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sm_90", ("sm_90", "nvidia", (9, 0))),
        ("SM120", ("sm_120", "nvidia", (12, 0))),
        ("sm_90a", ("sm_90", "nvidia", (9, 0))),
        ("NVIDIA H200", ("sm_90", "nvidia", (9, 0))),
        ("RTX 5090", ("sm_120", "nvidia", (12, 0))),
        ("B300", ("sm_103", "nvidia", (10, 3))),
        ("gfx942", ("gfx942", "amd", (9, 4))),
        ("MI300X", ("gfx942", "amd", (9, 4))),
        ("cpu", ("cpu", "cpu", None)),
    ],
)
def test_gpu_names(name: str, expected: tuple[str, str, tuple[int, int] | None]) -> None:
    found = facts.gpu(name)
    assert (found.name, found.vendor, found.capability) == expected


@pytest.mark.parametrize("name", ["", "sm_", "gtx", "sm_9x", "gfx", "'; drop"])
def test_an_unknown_gpu_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=r"sm_90, sm_100, sm_120.*h200"):
        facts.gpu(name)


def test_a_config_is_found_in_a_folder_a_file_or_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "hub" / "models--org--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for model in (str(snapshot), str(snapshot / "config.json"), "org/model"):
        assert ModelFacts.read(model).config == LLAMA


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "no list of architectures"),
        ('{"architectures": [3]}', "no list of architectures"),
        ('{"a": 1}', "no list of architectures"),
    ],
)
def test_a_config_that_is_none(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        ModelFacts.read(str(tmp_path))


def test_a_model_that_is_not_here_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for model in ("org/absent", "../../etc", str(tmp_path / "gone"), "org/../absent"):
        with pytest.raises(ConfigError, match="nothing is downloaded"):
            ModelFacts.read(model)


@pytest.mark.parametrize(
    ("config", "mla", "head"),
    [
        (LLAMA, False, 128),
        ({**LLAMA, "head_dim": 64}, False, 64),
        (DEEPSEEK, True, 576),
        ({"architectures": ["KimiK25ForConditionalGeneration"], "text_config": DEEPSEEK}, True, 576),
        ({"architectures": ["X"]}, False, None),
        ({"architectures": ["X"], "hidden_size": "big", "num_attention_heads": 0}, False, None),
    ],
)
def test_what_a_config_tells(config: dict[str, object], mla: bool, head: int | None) -> None:
    model = ModelFacts("m", config)
    assert (model.is_mla, model.head_size) == (mla, head)
