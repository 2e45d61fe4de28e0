"""Model folders without weights, in shapes that people serve: engines make the weights up (``load_format="dummy"``).

What decoding costs depends on shapes, not on what the weights say. The vocabulary is smaller than real ones, so
embeddings and sampling weigh less than they do there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_llmperf.errors import ConfigError

VOCAB, CONTEXT = 16128, 8192
_COMMON = {"num_key_value_heads": 8, "rope_theta": 500000.0, "torch_dtype": "bfloat16", "initializer_range": 0.02}


def _shape(hidden: int, ffn: int, layers: int, heads: int, head: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "head_dim": head,
    }


_EAGLE3 = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": VOCAB}
#: Shapes of Llama 3 by parameters (of 3.2 where it has them), and of an EAGLE-3 drafter for the largest.
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "1b": _shape(2048, 8192, 16, 32, 64),
    "3b": _shape(3072, 8192, 28, 24, 128),
    "8b": _shape(4096, 14336, 32, 32, 128),
    "8b-eagle3": {**_shape(4096, 14336, 1, 32, 128), **_EAGLE3},
}


def write(folder: Path, shape: str) -> None:
    """Write configuration and tokenizer of ``shape`` into ``folder``, made when missing.

    Raises ConfigError when it cannot be written, holds weights, or a package of the ``llamacpp`` extra is missing.
    """
    from pytest_llmperf.models import tiny_recipe  # numpy stays out of the start of every pytest session

    if any(folder.glob("*.safetensors")):
        raise ConfigError(f"{folder} holds a model with weights; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tiny_recipe.write_tokenizer(folder, *tiny_recipe.vocabulary(VOCAB), CONTEXT)
        sizes = {"vocab_size": VOCAB, "max_position_embeddings": CONTEXT}
        tiny_recipe.write_config(folder, {**_COMMON, **sizes, **SHAPES[shape]})
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}; name another folder") from error
