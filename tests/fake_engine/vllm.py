"""vLLM's endpoints, metrics and log lines, after 0.26.0."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from .answer import Answer
from .dialect import Dialect, Reply, exposition
from .settings import hit
from .tokens import decode
from .wire import REASONS

VERSION = "0.26.0"
LOG_EVERY_S = 10.0
POTENTIAL = "['FLASH_ATTN', 'FLASHINFER', 'TRITON_ATTN', 'FLEX_ATTENTION']"


class VLLM(Dialect):
    descriptor = 1

    @property
    def version(self) -> str:
        return self.settings.version or VERSION

    def _line(self, message: str, level: str, source: str, process: str, pid: int) -> None:
        self.write(f"({process} pid={pid}) {level} {time.strftime('%m-%d %H:%M:%S')} [{source}] {message}")

    def log(self, message: str, level: str = "INFO", source: str = "api_server.py:677") -> None:
        self._line(message, level, source, "APIServer", os.getpid())

    def core(self, message: str, level: str = "INFO", source: str = "core.py:116") -> None:
        """A line of the engine's own process."""
        self._line(message, level, source, "EngineCore", os.getpid() + 1)

    def _uvicorn(self, message: str) -> None:
        self.write(f"(APIServer pid={os.getpid()}) INFO:     {message}")

    def access(self, peer: str, method: str, path: str, status: int) -> None:
        self._uvicorn(f'{peer} - "{method} {path} HTTP/1.1" {status} {REASONS.get(status, "")}')

    def banner(self) -> None:
        o = self.options
        self.log(f"       █▄█▀ █     █     █     █  version {self.version}", source="api_utils.py:345")
        given = {k: v for k, v in o.given.items() if k != "api_key"}
        self.log(f"non-default args: {given}", source="api_utils.py:273")
        self.log(f"Using max model len {o.context}", source="model.py:1788")
        self.core(f"Initializing a V1 LLM engine (v{self.version}) with config: {self._config_text()}")

    def loading(self) -> Iterator[str]:
        o = self.options
        yield f"world_size={o.tp} rank=0 local_rank=0 distributed_init_method=tcp://127.0.0.1:43753 backend=nccl"
        if o.tp > 1:
            yield "vLLM is using nccl==2.28.9"
        if self.settings.custom_all_reduce_off:
            yield (
                "WARNING Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. "
                "To silence this warning, specify disable_custom_all_reduce=True explicitly."
            )
        yield f"Starting to load model {o.model}..."
        if o.backend_given and not self.settings.replace_backend:
            yield f"Using {o.backend} backend."
        else:
            yield f"Using {o.backend} attention backend out of potential backends: {POTENTIAL}."
        for i in range(1, 9):
            done = i * 100 // 8
            yield f"\rLoading safetensors checkpoint shards: {done:3d}% Completed | {i}/8 [00:0{i}<00:0{8 - i},  1.01s/it]"
        yield "Model loading took 5.44 GiB and 2.167077 seconds"
        if o.decode_graph:
            cold = self.settings.cache_state == "cold"
            yield "Dynamo bytecode transform time: 9.58 s"
            if cold:
                yield "Cache the graph of compile range (1, 8192) for later use"
                yield "Compiling a graph for compile range (1, 8192) takes 13.14 s"
            else:
                yield "Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 1.208 s"
            yield "torch.compile took 28.89 s in total" if cold else "torch.compile takes 3.21 s in total"
        yield "Available KV cache memory: 63.63 GiB"
        yield "GPU KV cache size: 595,712 tokens"
        yield f"Maximum concurrency for {o.context:,} tokens per request: 145.44x"
        if o.decode_graph:
            for i in range(8):
                yield f"\rCapturing CUDA graphs (FULL):  {i * 100 // 7}%|{'█' * i}| {i}/7 [00:00<00:00, 16.03it/s]"
            yield "Graph capturing finished in 1 secs, took 0.12 GiB"
        yield "init engine (profile, create kv cache, warmup model) took 54.33 s (compilation: 28.89 s)"

    def loaded(self) -> None:
        o = self.options
        self.log("Supported tasks: ['generate']", source="api_server.py:673")
        if o.dev_mode:
            self.log(
                "SECURITY WARNING: Development endpoints are enabled! This should NOT be used in production!",
                "WARNING",
                "__init__.py:36",
            )
        self.log(f"Starting vLLM server on http://{o.host}:{o.port}")
        self.log("Available routes are:", source="launcher.py:37")
        for path in ("/load", "/version", "/health", "/metrics", "/tokenize", "/v1/models", "/v1/completions"):
            self.log(f"Route: {path}, Methods: GET", source="launcher.py:46")
        self._uvicorn(f"Started server process [{os.getpid()}]")
        self._uvicorn("Waiting for application startup.")

    def fired_up(self) -> None:
        self._uvicorn("Application startup complete.")
        if not self.options.given.get("disable_log_stats"):
            self.engine.loop.at(time.monotonic() + LOG_EVERY_S, self._statistics)

    def goodbye(self) -> None:
        self.core("[shutdown] EngineCore: trigger received signal=SIGTERM", source="core.py:1313")
        self.log("[shutdown] API server: shutdown triggered", source="launcher.py:100")
        self._uvicorn("Application shutdown complete.")

    def needs_key(self, path: str) -> bool:
        return path.startswith("/v1")

    def _config_text(self) -> str:
        o, given = self.options, self.options.given
        return (
            f"model='{o.model}', speculative_config={self._draft_text()}, tokenizer='{given.get('tokenizer_path', o.model)}', "
            f"dtype=torch.{given.get('dtype', 'bfloat16')}, max_seq_len={o.context}, "
            f"load_format={given.get('load_format', 'auto')}, tensor_parallel_size={o.tp}, "
            f"pipeline_parallel_size={given.get('pp_size', 1)}, data_parallel_size={given.get('dp_size', 1)}, "
            f"disable_custom_all_reduce={not o.custom_all_reduce}, quantization={given.get('quantization')}, "
            f"enforce_eager={not o.decode_graph}, kv_cache_dtype={given.get('kv_cache_dtype', 'auto')}, "
            f"seed={given.get('random_seed', 0)}, served_model_name={o.served}, enable_prefix_caching={o.prefix_cache}, "
            f"compilation_config={{'cudagraph_mode': <CUDAGraphMode.{'FULL_AND_PIECEWISE: (2, 1)' if o.decode_graph else 'NONE: 0'}>}}"
        )

    def _draft_text(self) -> str:
        draft = self.options.draft
        if draft is None:
            return "None"
        return (
            f"SpeculativeConfig(method={draft.get('method')!r}, model={draft.get('model')!r}, "
            f"num_spec_tokens={draft.get('num_speculative_tokens')})"
        )

    def _config_json(self) -> dict[str, Any]:
        o, given = self.options, self.options.given
        return {
            "model_config": {
                "model": o.model,
                "tokenizer": given.get("tokenizer_path", o.model),
                "dtype": f"torch.{given.get('dtype', 'bfloat16')}",
                "quantization": given.get("quantization"),
                "max_model_len": o.context,
                "served_model_name": o.served,
                "enforce_eager": not o.decode_graph,
                "seed": int(given.get("random_seed", 0)),
            },
            "cache_config": {"block_size": o.block, "enable_prefix_caching": o.prefix_cache, "num_gpu_blocks": 37232},
            "parallel_config": {
                "tensor_parallel_size": o.tp,
                "pipeline_parallel_size": int(given.get("pp_size", 1)),
                "data_parallel_size": int(given.get("dp_size", 1)),
                "disable_custom_all_reduce": not o.custom_all_reduce,
            },
            "scheduler_config": {"max_num_seqs": o.max_running, "stream_interval": o.interval},
            "load_config": {"load_format": given.get("load_format", "auto")},
            "attention_config": {"backend": given.get("attention_backend")},
            "speculative_config": o.draft,
            "compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE" if o.decode_graph else "NONE"},
        }

    def get(self, path: str, query: Mapping[str, str]) -> Reply | None:
        if path == "/version":
            return 200, {"version": self.version}
        if path == "/ping":
            return 200, ""
        if path == "/load":
            return 200, {"server_load": len(self.engine.running)}
        if path == "/server_info" and self.options.dev_mode and not self.settings.hide_info:
            as_json = query.get("config_format") == "json"
            environment = {k: v for k, v in sorted(os.environ.items()) if k.startswith("VLLM_") and "KEY" not in k}
            return 200, {
                "vllm_config": self._config_json() if as_json else self._config_text(),
                "vllm_env": environment,
                "system_env": {
                    "torch_version": "2.11.0+cu130",
                    "cuda_compiled_version": "13.0",
                    "nvidia_driver_version": "580.159.04",
                    "nvidia_gpu_models": "GPU 0: NVIDIA H200",
                    "vllm_version": self.version,
                    "cuda_runtime_version": "13.0.88",
                },
            }
        return None

    def post(self, path: str, query: Mapping[str, str], body: Mapping[str, Any]) -> Reply | None:
        if path == "/detokenize":
            return 200, {"prompt": decode(body.get("tokens", []))}
        if path == "/reset_prefix_cache" and self.options.dev_mode:
            free = not self.engine.running
            if free:
                self.engine.cache.clear()
                self.core("Successfully reset prefix cache", source="block_pool.py:410")
            return 200, {"success": free}
        return None

    def error(self, status: int, message: str, kind: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": kind, "param": None, "code": status}}

    def _waiting(self) -> int:
        pretended = [int(hit(self.settings.queue, job.number) or 0) for job in self.engine.running]
        return max([len(self.engine.waiting), *pretended])

    def metrics(self) -> str:
        c, engine, label = self.engine.counters, self.engine, f'engine="0",model_name="{self.options.served}"'
        held = sum(len(job.prompt) for job in engine.running)
        rows: list[tuple[str, str, str, float]] = [
            ("vllm:num_requests_running", "gauge", label, float(len(engine.running))),
            ("vllm:num_requests_waiting", "gauge", label, float(self._waiting())),
            ("vllm:kv_cache_usage_perc", "gauge", label, held / 595_712),
            ("vllm:prefix_cache_queries_total", "counter", label, float(c.prompt if self.options.prefix_cache else 0)),
            ("vllm:prefix_cache_hits_total", "counter", label, float(c.cached)),
            ("vllm:num_preemptions_total", "counter", label, float(c.preemptions)),
            ("vllm:prompt_tokens_total", "counter", label, float(c.prompt)),
            ("vllm:generation_tokens_total", "counter", label, float(c.generation)),
            ("vllm:request_success_total", "counter", f'{label},finished_reason="length"', float(c.requests)),
        ]
        if engine.accept:
            rows += [
                ("vllm:spec_decode_num_drafts_total", "counter", label, float(c.drafts)),
                ("vllm:spec_decode_num_draft_tokens_total", "counter", label, float(c.draft_tokens)),
                ("vllm:spec_decode_num_accepted_tokens_total", "counter", label, float(c.accepted)),
            ]
            for place, count in enumerate(c.accepted_at[: engine.drafted]):
                name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
                rows.append((name, "counter", f'{label},position="{place}"', float(count)))
        return exposition(rows)

    def _statistics(self) -> None:
        c, engine = self.engine.counters, self.engine
        rate = c.cached / c.prompt if c.prompt else 0.0
        self.log(
            f"Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: {self.rate():.1f} tokens/s, "
            f"Running: {len(engine.running)} reqs, Waiting: {self._waiting()} reqs, GPU KV cache usage: 0.1%, "
            f"Prefix cache hit rate: {100 * rate:.1f}%",
            source="loggers.py:310",
        )
        if engine.accept and c.drafts:
            self.log(
                f"SpecDecoding metrics: Mean acceptance length: {1 + c.accepted / c.drafts:.2f}, "
                f"Accepted throughput: 0.00 tokens/s, Drafted throughput: 0.00 tokens/s, Accepted: {c.accepted} tokens, "
                f"Drafted: {c.draft_tokens} tokens, Per-position acceptance rate: "
                f"{', '.join(f'{n / c.drafts:.3f}' for n in c.accepted_at[: engine.drafted])}, "
                f"Avg Draft acceptance rate: {100 * c.accepted / c.draft_tokens:.1f}%",
                source="metrics.py:100",
            )
        engine.loop.at(time.monotonic() + LOG_EVERY_S, self._statistics)

    def answer_log(self, event: str, answer: Answer) -> None:
        return
