"""vLLM's endpoints, metrics and log lines, after 0.26.0."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from .dialect import ALL_REDUCE_OFF, NCCL_VERSION, Dialect, Reply, exposition
from .engine import Job
from .tokens import decode
from .wire import REASONS

LOG_EVERY_S = 10.0
KV_TOKENS = 595_712
POTENTIAL = "['FLASH_ATTN', 'FLASHINFER', 'TRITON_ATTN', 'FLEX_ATTENTION']"
ROUTES = ("load", "version", "health", "metrics", "tokenize", "detokenize", "v1/models", "v1/completions")


class VLLM(Dialect):
    descriptor = 1
    default_version = "0.26.0"

    def line(self, message: str, level: str = "INFO", source: str = "api_server.py:677") -> str:
        return f"(APIServer pid={os.getpid()}) {level} {time.strftime('%m-%d %H:%M:%S')} [{source}] {message}"

    def core(self, message: str, source: str, level: str = "INFO") -> str:
        """A line of the engine's own process."""
        return f"(EngineCore pid={os.getpid() + 1}) {level} {time.strftime('%m-%d %H:%M:%S')} [{source}] {message}"

    def _uvicorn(self, message: str) -> None:
        self.write(f"(APIServer pid={os.getpid()}) INFO:     {message}")

    def access(self, peer: str, method: str, path: str, status: int) -> None:
        self._uvicorn(f'{peer} - "{method} {path} HTTP/1.1" {status} {REASONS.get(status, "")}')

    def banner(self) -> None:
        o = self.engine.options
        self.log(f"  █▄█▀ █     █     █     █  version {self.version}", source="api_utils.py:345")
        given = {k: "***" if k == "api_key" else v for k, v in o.given.items()}
        self.log(f"non-default args: {given}", source="api_utils.py:273")
        self.log(f"Using max model len {o.context}", source="model.py:1788")
        text = f"Initializing a V1 LLM engine (v{self.version}) with config: {self._config_text()}"
        self.write(self.core(text, "core.py:116"))

    def loading(self, shards: int) -> Iterator[str]:
        o = self.engine.options
        init = f"world_size={o.tp} rank=0 local_rank=0 distributed_init_method=tcp://127.0.0.1:43753 backend=nccl"
        yield self.core(init, "parallel_state.py:1615")
        if o.tp > 1:
            yield self.core(f"vLLM is using nccl=={NCCL_VERSION}", "pynccl.py:111")
            yield from self.nccl_lines()
        if self.settings.custom_all_reduce_off:
            yield self.core(ALL_REDUCE_OFF, "custom_all_reduce.py:154", "WARNING")
        yield self.core("Loading model from scratch...", "model_runner.py:284")
        if o.backend_given and not self.settings.replace_backend:
            yield self.core(f"Using {o.backend} backend.", "cuda.py:455")
        else:
            chosen = f"Using {o.backend} attention backend out of potential backends: {POTENTIAL}."
            yield self.core(chosen, "cuda.py:482")
        if o.backend == "FLASH_ATTN":
            yield self.core("Using FlashAttention version 3", "flash_attn.py:776")
        yield from (self.weights(i, shards) for i in range(1, shards + 1))
        yield self.core("Model loading took 5.44 GiB and 2.167077 seconds", "model_runner.py:305")
        if o.decode_graph:
            yield from self._compiling(self.engine.cold)
        yield self.core("Available KV cache memory: 63.63 GiB", "gpu_worker.py:560")
        yield self.core(f"GPU KV cache size: {KV_TOKENS:,} tokens", "kv_cache_utils.py:2177")
        if o.decode_graph:
            yield from (self.bar("Capturing CUDA graphs (FULL)", i, 8) for i in range(9))
            yield self.core("Graph capturing finished in 1 secs, took 0.12 GiB", "model_runner.py:747")
        yield self.core("init engine (profile, create kv cache, warmup model) took 54.33 s", "core.py:340")

    def _compiling(self, cold: bool) -> Iterator[str]:
        folder = "/root/.cache/vllm/torch_compile_cache/30bd1d0fe4/rank_0_0/backbone"
        yield self.core(f"Using cache directory: {folder} for vLLM's torch.compile", "backends.py:1094")
        yield self.core("Dynamo bytecode transform time: 9.58 s", "backends.py:1155")
        if cold:
            yield self.core("Cache the graph of compile range (1, 8192) for later use", "backends.py:378")
            yield self.core("Compiling a graph for compile range (1, 8192) takes 13.14 s", "backends.py:393")
        else:
            loaded = "Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 1.208 s"
            yield self.core(loaded, "backends.py:308")
        yield self.core(f"torch.compile took {28.89 if cold else 3.21} s in total", "monitor.py:53")

    def loaded(self) -> None:
        o = self.engine.options
        self.log("Supported tasks: ['generate']", source="api_server.py:673")
        if o.dev_mode:
            text = "SECURITY WARNING: Development endpoints are enabled! This should NOT be used in production!"
            self.log(text, "WARNING", "__init__.py:36")
        self.log(f"Starting vLLM server on {o.url}")
        self.log("Available routes are:", source="launcher.py:37")
        for path in ROUTES:
            self.log(f"Route: /{path}, Methods: GET", source="launcher.py:46")
        self._uvicorn(f"Started server process [{os.getpid()}]")
        self._uvicorn("Waiting for application startup.")

    def fired_up(self) -> None:
        self._uvicorn("Application startup complete.")
        if not self.engine.options.given.get("disable_log_stats"):
            self.engine.loop.at(time.monotonic() + LOG_EVERY_S, self._statistics)

    def goodbye(self) -> None:
        self.write(self.core("[shutdown] EngineCore: trigger received signal=SIGTERM", "core.py:1313"))
        self.log("[shutdown] API server: shutdown triggered", source="launcher.py:100")
        self._uvicorn("Application shutdown complete.")

    def aftermath(self) -> Iterator[str]:
        prefix = f"(APIServer pid={os.getpid()})"
        yield f"{prefix} Traceback (most recent call last):"
        yield f'{prefix}   File "/opt/vllm/v1/engine/utils.py", line 987, in wait_for_engine_startup'
        yield f"{prefix} RuntimeError: Engine core initialization failed. See root cause above."

    def needs_key(self, path: str) -> bool:
        return path.startswith("/v1")

    def _config_text(self) -> str:
        o, given = self.engine.options, self.engine.options.given
        draft = None
        if o.draft is not None:
            method, model, count = (o.draft.get(k) for k in ("method", "model", "num_speculative_tokens"))
            draft = f"SpeculativeConfig(method={method!r}, model={model!r}, num_spec_tokens={count})"
        mode = "FULL_AND_PIECEWISE: (2, 1)" if o.decode_graph else "NONE: 0"
        return (
            f"model='{o.model}', speculative_config={draft}, tokenizer='{given.get('tokenizer_path', o.model)}', "
            f"dtype=torch.{given.get('dtype', 'bfloat16')}, max_seq_len={o.context}, "
            f"load_format={given.get('load_format', 'auto')}, tensor_parallel_size={o.tp}, "
            f"pipeline_parallel_size={given.get('pp_size', 1)}, data_parallel_size={given.get('dp_size', 1)}, "
            f"disable_custom_all_reduce={not o.custom_all_reduce}, quantization={given.get('quantization')}, "
            f"enforce_eager={not o.decode_graph}, kv_cache_dtype={given.get('kv_cache_dtype', 'auto')}, "
            f"seed={given.get('random_seed', 0)}, served_model_name={o.served}, "
            f"enable_prefix_caching={o.prefix_cache}, "
            f"compilation_config={{'cudagraph_mode': <CUDAGraphMode.{mode}>}}"
        )

    def _config_json(self) -> dict[str, Any]:
        o, given = self.engine.options, self.engine.options.given
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
            "cache_config": {"block_size": o.block, "enable_prefix_caching": o.prefix_cache, "num_gpu_blocks": 37_232},
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

    def _info(self, as_json: bool) -> dict[str, Any]:
        return {
            "vllm_config": self._config_json() if as_json else self._config_text(),
            "vllm_env": {k: v for k, v in sorted(os.environ.items()) if k.startswith("VLLM_") and "KEY" not in k},
            "system_env": {
                "torch_version": "2.11.0+cu130",
                "cuda_compiled_version": "13.0",
                "nvidia_driver_version": "580.159.04",
                "nvidia_gpu_models": "GPU 0: NVIDIA H200",
                "vllm_version": self.version,
                "cuda_runtime_version": "13.0.88",
            },
        }

    def get(self, path: str, query: Mapping[str, str]) -> Reply | None:
        if path == "/version":
            return 200, {"version": self.version}
        if path == "/load":
            return 200, {"server_load": len(self.engine.running)}
        if path == "/server_info" and self.engine.options.dev_mode and not self.settings.hide_info:
            return 200, self._info(query.get("config_format") == "json")
        return (200, "") if path == "/ping" else None

    def post(self, path: str, body: Mapping[str, Any]) -> Reply | None:
        if path == "/detokenize":
            return 200, {"prompt": decode(body.get("tokens", []))}
        if path == "/reset_prefix_cache" and self.engine.options.dev_mode:
            free = not self.engine.running
            if free:
                self.engine.cache.clear()
                self.write(self.core("Successfully reset prefix cache", "block_pool.py:410"))
            return 200, {"success": free}
        return None

    def error(self, status: int, message: str, kind: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": kind, "param": None, "code": status}}

    def metrics(self) -> str:
        c, engine = self.engine.counters, self.engine
        label = f'engine="0",model_name="{engine.options.served}"'
        held = sum(len(job.prompt) + job.done for job in engine.running)
        rows: list[tuple[str, str, str, float]] = [
            ("num_requests_running", "gauge", label, len(engine.running)),
            ("num_requests_waiting", "gauge", label, self.waiting()),
            ("kv_cache_usage_perc", "gauge", label, held / KV_TOKENS),
            ("prefix_cache_queries_total", "counter", label, c.prompt if engine.options.prefix_cache else 0),
            ("prefix_cache_hits_total", "counter", label, c.cached),
            ("num_preemptions_total", "counter", label, c.preemptions),
            ("prompt_tokens_total", "counter", label, c.prompt),
            ("generation_tokens_total", "counter", label, c.given),
            ("request_success_total", "counter", f'{label},finished_reason="length"', c.requests),
        ]
        if engine.accept:
            rows.append(("spec_decode_num_drafts_total", "counter", label, c.drafts))
            rows.append(("spec_decode_num_draft_tokens_total", "counter", label, c.draft_tokens))
            rows.append(("spec_decode_num_accepted_tokens_total", "counter", label, c.accepted))
            for place, count in enumerate(c.accepted_at[: engine.drafted]):
                name = "spec_decode_num_accepted_tokens_per_pos_total"
                rows.append((name, "counter", f'{label},position="{place}"', count))
        own = exposition([(f"vllm:{name}", kind, labels, value) for name, kind, labels, value in rows])
        return f"{own}# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {self.born:.2f}\n"

    def on_start(self, job: Job) -> None:
        """vLLM logs no single request."""

    def on_step(self, job: Job) -> None:
        """vLLM's statistics come by the clock."""

    def _statistics(self) -> None:
        c, engine = self.engine.counters, self.engine
        self.log(
            f"Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: {self.rate():.1f} tokens/s, "
            f"Running: {len(engine.running)} reqs, Waiting: {self.waiting()} reqs, GPU KV cache usage: 0.1%, "
            f"Prefix cache hit rate: {100 * c.cached / max(c.prompt, 1):.1f}%",
            source="loggers.py:310",
        )
        if engine.accept and c.drafts:
            places = ", ".join(f"{n / c.drafts:.3f}" for n in c.accepted_at[: engine.drafted])
            self.log(
                f"SpecDecoding metrics: Mean acceptance length: {self.accept_length():.2f}, "
                f"Accepted: {c.accepted} tokens, Drafted: {c.draft_tokens} tokens, "
                f"Per-position acceptance rate: {places}, Avg Draft acceptance rate: {100 * self.accept_rate():.1f}%",
                source="metrics.py:100",
            )
        engine.loop.at(time.monotonic() + LOG_EVERY_S, self._statistics)
