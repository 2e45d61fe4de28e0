"""One client, one scenario, one process: run it, print what it measured and what it cost as JSON.

    python benchmarks/client_runs.py NAME PORT REQUESTS TOKENS CONCURRENCY

Every client warms up with one request (one wave at concurrency) that is neither in its values nor in its cost.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

#: tok/s, TTFT and ITL percentiles as lists over requests; CPU seconds of the process and tokens that they bought.
Values = dict[str, Any]


def read_like_everybody(stamps: list[float], start: float, tokens: int) -> dict[str, float]:
    """What a client computes that stamps chunks: every chunk a token, latency to the last of them."""
    gaps = np.diff(stamps) * 1e3
    return {
        "tok_s": (tokens - 1) / (stamps[-1] - stamps[0]),
        "ttft_ms": (stamps[0] - start) * 1e3,
        "itl_p50_ms": float(np.percentile(gaps, 50)),
        "itl_p99_ms": float(np.percentile(gaps, 99)),
    }


def collect(rows: list[dict[str, float]], cpu_s: float, tokens: int) -> Values:
    return {name: [row[name] for row in rows] for name in rows[0]} | {"cpu_s": cpu_s, "tokens": tokens}


def ours(port: int, requests: int, tokens: int, concurrency: int) -> Values:
    """The plugin's client, its guards and its counting of everything included."""
    from pytest_llmperf.engines.base import Endpoint, RequestTraits
    from pytest_llmperf.engines.vllm.vllm_adapter import VLLM
    from pytest_llmperf.measure.client.connection import Connection
    from pytest_llmperf.measure.limits import Limits
    from pytest_llmperf.measure.load import load
    from pytest_llmperf.measure.prompts import PromptLedger
    from pytest_llmperf.measure.stream import stream
    from pytest_llmperf.measure.workloads import Workload
    from pytest_llmperf.server_config import ServerConfig

    class Engine(VLLM):
        traits = RequestTraits(tokenize_path=None, continuous_usage=True)

    to = Connection(Endpoint("127.0.0.1", port), "truth", Engine(), ServerConfig("vllm", "truth"), "benchmark")
    ledger, quiet = PromptLedger(), Limits(warmup_requests=1)
    common = {"prompt_tokens": 16, "precision": 0.0}

    def play(count: int) -> Any:
        if concurrency > 1:
            work = Workload(output_tokens=tokens, concurrency=concurrency, requests=count, **common)
            return load(to, work, seed="b", reuse=ledger, limits=quiet)
        work = Workload(output_tokens=tokens, repetitions=count, **common)
        return stream(to, work, seed="b", reuse=ledger, limits=quiet)

    play(concurrency)
    cpu = time.process_time()
    run = play(requests)
    cpu = time.process_time() - cpu
    if run.measurement.invalid:
        raise SystemExit(str(run.measurement.invalid))
    rows = [
        {"tok_s": r.decode_tok_s, "ttft_ms": r.ttft_ms, "itl_p50_ms": r.itl_p50_ms, "itl_p99_ms": r.itl_p99_ms}
        for r in run.requests
    ]
    return collect(rows, cpu, (requests + run.measurement.warmup.requests) * tokens)


ASK = {
    "model": "truth",
    "prompt": [7] * 16,
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def openai_sync(port: int, requests: int, tokens: int, concurrency: int) -> Values:
    """``openai.OpenAI`` as its documentation shows it."""
    import openai

    client = openai.OpenAI(api_key="none", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0)

    def one() -> dict[str, float]:
        start, stamps, total = time.perf_counter(), [], 0
        for event in client.completions.create(**ASK, max_tokens=tokens):  # type: ignore[call-overload]
            if event.choices and event.choices[0].text:
                stamps.append(time.perf_counter())
            if event.usage:
                total = event.usage.completion_tokens
        return read_like_everybody(stamps, start, total)

    one()
    cpu = time.process_time()
    rows = [one() for _ in range(requests)]
    return collect(rows, time.process_time() - cpu, requests * tokens)


def openai_async(port: int, requests: int, tokens: int, concurrency: int) -> Values:
    """``openai.AsyncOpenAI``, one task a stream."""
    import openai

    async def play() -> Values:
        client = openai.AsyncOpenAI(api_key="none", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0)
        rows: list[dict[str, float]] = []

        async def one() -> dict[str, float]:
            start, stamps, total = time.perf_counter(), [], 0
            async for event in await client.completions.create(**ASK, max_tokens=tokens):  # type: ignore[call-overload]
                if event.choices and event.choices[0].text:
                    stamps.append(time.perf_counter())
                if event.usage:
                    total = event.usage.completion_tokens
            return read_like_everybody(stamps, start, total)

        async def keep_on(count: int) -> None:
            for _ in range(count):
                rows.append(await one())

        await asyncio.gather(*(one() for _ in range(concurrency)))
        cpu = time.process_time()
        await asyncio.gather(*(keep_on(requests // concurrency) for _ in range(concurrency)))
        return collect(rows, time.process_time() - cpu, len(rows) * tokens)

    return asyncio.run(play())


CLIENTS: dict[str, Callable[[int, int, int, int], Values]] = {
    "pytest-llmperf": ours,
    "openai": openai_sync,
    "openai async": openai_async,
}

if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    print(json.dumps(CLIENTS[name](*(int(n) for n in numbers))))
