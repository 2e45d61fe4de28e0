"""SGLang's endpoints, metrics and log lines, after 0.5.17."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .answer import Answer
from .dialect import Dialect, Reply, exposition
from .settings import hit
from .tokens import decode
from .wire import REASONS

VERSION = "0.5.17"
LOG_EVERY = 40


class SGLang(Dialect):
    descriptor = 2

    def log(self, message: str, level: str = "INFO", source: str = "") -> None:
        rank = " TP0" if self.options.tp > 1 else ""
        self.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{rank}] {message}")

    def access(self, peer: str, method: str, path: str, status: int) -> None:
        self.log(f'INFO:     {peer} - "{method} {path} HTTP/1.1" {status} {REASONS.get(status, "")}')

    def banner(self) -> None:
        o, given = self.options, self.options.given
        if not o.backend_given:
            self.log(f"Attention backend not specified. Use {o.backend} backend by default.")
        args = {**self._sample(), **given}
        shown = ", ".join(f"{k}={v!r}" for k, v in list(args.items())[:60])
        self.log(f"server_args=ServerArgs({shown})")
        if o.draft and "max_running_requests" not in given:
            self.log(
                f"Max running requests is reset to {o.max_running} for speculative decoding. "
                "You can override this by explicitly setting --max-running-requests.",
            )
        prefill, decoding = given.get("prefill_attention_backend"), given.get("decode_attention_backend")
        if prefill and decoding and prefill != decoding:
            self.log(
                "Using hybrid attention backend for decode and prefill: "
                f"decode_backend={decoding}, prefill_backend={prefill}."
            )

    def loading(self) -> Iterator[str]:
        yield "Init torch distributed begin."
        yield "Init torch distributed ends. elapsed=0.03 s, mem usage=0.09 GB"
        if self.settings.custom_all_reduce_off:
            yield (
                "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. "
                "To silence this warning, specify disable_custom_all_reduce=True explicitly."
            )
        yield "Load weight begin. avail mem=69.18 GB"
        for i in range(1, 9):
            done = i * 100 // 8
            yield f"\rLoading safetensors checkpoint shards: {done:3d}% Completed | {i}/8 [00:0{i}<00:0{8 - i},  1.01s/it]"
        yield "Load weight end. elapsed=0.21 s, type=LlamaForCausalLM, avail mem=63.72 GB, mem usage=5.46 GB."
        yield "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 272433, K size: 14.55 GB, V size: 14.55 GB"
        yield "Memory pool end. avail mem=34.52 GB"
        if not self.options.decode_graph:
            return
        yield "Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs=[1, 2, 4, 8], avail mem=34.41 GB"
        for i, size in enumerate((8, 4, 2, 1)):
            yield f"\rCapturing batches (bs={size} avail_mem=34.40 GB):  {i * 25}%|{'█' * i}| {i}/4 [00:0{i}<00:0{4 - i},  1.09s/it]"
        yield "Capture target decode CUDA graph end. elapsed=4.82 s, mem usage=0.04 GB, avail mem=34.36 GB."

    def loaded(self) -> None:
        o = self.options
        self.log(
            f"max_total_num_tokens=272433, chunked_prefill_size=8192, max_prefill_tokens=16384, "
            f"max_running_requests={o.max_running}, context_len={o.context}, available_gpu_mem=34.36 GB"
        )
        self.log(f"INFO:     Started server process [{os.getpid()}]")
        self.log("INFO:     Waiting for application startup.")
        self.log("INFO:     Application startup complete.")
        self.log(f"INFO:     Uvicorn running on http://{o.host}:{o.port} (Press CTRL+C to quit)")

    def fired_up(self) -> None:
        self.log("The server is fired up and ready to roll!")

    def goodbye(self) -> None:
        self.log("INFO:     Shutting down")
        self.log("INFO:     Application shutdown complete.")

    def needs_key(self, path: str) -> bool:
        return not path.startswith(("/health", "/metrics"))

    def _sample(self) -> dict[str, Any]:
        text = Path(__file__).with_name("sglang_server_info.json").read_text()
        sample: dict[str, Any] = json.loads(text)
        return sample

    def info(self) -> dict[str, Any]:
        """The flat resolved arguments, and ``internal_states``."""
        o = self.options
        info = self._sample()
        for name, value in o.given.items():
            info[name] = type(info[name])(value) if isinstance(info.get(name), int) else value
        info |= {
            "model_path": o.model,
            "tokenizer_path": o.given.get("tokenizer_path", o.model),
            "served_model_name": o.served,
            "host": o.host,
            "port": o.port,
            "attention_backend": o.backend,
            "max_running_requests": o.max_running,
            "tp_size": o.tp,
            "version": self.settings.version or VERSION,
            "api_key": o.api_key,
        }
        if not o.decode_graph:
            info["cuda_graph_config"]["decode"]["backend"] = "disabled"
        running = [a for a in self.engine.running]
        state = {k: v for k, v in info.items() if k != "internal_states"}
        state |= {
            "last_gen_throughput": self.rate() if running else 0.0,
            "effective_max_running_requests_per_dp": o.max_running,
            "memory_usage": {"weight": 5.457, "kvcache": 29.099, "token_capacity": 272433, "graph": {"decode": 0.041}},
        }
        if self.engine.accept:
            state["avg_spec_accept_length"] = self._accept_length()
        info["internal_states"] = [state]
        return info

    def get(self, path: str, query: Mapping[str, str]) -> Reply | None:
        if path in ("/server_info", "/get_server_info") and not self.settings.hide_info:
            if path == "/get_server_info":
                self.log(
                    "Endpoint '/get_server_info' is deprecated and will be removed in a future version. "
                    "Please use '/server_info' instead."
                )
            return 200, self.info()
        if path in ("/model_info", "/get_model_info"):
            return 200, {"model_path": self.options.model, "is_generation": True, "weight_version": "default"}
        if path == "/flush_cache":
            return self._flush()
        return None

    def post(self, path: str, query: Mapping[str, str], body: Mapping[str, Any]) -> Reply | None:
        if path == "/flush_cache":
            return self._flush()
        if path == "/detokenize":
            return 200, {"text": decode(body.get("tokens", []))}
        return None

    def _flush(self) -> Reply:
        if self.engine.running or self.engine.waiting:
            return 400, "Flush cache failed. Please check backend logs for more details. Server is busy.\n"
        self.engine.cache.clear()
        self.log("Cache flushed successfully!")
        return (
            200,
            "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the operation will not be performed.)\n",
        )

    def error(self, status: int, message: str, kind: str) -> dict[str, Any]:
        return {"object": "error", "message": message, "type": kind, "param": None, "code": status}

    def _accept_length(self) -> float:
        c = self.engine.counters
        return 1 + c.accepted / c.drafts if c.drafts else 0.0

    def _queue(self) -> int:
        pretended = [int(hit(self.settings.queue, job.number) or 0) for job in self.engine.running]
        return max([len(self.engine.waiting), *pretended])

    def metrics(self) -> str:
        c, engine = self.engine.counters, self.engine
        label = f'engine_type="unified",model_name="{self.options.served}",pp_rank="0",tp_rank="0"'
        rows = [
            ("sglang:num_running_reqs", "gauge", len(engine.running)),
            ("sglang:num_queue_reqs", "gauge", self._queue()),
            ("sglang:num_used_tokens", "gauge", sum(len(job.prompt) for job in engine.running)),
            ("sglang:token_usage", "gauge", 0.0),
            ("sglang:gen_throughput", "gauge", round(self.rate(), 2)),
            ("sglang:cache_hit_rate", "gauge", c.cached / c.prompt if c.prompt else 0.0),
            ("sglang:is_cuda_graph", "gauge", float(self.options.decode_graph and not self._uncaptured())),
            ("sglang:num_retracted_reqs", "gauge", c.preemptions),
            ("sglang:prompt_tokens_total", "counter", c.prompt),
            ("sglang:generation_tokens_total", "counter", c.generation),
            ("sglang:cached_tokens_total", "counter", c.cached),
            ("sglang:num_requests_total", "counter", c.requests),
        ]
        if engine.accept:
            rate = c.accepted / c.draft_tokens if c.draft_tokens else 0.0
            rows.append(("sglang:spec_accept_length", "gauge", self._accept_length()))
            rows.append(("sglang:spec_accept_rate", "gauge", rate))
        return exposition([(name, kind, label, float(value)) for name, kind, value in rows])

    def _uncaptured(self) -> bool:
        return any(hit(self.settings.uncaptured, job.number) for job in self.engine.running)

    def answer_log(self, event: str, answer: Answer) -> None:
        if event == "start":
            new = len(answer.prompt) - answer.cached
            self.log(
                f"Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: {answer.cached}, token usage: 0.00, "
                f"#running-req: {len(self.engine.running) - 1}, #queue-req: {self._queue()}, #pending-token: 0, "
                f"cuda graph: False, input throughput (token/s): {new / max(answer.plan.ttft, 1e-6):.2f}"
            )

    def step_log(self, answer: Answer) -> None:
        self._steps += 1
        if self._steps % LOG_EVERY:
            return
        held = sum(len(job.prompt) for job in self.engine.running) + answer.done
        accept = f"accept len: {self._accept_length():.2f}, accept rate: 0.50, " if self.engine.accept else ""
        graph = self.options.decode_graph and not self._uncaptured()
        self.log(
            f"Decode batch, #running-req: {len(self.engine.running)}, #token: {held}, token usage: 0.00, {accept}"
            f"cuda graph: {graph}, gen throughput (token/s): {self.rate():.2f}, #queue-req: {self._queue()}"
        )
