"""The model that is made on the spot."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from pytest_llmperf import models
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.models import dummy_model, tiny_model, tiny_recipe


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tiny_model.TinyModel:
    return tiny_model.make(tmp_path_factory.mktemp("tiny"))


def _digests(folder: Path) -> dict[str, str]:
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(folder.iterdir())}


def test_the_same_bytes_each_time(model: tiny_model.TinyModel, tmp_path: Path) -> None:
    assert _digests(tiny_model.make(tmp_path).folder) == _digests(model.folder)


def test_the_same_weights_on_every_machine(model: tiny_model.TinyModel) -> None:
    from safetensors.numpy import load_file

    tensors = load_file(model.folder / "model.safetensors")
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].astype("<f2").tobytes())
    assert digest.hexdigest()[:16] == "353893e1b07644bc", "the recipe changed: raise models.RECIPE and this digest"


def test_what_engines_look_for(model: tiny_model.TinyModel) -> None:
    expected = {
        *("config.json", "generation_config.json", "model.safetensors", "special_tokens_map.json"),
        *("tiny.gguf", "tokenizer.json", "tokenizer_config.json"),
    }
    assert {f.name for f in model.folder.iterdir()} == expected
    assert 25e6 < model.parameters < 32e6
    config = json.loads((model.folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["max_position_embeddings"] >= 2048
    assert "chat_template" in json.loads((model.folder / "tokenizer_config.json").read_text())


def test_weights_are_exact_in_bfloat16_too(model: tiny_model.TinyModel) -> None:
    from safetensors.numpy import load_file

    for tensor in load_file(model.folder / "model.safetensors").values():
        wide = tensor.astype(np.float32)
        assert not (wide.view(np.uint32) & 0xFFFF).any()


def test_the_gguf_holds_the_same_weights(model: tiny_model.TinyModel) -> None:
    import gguf
    from safetensors.numpy import load_file

    theirs = load_file(model.folder / "model.safetensors")
    assert model.gguf is not None
    ours = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(model.gguf).tensors}
    assert len(ours) == len(theirs)
    for gguf_name, name in (
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.3.ffn_down.weight", "model.layers.3.mlp.down_proj.weight"),
        ("blk.7.attn_v.weight", "model.layers.7.self_attn.v_proj.weight"),
    ):
        np.testing.assert_array_equal(ours[gguf_name], theirs[name].astype(np.float32))


def test_no_reply_can_hold_a_token_that_does_not_print(model: tiny_model.TinyModel) -> None:
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    head = load_file(model.folder / "model.safetensors")["lm_head.weight"]
    tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == tiny_recipe.VOCAB
    reachable = np.flatnonzero(head.any(axis=1))
    assert len(reachable) > 3500
    texts = [tokenizer.decode([int(i)]) for i in reachable]
    assert all(t.strip() and t.isascii() and t.isprintable() for t in texts)
    assert not {0, 1, 2, 3} & set(reachable.tolist())


def test_both_tokenizers_agree(model: tiny_model.TinyModel) -> None:
    import gguf
    from tokenizers import Tokenizer

    reader = gguf.GGUFReader(str(model.gguf))
    tokens = reader.fields["tokenizer.ggml.tokens"]
    names = [bytes(tokens.parts[i]).decode() for i in tokens.data]
    vocabulary = Tokenizer.from_file(str(model.folder / "tokenizer.json")).get_vocab()
    assert names == sorted(vocabulary, key=lambda t: vocabulary[t])


def test_round_trip_of_any_text(model: tiny_model.TinyModel) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    for text in ("What is 2 + 2?\n", "bada heda", "ünïcode ✓ 漢字", "<|im_start|>user"):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_cached_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls = []

    def make(folder: Path) -> None:
        calls.append(folder)
        assert not (tmp_path / "pytest-llmperf" / f"tiny-{models.RECIPE}").exists()
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(tiny_model, "make", make)
    folder = tiny_model.cached()
    assert folder == tiny_model.cached() == Path(tiny_model.resolve("tiny", remote=False))
    assert (folder / "config.json").exists()
    assert len(calls) == 1
    assert not calls[0].exists()
    assert [p.name for p in folder.parent.iterdir() if p.is_dir()] == [folder.name]
    assert folder.parent.stat().st_mode & 0o077 == 0


def test_a_failed_make_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def make(folder: Path) -> None:
        (folder / "half").write_text("")
        raise OSError("No space left on device")

    monkeypatch.setattr(tiny_model, "make", make)
    with pytest.raises(ConfigError, match="No space left"):
        tiny_model.cached()
    assert not [p for p in (tmp_path / "pytest-llmperf").iterdir() if p.is_dir()]


def test_two_at_once_make_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls = []
    all_wait = threading.Event()

    def make(folder: Path) -> None:
        calls.append(folder)
        all_wait.wait(10)

    monkeypatch.setattr(tiny_model, "make", make)
    others = [threading.Thread(target=tiny_model.cached) for _ in range(3)]
    for thread in others:
        thread.start()
    all_wait.set()
    for thread in others:
        thread.join(30)
    assert len(calls) == 1


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="could not be written"):
        tiny_model.make(tmp_path / "file" / "below")


def test_other_models_are_left_alone() -> None:
    assert tiny_model.resolve("org/model", remote=True) == "org/model"


def test_another_host_has_no_such_folder() -> None:
    with pytest.raises(ConfigError, match="llmperf tiny-model DIR"):
        tiny_model.resolve("tiny", remote=True)


def test_missing_packages_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"pip install 'pytest-llmperf\[llamacpp\]'"):
        tiny_model.make(tmp_path)


@pytest.mark.parametrize("shape", dummy_model.SHAPES)
def test_shapes_without_weights(tmp_path: Path, shape: str) -> None:
    from tokenizers import Tokenizer

    dummy_model.write(tmp_path / "new", shape)
    assert not list((tmp_path / "new").glob("*.safetensors"))
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert Tokenizer.from_file(str(tmp_path / "new" / "tokenizer.json")).get_vocab_size() == config["vocab_size"]
    h, ffn, kv = config["hidden_size"], config["intermediate_size"], config["num_key_value_heads"]
    layer = 2 * h * h + 2 * h * kv * config["head_dim"] + 3 * h * ffn
    parameters = config["num_hidden_layers"] * layer  # embeddings left out: the vocabulary is small
    assert round(parameters / 1e9, 1) == {"1b": 1.0, "3b": 2.8, "8b": 7.0, "8b-eagle3": 0.2}[shape]
    assert ("Eagle3" in config["architectures"][0]) == ("eagle3" in shape)


def test_a_shape_is_not_written_over_a_model_with_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match="holds a model with weights; name another folder"):
        dummy_model.write(tmp_path, "1b")
    assert [f.name for f in tmp_path.iterdir()] == ["model.safetensors"]
