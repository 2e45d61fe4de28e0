"""Small hand-made engines: the mechanisms of real SGLang and vLLM releases, in our own words and a few lines."""

from __future__ import annotations

import io
import tarfile
import textwrap
import zipfile
from collections.abc import Mapping
from pathlib import Path

from pytest_llmperf.inspection import Source, open_source

_PROBES = """
import os
import torch
from functools import lru_cache, partial
import importlib.util

def is_hip():
    return torch.version.hip is not None

def is_cuda():
    return torch.cuda.is_available() and torch.version.cuda is not None

def _major(majors):
    return is_cuda() and torch.cuda.get_device_capability()[0] in majors

is_hopper = lru_cache(maxsize=1)(partial(_major, majors=[9]))
is_sm100 = lru_cache(maxsize=1)(partial(_major, majors=[10]))

def has_flashinfer():
    return importlib.util.find_spec("flashinfer") is not None and is_cuda()

def has_amx():
    return torch.cpu._is_amx_tile_supported()
"""

_MODEL_CONFIG = """
from enum import IntEnum, auto
from sglang.srt.probes import get_config

class AttentionArch(IntEnum):
    MLA = auto()
    MHA = auto()

class ModelConfig:
    def __init__(self, model_path):
        self.hf_config = get_config(model_path)
        if "DeepseekV3ForCausalLM" in self.hf_config.architectures:
            self.attention_arch = AttentionArch.MLA
        else:
            self.attention_arch = AttentionArch.MHA

    @staticmethod
    def from_server_args(server_args):
        return ModelConfig(server_args.model_path)
"""

#: As releases up to about 0.5.3: one dataclass, argparse by hand, the model runner chooses.
OLD_SGLANG: Mapping[str, str] = {
    "__init__.py": "raise SystemExit('imported')",
    "version.py": '__version__ = "0.4.9"',
    "srt/__init__.py": "",
    "srt/probes.py": _PROBES + "\ndef get_config(path):\n    raise OSError(path)\n",
    "srt/configs/model_config.py": _MODEL_CONFIG,
    "srt/server_args.py": """
import dataclasses
from typing import Optional
from sglang.srt.probes import has_flashinfer

ATTENTION_BACKEND_CHOICES = ["triton", "fa3", "flashinfer", "aiter"]

@dataclasses.dataclass
class ServerArgs:
    model_path: str
    attention_backend: Optional[str] = None
    sampling_backend: Optional[str] = None
    max_running_requests: Optional[int] = None
    speculative_algorithm: Optional[str] = None
    speculative_eagle_topk: Optional[int] = None
    schedule_policy: str = "fcfs"

    def __post_init__(self):
        if self.sampling_backend is None:
            self.sampling_backend = "flashinfer" if has_flashinfer() else "pytorch"
        if self.speculative_algorithm in ("EAGLE", "EAGLE3"):
            if self.max_running_requests is None:
                self.max_running_requests = 48

    @staticmethod
    def add_cli_args(parser):
        sampling_choices = {"flashinfer", "pytorch"}
        parser.add_argument("--attention-backend", type=str, choices=ATTENTION_BACKEND_CHOICES,
                            default=ServerArgs.attention_backend, help="Choose the kernels   for attention.")
        parser.add_argument("--sampling-backend", choices=sampling_choices, default=ServerArgs.sampling_backend)
        parser.add_argument("--max-running-requests", type=int, default=ServerArgs.max_running_requests)
        parser.add_argument("--speculative-algorithm", choices=["EAGLE", "EAGLE3"])
        parser.add_argument("--speculative-eagle-topk", type=int, default=ServerArgs.speculative_eagle_topk)
        parser.add_argument("-sp", "--schedule-policy", default=ServerArgs.schedule_policy, help="100%% fair")
        parser.add_argument("--log-level", default="info")
""",
    "srt/model_executor/model_runner.py": """
from sglang.srt.probes import has_flashinfer, is_hip, is_hopper
from sglang.srt.configs.model_config import AttentionArch

_is_hip = is_hip()

class ModelRunner:
    def __init__(self, server_args, model_config):
        self.server_args = server_args
        self.use_mla_backend = model_config.attention_arch == AttentionArch.MLA

    def model_specific_adjustment(self):
        server_args = self.server_args
        if server_args.attention_backend is None:
            if not self.use_mla_backend:
                if is_hopper() and server_args.speculative_eagle_topk in (None, 1):
                    server_args.attention_backend = "fa3"
                elif _is_hip:
                    server_args.attention_backend = "aiter"
                else:
                    server_args.attention_backend = "flashinfer" if has_flashinfer() else "triton"
            else:
                server_args.attention_backend = "fa3" if is_hopper() else "triton"
""",
    "srt/entrypoints/engine.py": """
import os

def _set_envs(server_args):
    os.environ["NCCL_CUMEM_ENABLE"] = "0"
    if "NCCL_NVLS_ENABLE" not in os.environ:
        os.environ["NCCL_NVLS_ENABLE"] = str(int(server_args.enable_nvls))
    os.environ.setdefault("TRTLLM_ENABLE_PDL", "1")
    os.environ.pop("NCCL_ASYNC_ERROR_HANDLING", None)
    os.environ["HOME"] = "/elsewhere"
""",
    "test/env.py": "import os\nos.environ['NCCL_PROTO'] = 'LL'\n",
}

