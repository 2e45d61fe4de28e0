"""What is known before the source is read: the GPU, the model, and a machine with nothing unusual set."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.inspection.values import Object

#: Said with every answer that was worked out from the source.
ASSUMED = (
    "no environment variable of the engine set, its kernel packages installed, a recent driver and CUDA, "
    "and no flag given except those asked for"
)

_CARDS = {
    "a100": "sm_80",
    "rtx3090": "sm_86",
    "l4": "sm_89",
    "l40s": "sm_89",
    "rtx4090": "sm_89",
    "h100": "sm_90",
    "h200": "sm_90",
    "h20": "sm_90",
    "b200": "sm_100",
    "gb200": "sm_100",
    "b300": "sm_103",
    "gb300": "sm_103",
    "rtx5090": "sm_120",
    "rtxpro6000": "sm_120",
    "gb10": "sm_121",
    "mi300x": "gfx942",
    "mi325x": "gfx942",
    "mi355x": "gfx950",
}


@dataclass(frozen=True)
class GpuFacts:
    """A kind of accelerator: ``vendor`` is nvidia, amd or cpu; ``capability`` is torch's (12, 0) for sm_120."""

    name: str
    vendor: str
    capability: tuple[int, int] | None = None


#: What is shown when no GPU is named.
USUAL_GPUS = ("sm_90", "sm_100", "sm_120", "gfx942", "cpu")


def gpu(name: str) -> GpuFacts:
    """``sm_90``, ``sm100``, ``gfx942``, ``cpu`` or a card (``H200``). Raises ``ConfigError`` for anything else."""
    plain = re.sub(r"[\s_-]", "", name.lower())
    plain = re.sub(r"[\s_-]", "", _CARDS.get(plain.removeprefix("nvidia").removeprefix("amd"), plain))
    if plain == "cpu":
        return GpuFacts("cpu", "cpu")
    if found := re.fullmatch(r"sm(\d{1,2})(\d)a?", plain):
        return GpuFacts(f"sm_{found[1]}{found[2]}", "nvidia", (int(found[1]), int(found[2])))
    if found := re.fullmatch(r"gfx(\d{1,2})(\d)[0-9a-f]", plain):
        return GpuFacts(plain, "amd", (int(found[1]), int(found[2])))  # what torch says of gfx942: (9, 4)
    raise ConfigError(
        f"--gpu {name}: not a GPU this can reason about. Give sm_NN (sm_90, sm_100, sm_120), gfxNNN, cpu, "
        f"or one of {', '.join(sorted(_CARDS))}"
    )


@dataclass(frozen=True, eq=False)
class ModelFacts:
    """A model's config.json. ``label`` is its name for people."""

    label: str
    config: Mapping[str, Any] = field(repr=False)

    @property
    def text(self) -> Mapping[str, Any]:
        """The language model's part of a multimodal config, else all of it."""
        inner = self.config.get("text_config")
        return {**inner} if isinstance(inner, Mapping) else self.config

    @property
    def is_mla(self) -> bool:
        """DeepSeek-style latent attention: the config has a ``kv_lora_rank``."""
        return self.text.get("kv_lora_rank") is not None

    @property
    def head_size(self) -> int | None:
        """Width of one KV row as an attention backend sees it."""
        text = self.text
        if self.is_mla:
            return _sum(text.get("kv_lora_rank"), text.get("qk_rope_head_dim"))
        if isinstance(text.get("head_dim"), int):
            return int(text["head_dim"])
        hidden, heads = text.get("hidden_size"), text.get("num_attention_heads")
        return hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads else None

    @classmethod
    def read(cls, model: str) -> ModelFacts:
        """From a model folder, a config.json, or a model id that this user's Hugging Face cache holds.

        Raises ``ConfigError`` when there is no readable config.json; nothing is downloaded.
        """
        path = Path(model).expanduser()
        candidates = [path / "config.json" if path.is_dir() else path, *_cached(model)]
        found = next((c for c in candidates if c.is_file()), None)
        if found is None:
            raise ConfigError(
                f"--model {model}: no config.json there, and this user's Hugging Face cache has no such model. "
                "Give its folder or its config.json (nothing is downloaded), or leave --model out to see plain "
                "and latent attention side by side"
            )
        try:
            config = json.loads(found.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"--model {model}: {found} cannot be read ({error})") from error
        names = config.get("architectures") if isinstance(config, dict) else None
        if not (isinstance(names, list) and names and all(isinstance(n, str) for n in names)):
            raise ConfigError(f"--model {model}: {found} has no list of architectures; is it a model's config.json?")
        return cls(model, config)


def usual_models() -> tuple[ModelFacts, ModelFacts]:
    """A plain (grouped-query) and a latent-attention model, shown when no model is named."""
    common = {"torch_dtype": "bfloat16", "vocab_size": 128_000, "rope_scaling": None, "max_position_embeddings": 8192}
    plain = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "head_dim": 128}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32}
    latent = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "num_hidden_layers": 61,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 256,
    }
    return (
        ModelFacts("MHA (as LlamaForCausalLM)", {**common, **plain, **heads}),
        ModelFacts("MLA (as DeepseekV3ForCausalLM)", {**common, **latent}),
    )


def config_object(name: str, config: Mapping[str, Any]) -> Object:
    """config.json as the object that engine code reads attributes of; its inner configs likewise.

    An absent key reads as absent for ``getattr(config, key, default)`` and ``hasattr``. (Model classes of
    transformers may add defaults of their own; those cannot be seen from here.)
    """
    inner = {
        k: config_object(f"{name}.{k}", v)
        if isinstance(v, dict) and k.endswith("_config") and k != "quantization_config"
        else v
        for k, v in config.items()
    }
    return Object(name, {"architectures": None, "model_type": None, **inner}, complete=True)


def _cached(model: str) -> list[Path]:
    """config.json of a model id in the local hub cache, newest first."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        return []
    home = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface")) / "hub"
    folder = Path(home).expanduser() / f"models--{model.replace('/', '--')}" / "snapshots"
    return sorted(folder.glob("*/config.json"), key=lambda p: p.stat().st_mtime, reverse=True)


def _sum(*parts: Any) -> int | None:
    return sum(parts) if all(isinstance(p, int) for p in parts) else None
