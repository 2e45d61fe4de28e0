"""The bytes of the tiny model: configuration, tokenizer and weights, as a Hugging Face folder and as GGUF.

Weights are small integers times a power of two: exact in float16 and in bfloat16, so that every engine loads the same
values, whatever any library's floating point does.

Layers are random; input and output embeddings are paired so that greedy decoding walks phrases of 32 printable
tokens, round and round, by a wide margin over every other token. Output rows of special, whitespace and non-ASCII
tokens are zero. So no reply ends early, each token is text that a detokeniser has no reason to hold back, all engines
write the same, and prompt-lookup speculation finds something to guess from the second round on.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.models import CONTEXT, RECIPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

HIDDEN, LAYERS, HEADS, KV_HEADS, FFN, VOCAB = 512, 8, 8, 4, 1408, 4096
HEAD = HIDDEN // HEADS
_EPS, _ROPE_BASE = 1e-5, 10000.0
_STEP, _LOUD, _PHRASE = 2.0**-12, 64, 32
_STRIDE = 7919  # a prime that walks all pairs of syllables without repeating one
_BOS, _EOS, _SPECIAL = 0, 1, ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rms_norm_eps": _EPS,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}
_CONFIG = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "intermediate_size": FFN,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "rope_theta": _ROPE_BASE,
    "torch_dtype": "float16",
}


def write(folder: Path, gguf_path: Path | None) -> int:
    """Write the model into ``folder`` (there already) and ``gguf_path``; the number of its parameters.

    Raises ConfigError when the packages of the ``llamacpp`` extra are missing.
    """
    safetensors = _need("safetensors.numpy")
    tokens, merges = vocabulary(VOCAB)
    weights = _weights(tokens)
    write_tokenizer(folder, tokens, merges, CONTEXT)
    write_config(folder, _CONFIG)
    safetensors.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if gguf_path:
        _write_gguf(gguf_path, tokens, merges, weights)
    return sum(w.size for w in weights.values())


def _need(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"making the tiny model needs the package {module!r} ({error}): pip install 'pytest-llmperf[llamacpp]'"
        ) from error


def vocabulary(size: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Token strings by id and BPE merges: special tokens, all bytes, syllables, then some pairs of syllables.

    Raises ConfigError when the packages of the ``llamacpp`` extra are missing.
    """
    alphabet = sorted(_need("tokenizers").pre_tokenizers.ByteLevel.alphabet())
    syllables = [(c, v) for c in "bcdfghjklmnpqrstvwxz" for v in "aeiou"]
    starts = [("Ġ", c + v) for c, v in syllables]  # Ġ is how byte-level BPE writes a space
    merges = syllables + starts
    left = ["".join(m) for m in merges]
    right = [c + v for c, v in syllables]
    room = size - len(_SPECIAL) - len(alphabet) - len(merges)
    pairs = [(a, b) for a in left for b in right]
    merges += [pairs[i * _STRIDE % len(pairs)] for i in range(room)]
    return [*_SPECIAL, *alphabet, *("".join(m) for m in merges)], merges