#: As today's: annotated fields, a pipeline of hooks and passes, overrides registered per architecture.
NEW_SGLANG: Mapping[str, str] = {
    "__init__.py": "raise SystemExit('imported')",
    "srt/probes.py": OLD_SGLANG["srt/probes.py"],
    "srt/configs/model_config.py": _MODEL_CONFIG,
    "srt/server_args.py": "class ServerArgs:\n    pass\n",
    "srt/arg_groups/choices.py": """
ATTENTION_BACKEND_CHOICES = ["triton", "fa3", "flashinfer", "trtllm_mla", "aiter", "amx"]
DETERMINISTIC_ATTENTION_BACKEND_CHOICES = ["fa3", "triton"]
""",
    "srt/arg_groups/fields/kernel.py": """
from typing import Optional
from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES

class Kernel:
    attention_backend: A[Optional[str], Arg(help="Choose the kernels.", choices=ATTENTION_BACKEND_CHOICES)] = None
    prefill_attention_backend: A[Optional[str], Arg(help="For prefill.", choices=ATTENTION_BACKEND_CHOICES)] = None
    stream_interval: A[int, "Tokens per chunk."] = 1
    enable_deterministic_inference: A[bool, "Same answer every time."] = False
    cuda_graph_inner: A[int, Arg(help="Internal", no_cli=True)] = 7
    device: A[Optional[str], "cuda or cpu"] = None
""",
    "srt/arg_groups/overrides.py": """
def register_model_override(architecture):
    def decorator(fn):
        return fn
    return decorator

def register_model_override_predicate(predicate):
    def decorator(fn):
        return fn
    return decorator

from sglang.srt.probes import is_hopper, is_hip, is_sm100, has_amx
from sglang.srt.configs.model_config import AttentionArch

@register_model_override("DeepseekV3ForCausalLM")
def _deepseek(server_args, hf_config):
    cfg = resolving_view(server_args)
    overrides = {}
    if is_sm100() and cfg.attention_backend is None:
        overrides["attention_backend"] = "trtllm_mla"
    return overrides

@register_model_override_predicate(lambda arch: "Gemma" in arch)
def _gemma(server_args, hf_config):
    return {"prefill_attention_backend": "triton"}

def _default(view):
    if view.attention_backend is None:
        backend = pick(view, model_config_of(view))
        return {"attention_backend": backend}
    return {}

def pick(view, model_config):
    if is_hopper():
        return "fa3"
    elif is_hip():
        return "aiter"
    if view.device == "cpu":
        return "amx" if has_amx() else "triton"
    if model_config.attention_arch == AttentionArch.MLA:
        return "triton"
    return "flashinfer"

def _deterministic(view):
    if view.enable_deterministic_inference and view.attention_backend not in ("fa3", "triton"):
        raise ValueError(f"deterministic inference cannot use {view.attention_backend}")
    return {}

def model_config_of(server_args):
    from sglang.srt.configs.model_config import ModelConfig
    return ModelConfig.from_server_args(server_args)
""",
    "srt/arg_groups/pipeline.py": """
from sglang.srt.arg_groups.overrides import _default, _deterministic, model_config_of

def adjust(server_args):
    config = model_config_of(server_args).hf_config
    server_args._resolved.extend(
        collect_model_override_declarations(config.architectures[0], server_args, config))

def run_resolution_pipeline(server_args):
    server_args._resolved = []
    run_hook(adjust, server_args)
    run_post_process_pass(server_args, _default)
    run_post_process_pass(server_args, _deterministic)
""",
}

