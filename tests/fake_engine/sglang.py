"""SGLang's endpoints, metrics and log lines, after 0.5.17."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .dialect import ALL_REDUCE_OFF, NCCL_VERSION, Dialect, Reply, exposition
from .engine import Engine, Job
from .tokens import decode
from .wire import REASONS

LOG_EVERY = 40
KV_TOKENS = 272_433
FORCED_ENV = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}


def typed(text: Any) -> Any:
    """A flag's value as the engine shows it: a number where it is one."""
    for kind in (int, float):
        try:
            return text if isinstance(text, bool) else kind(text)
        except ValueError:
            continue
    return text


class SGLang(Dialect):
    descriptor = 2
    default_version = "0.5.17"

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._steps = 0

    def line(self, message: str, level: str = "INFO", source: str = "") -> str:
        rank = " TP0" if self.engine.options.tp > 1 else ""
        return f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{rank}] {message}"

    def access(self, peer: str, method: str, path: str, status: int) -> None:
        self.log(f'INFO:     {peer} - "{method} {path} HTTP/1.1" {status} {REASONS.get(status, "")}')

    def banner(self) -> None:
        o, given = self.engine.options, self.engine.options.given
        self.write(
            "launch_server.py:56: UserWarning: 'python -m sglang.launch_server' is still supported, but 'sglang serve' "
            "is the recommended entrypoint.\n  Example: sglang serve --model-path <model> [options]\n  warnings.warn("
        )
        if not given.get("attention_backend"):
            self.log(f"Attention backend not specified. Use {o.backend} backend by default.")
        elif self.settings.replace_backend:
            self.log(f"{given['attention_backend']} backend is not supported here, falling back to {o.backend}.")
        if o.draft and "max_running_requests" not in given:
            self.log(
                f"Max running requests is reset to {o.max_running} for speculative decoding. "
                "You can override this by explicitly setting --max-running-requests."
            )
        info = self.info()
        shown = {k: "***" if k == "api_key" and v else v for k, v in info.items() if k != "internal_states"}
        self.log(f"server_args=ServerArgs({', '.join(f'{k}={v!r}' for k, v in shown.items())})")
        prefill, decoding = given.get("prefill_attention_backend"), given.get("decode_attention_backend")
        if prefill and decoding and prefill != decoding:
            self.log(
                "Using hybrid attention backend for decode and prefill: "
                f"decode_backend={decoding}, prefill_backend={prefill}."
            )

    def loading(self, shards: int) -> Iterator[str]:
        o = self.engine.options
        yield self.line("Init torch distributed begin.")
        if o.tp > 1:
            yield self.line(f"sglang is using nccl=={NCCL_VERSION}")
            yield from self.nccl_lines()
        if self.settings.custom_all_reduce_off:
            yield self.line(ALL_REDUCE_OFF)
        yield self.line("Init torch distributed ends. elapsed=0.03 s, mem usage=0.09 GB")
        yield self.line("Load weight begin. avail mem=69.18 GB")
        yield from (self.weights(i, shards) for i in range(1, shards + 1))
        yield self.line("Load weight end. elapsed=0.21 s, type=LlamaForCausalLM, mem usage=5.46 GB.")
        yield self.line(f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {KV_TOKENS}, K size: 14 GB")
        yield self.line("Memory pool end. avail mem=34.52 GB")
        if not o.decode_graph:
            return
        yield self.line("Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs=[1, 2, 4, 8]")
        yield from (
            self.bar(f"Capturing batches (bs={b} avail_mem=34.40 GB)", i, 4) for i, b in enumerate((8, 4, 2, 1))
        )
        took = 46.03 if self.engine.cold else 4.82
        yield self.line(
            f"Capture target decode CUDA graph end. elapsed={took} s, mem usage=0.04 GB, avail mem=34.36 GB."
        )

    def loaded(self) -> None:
        o = self.engine.options
        self.log(
            f"max_total_num_tokens={KV_TOKENS}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
            f"max_running_requests={o.max_running}, context_len={o.context}, available_gpu_mem=34.36 GB"
        )
        self.log(f"INFO:     Started server process [{os.getpid()}]")
        self.log("INFO:     Waiting for application startup.")
        self.log("INFO:     Application startup complete.")
        self.log(f"INFO:     Uvicorn running on {o.url} (Press CTRL+C to quit)")

    def fired_up(self) -> None:
        self.log('INFO:     127.0.0.1:38126 - "POST /generate HTTP/1.1" 200 OK')
        self.log("The server is fired up and ready to roll!")

    def goodbye(self) -> None:
        self.log("INFO:     Shutting down")
        self.log("INFO:     Application shutdown complete.")

    def aftermath(self) -> Iterator[str]:
        yield self.line("Received sigquit from a child process. It usually means the child failed.")

    def needs_key(self, path: str) -> bool:
        return not path.startswith(("/health", "/metrics"))

    def info(self) -> dict[str, Any]:
        """The flat resolved arguments, and ``internal_states``."""
        o, given = self.engine.options, self.engine.options.given
        info: dict[str, Any] = json.loads(Path(__file__).with_name("sglang_server_info.json").read_text())
        info |= {name: typed(value) for name, value in given.items()}
        info |= {
            "model_path": o.model,
            "tokenizer_path": given.get("tokenizer_path", o.model),
            "served_model_name": o.served,
            "attention_backend": self.settings.replace_backend or given.get("attention_backend") or o.backend,
            "port": o.port,
            "max_running_requests": o.max_running,
            "version": self.version,
        }
        info["startup_time"]["scheduler_e2e"] = self.born % 100  # of each start its own
        if not o.decode_graph:
            info["cuda_graph_config"]["decode"]["backend"] = "disabled"
        state: dict[str, Any] = info | {
            "last_gen_throughput": self.rate(),
            "effective_max_running_requests_per_dp": o.max_running,
            "memory_usage": {
                "weight": 5.457,
                "kvcache": 29.099,
                "token_capacity": KV_TOKENS,
                "graph": {"decode": 0.041},
            },
        }
        if self.engine.accept:
            state["avg_spec_accept_length"] = self.accept_length()
        if os.environ.get("SGLANG_EXPOSE_OWN_ENV_VARS"):
            state["env_vars"] = FORCED_ENV | {k: v for k, v in os.environ.items() if k.startswith(("NCCL_", "SGLANG_"))}
        return info | {"internal_states": [state]}

    def get(self, path: str, query: Mapping[str, str]) -> Reply | None:
        if path in ("/server_info", "/get_server_info") and not self.settings.hide_info:
            if path == "/get_server_info":
                self.log(
                    "Endpoint '/get_server_info' is deprecated and will be removed in a future version. "
                    "Please use '/server_info' instead."
                )
            return 200, self.info()
        if path in ("/model_info", "/get_model_info"):
            return 200, {"model_path": self.engine.options.model, "is_generation": True, "weight_version": "default"}
        return self._flush() if path == "/flush_cache" else None

    def post(self, path: str, body: Mapping[str, Any]) -> Reply | None:
        if path == "/detokenize":
            return 200, {"text": decode(body.get("tokens", []))}
        return self._flush() if path == "/flush_cache" else None

    def _flush(self) -> Reply:
        if self.engine.running or self.engine.waiting:
            return 400, "Flush cache failed: there are running or waiting requests.\n"
        self.engine.cache.clear()
        self.log("Cache flushed successfully!")
        return 200, "Cache flushed.\nPlease check backend logs for more details.\n"

    def error(self, status: int, message: str, kind: str) -> dict[str, Any]:
        return {"object": "error", "message": message, "type": kind, "param": None, "code": status}

    def _graph(self) -> bool:
        return self.engine.options.decode_graph and all(self.engine.captured(job) for job in self.engine.running)

    def metrics(self) -> str:
        c, engine = self.engine.counters, self.engine
        label = f'engine_type="unified",model_name="{engine.options.served}",pp_rank="0",tp_rank="0"'
        rows: list[tuple[str, str, str, float]] = [
            ("num_running_reqs", "gauge", label, len(engine.running)),
            ("num_queue_reqs", "gauge", label, self.waiting()),
            ("num_used_tokens", "gauge", label, sum(len(job.prompt) for job in engine.running)),
            ("token_usage", "gauge", label, 0),
            ("gen_throughput", "gauge", label, round(self.rate(), 2)),
            ("cache_hit_rate", "gauge", label, c.cached / c.prompt if c.prompt else 0),
            ("is_cuda_graph", "gauge", label, self._graph()),
            ("num_retracted_reqs", "gauge", label, 0),
            ("num_retracted_requests_total", "counter", label, c.preemptions),
            ("spec_accept_length", "gauge", label, self.accept_length()),
            ("spec_accept_rate", "gauge", label, self.accept_rate()),
            ("prompt_tokens_total", "counter", label, c.prompt),
            ("generation_tokens_total", "counter", label, c.generation),
            ("num_requests_total", "counter", label, c.requests),
        ]
        if c.cached:  # this counter is born with the first cached token
            rows.append(("cached_tokens_total", "counter", f'{label},cache_source="device"', c.cached))
        if engine.accept:
            rows.append(("spec_verify_calls_total", "counter", label, c.drafts))
        for mode, count in c.passes.items():
            rows.append(("cuda_graph_passes_total", "counter", f'{label},mode="{mode}"', count))
        return exposition([(f"sglang:{name}", kind, labels, value) for name, kind, labels, value in rows])

    def on_start(self, job: Job) -> None:
        new = len(job.prompt) - job.cached
        self.log(
            f"Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: {job.cached}, token usage: 0.00, "
            f"#running-req: {len(self.engine.running) - 1}, #queue-req: {self.waiting()}, #pending-token: 0, "
            f"cuda graph: False, input throughput (token/s): {new / max(job.plan.ttft, 1e-6):.2f}"
        )

    def on_step(self, job: Job) -> None:
        self._steps += 1
        if self._steps % LOG_EVERY:
            return
        held = sum(len(running.prompt) + running.done for running in self.engine.running)
        speculative = f"accept len: {self.accept_length():.2f}, accept rate: {self.accept_rate():.2f}, "
        self.log(
            f"Decode batch, #running-req: {len(self.engine.running)}, #token: {held}, token usage: 0.00, "
            f"{speculative if self.engine.accept else ''}cuda graph: {self._graph()}, "
            f"gen throughput (token/s): {self.rate():.2f}, #queue-req: {self.waiting()}"
        )