def _weights(tokens: list[str]) -> dict[str, NDArray[np.float16]]:
    """All tensors under their Hugging Face names, rows as output features."""
    source = np.random.PCG64(RECIPE)  # numpy promises the raw stream for good, not what Generator makes of it

    def drawn(rows: int, columns: int) -> NDArray[np.float16]:
        raw = source.random_raw(rows * columns // 8).astype("<u8").view(np.int8) | np.int8(1)  # odd: symmetric
        values: NDArray[np.float16] = raw.astype(np.float16) * np.float16(_STEP)
        return values.reshape(rows, columns)

    ones = np.ones(HIDDEN, np.float16)
    embedding, head = drawn(VOCAB, HIDDEN), np.zeros((VOCAB, HIDDEN), np.float16)
    for token, successor in _successors(tokens):
        head[successor] = embedding[token]
    out = {
        "model.embed_tokens.weight": embedding * np.float16(_LOUD),
        "lm_head.weight": head,
        "model.norm.weight": ones,
    }
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        out |= {
            f"{layer}.input_layernorm.weight": ones,
            f"{layer}.post_attention_layernorm.weight": ones,
            f"{layer}.self_attn.q_proj.weight": drawn(HEADS * HEAD, HIDDEN),
            f"{layer}.self_attn.k_proj.weight": drawn(KV_HEADS * HEAD, HIDDEN),
            f"{layer}.self_attn.v_proj.weight": drawn(KV_HEADS * HEAD, HIDDEN),
            f"{layer}.self_attn.o_proj.weight": drawn(HIDDEN, HEADS * HEAD),
            f"{layer}.mlp.gate_proj.weight": drawn(FFN, HIDDEN),
            f"{layer}.mlp.up_proj.weight": drawn(FFN, HIDDEN),
            f"{layer}.mlp.down_proj.weight": drawn(HIDDEN, FFN),
        }
    return out


def _successors(tokens: list[str]) -> list[tuple[int, int]]:
    """Pairs (token, the one that follows it): phrases of ``_PHRASE`` visible tokens, each closed to a ring."""
    visible = [
        i
        for i, t in enumerate(tokens)
        if t not in _SPECIAL and t != "Ġ" and all("!" <= c <= "~" or c == "Ġ" for c in t)
    ]
    mixed = [visible[i * _STRIDE % len(visible)] for i in range(len(visible))]
    phrases = [mixed[i : i + _PHRASE] for i in range(0, len(mixed), _PHRASE)]
    return [pair for phrase in phrases for pair in zip(phrase, [*phrase[1:], phrase[0]], strict=True)]


def write_tokenizer(folder: Path, tokens: list[str], merges: list[tuple[str, str]], context: int) -> None:
    """``context``: tokens of one request."""
    tk = _need("tokenizers")
    tokenizer = tk.Tokenizer(tk.models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tk.decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": _SPECIAL[_BOS], "eos_token": _SPECIAL[_EOS]}
    _write_json(folder / "special_tokens_map.json", names)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context, "chat_template": _CHAT}
    _write_json(folder / "tokenizer_config.json", {**settings, "clean_up_tokenization_spaces": False, **names})


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """A Llama's ``config.json`` and what goes with it; ``config`` holds what this one has of its own."""
    ids = {"bos_token_id": _BOS, "eos_token_id": _EOS}
    _write_json(folder / "config.json", {**_LLAMA, **config, **ids})
    _write_json(folder / "generation_config.json", ids)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _write_gguf(
    path: Path, tokens: list[str], merges: list[tuple[str, str]], weights: dict[str, NDArray[np.float16]]
) -> None:
    gguf = _need("gguf")
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("pytest-llmperf tiny")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(_ROPE_BASE)
    writer.add_layer_norm_rms_eps(_EPS)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    kinds = gguf.TokenType
    writer.add_token_types([kinds.CONTROL if t in _SPECIAL else kinds.NORMAL for t in tokens])
    writer.add_token_merges([" ".join(m) for m in merges])
    writer.add_bos_token_id(_BOS)
    writer.add_eos_token_id(_EOS)
    writer.add_add_bos_token(False)
    writer.add_chat_template(_CHAT)
    for name, w in weights.items():
        if w.ndim == 1:
            writer.add_tensor(_gguf_name(name), w.astype(np.float32))
        else:
            step = _STEP * (_LOUD if name.startswith("model.embed") else 1)
            q8_0 = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(_gguf_name(name), _q8_0(_rotary(name, w), step), raw_dtype=q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _q8_0(w: NDArray[np.float16], step: float) -> NDArray[np.uint8]:
    """``w``, which is int8 times ``step``, as GGUF's Q8_0 without rounding: blocks of a float16 scale and 32 int8.

    A quarter of float32's traffic to memory, which is what a CPU decodes by. Shape (rows, columns / 32 * 34).
    """
    blocks = (w / np.float16(step)).astype(np.int8).view(np.uint8).reshape(-1, 32)
    scales = np.full((len(blocks), 1), step, "<f2").view(np.uint8)
    return np.hstack([scales, blocks]).reshape(len(w), -1)


def _gguf_name(name: str) -> str:
    for theirs, ours in (
        ("model.embed_tokens", "token_embd"),
        ("lm_head", "output"),
        ("model.norm", "output_norm"),
        ("model.layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.", "attn_"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ):
        name = name.replace(theirs, ours)
    return name


def _rotary(name: str, w: NDArray[np.float16]) -> NDArray[np.float16]:
    """llama.cpp rotates neighbouring pairs of a head's dimensions, Hugging Face its two halves: reorder q and k."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return w
    pairs: NDArray[np.float16] = w.reshape(-1, 2, HEAD // 2, HIDDEN).swapaxes(1, 2).reshape(-1, HIDDEN)
    return pairs