VLLM: Mapping[str, str] = {
    "__init__.py": "raise SystemExit('imported')",
    "_version.py": "__version__ = version = '0.99.1'",
    "v1/attention/backends/registry.py": """
from enum import Enum

class AttentionBackendEnum(Enum):
    FLASH_ATTN = "vllm.v1.attention.backends.flash.FlashBackend"
    FLASHINFER = "vllm.v1.attention.backends.infer.InferBackend"
    TRITON_MLA = "vllm.v1.attention.backends.mla.TritonMLABackend"

    def get_class(self):
        return resolve_obj_by_qualname(self.value)
""",
    "v1/attention/backend.py": """
class AttentionBackend:
    @classmethod
    def get_supported_head_sizes(cls):
        return []

    @classmethod
    def is_mla(cls):
        return False

    @classmethod
    def supports_compute_capability(cls, capability):
        return True

    @classmethod
    def validate_configuration(cls, head_size, use_mla, device_capability):
        invalid_reasons = []
        if cls.get_supported_head_sizes() and head_size not in cls.get_supported_head_sizes():
            invalid_reasons.append("head_size not supported")
        if use_mla != cls.is_mla():
            invalid_reasons.append("MLA or not")
        if not cls.supports_compute_capability(device_capability):
            invalid_reasons.append("compute capability not supported")
        return invalid_reasons
""",
    "v1/attention/backends/flash.py": """
from vllm.v1.attention.backend import AttentionBackend

class FlashBackend(AttentionBackend):
    @classmethod
    def supports_compute_capability(cls, capability):
        from vllm.platforms.interface import DeviceCapability
        return capability >= DeviceCapability(8, 0)
""",
    "v1/attention/backends/infer.py": """
from vllm.v1.attention.backend import AttentionBackend

class InferBackend(AttentionBackend):
    @classmethod
    def get_supported_head_sizes(cls):
        return [64, 128]
""",
    "v1/attention/backends/mla.py": """
from vllm.v1.attention.backend import AttentionBackend

class TritonMLABackend(AttentionBackend):
    @classmethod
    def is_mla(cls):
        return True
""",
    "v1/attention/selector.py": """
from typing import NamedTuple

class AttentionSelectorConfig(NamedTuple):
    head_size: int
    use_mla: bool = False
""",
    "platforms/interface.py": """
from typing import NamedTuple

class DeviceCapability(NamedTuple):
    major: int
    minor: int

class Platform:
    @classmethod
    def get_device_capability(cls):
        raise NotImplementedError
""",
    "platforms/cuda.py": """
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.platforms.interface import Platform

def _priorities(use_mla, device_capability):
    if use_mla:
        return [AttentionBackendEnum.TRITON_MLA]
    if device_capability.major == 10:
        return [AttentionBackendEnum.FLASHINFER, AttentionBackendEnum.FLASH_ATTN]
    return [
        AttentionBackendEnum.FLASH_ATTN,
        AttentionBackendEnum.FLASHINFER,
    ]

class CudaPlatformBase(Platform):
    @classmethod
    def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
        capability = cls.get_device_capability()
        for backend in _priorities(attn_selector_config.use_mla, capability):
            try:
                backend_class = backend.get_class()
                reasons = backend_class.validate_configuration(
                    device_capability=capability, **attn_selector_config._asdict())
            except ImportError:
                reasons = ["ImportError"]
            if not reasons:
                return f"{backend_class.__module__}.{backend_class.__qualname__}"
        raise ValueError("No valid attention backend")
""",
    "config/cache.py": '''
from typing import Literal
from pydantic import Field

Layout = Literal["auto", "fp8"]

class CacheConfig:
    block_size: int = Field(default=16, gt=0)
    """Size of a cache block
    in tokens."""
    kv_cache_dtype: Layout = "auto"
    """Data type of the cache."""
''',
    "engine/arg_utils.py": """
from vllm.config.cache import CacheConfig

class EngineArgs:
    block_size: int = CacheConfig.block_size
    kv_cache_dtype: str = CacheConfig.kv_cache_dtype
    enforce_eager: bool = False

    @staticmethod
    def add_cli_args(parser):
        kwargs = get_kwargs(CacheConfig)
        parser.add_argument("--block-size", **kwargs["block_size"])
        parser.add_argument("--kv-cache-dtype", **kwargs["kv_cache_dtype"])
        parser.add_argument("--enforce-eager", **kwargs["enforce_eager"])
""",
    "utils/nccl.py": """
def invariant():
    pin_nccl_env({"NCCL_PROTO": "Simple", "NCCL_ALGO": "allreduce:tree"})
""",
}

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}


def folder(root: Path, package: str, files: Mapping[str, str]) -> Path:
    """Write a package below ``root`` (a site-packages folder) and return ``root``."""
    for name, text in files.items():
        path = root / package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return root


def source(root: Path, package: str, files: Mapping[str, str], **changed: str) -> Source:
    """The package as a folder source; ``changed`` replaces files (``__`` for ``/``, without ``.py``)."""
    swapped = {name.replace("__", "/") + ".py": text for name, text in changed.items()}
    return open_source(package, source=folder(root, package, {**files, **swapped}))


def wheel(path: Path, package: str, version: str, files: Mapping[str, str]) -> Path:
    target = path / f"{package}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{package}/{name}", text)
        archive.writestr(f"{package}-{version}.dist-info/METADATA", f"Name: {package}\nVersion: {version}\n")
    return target


def sdist(path: Path, package: str, version: str, files: Mapping[str, str], inner: str = "python/") -> Path:
    target = path / f"{package}-{version}.tar.gz"
    with tarfile.open(target, "w:gz") as archive:
        for name, text in files.items():
            data = text.encode()
            info = tarfile.TarInfo(f"{package}-{version}/{inner}{package}/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return target
