"""Other people's load generators on the same server, run by their own command lines where they are installed.

Each is a program of its own that spends 10 to 25 s of CPU before its first request, so its CPU is sampled all the
while, and counts from the first request of the load to the last token, by the server's log. What it computes afterwards
is not counted.
A peer is found on PATH, or under the Python named for it (``--peer guidellm=/opt/guidellm/bin/python``).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

Values = dict[str, Any]
#: Between two looks at a peer's CPU; ticks of the kernel's own count are 10 ms.
SAMPLE_S = 0.1


@dataclass(frozen=True)
class Load:
    """What a peer is asked to do. ``tokenizer``: a folder that Hugging Face's AutoTokenizer can read."""

    port: int
    requests: int
    tokens: int
    concurrency: int
    tokenizer: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True)
class Peer:
    """``program``: its script beside a Python, or on PATH. ``words``: its arguments, given a load and an empty folder.
    ``read``: what it wrote there as ``Values`` without the cost."""

    program: str
    words: Callable[[Load, Path], list[str]]
    read: Callable[[Path], Values]


def _detailed(result: Mapping[str, Any]) -> Values:
    """Per-request TTFT (s) and lists of gaps (s), as vLLM and SGLang write them."""
    rows = [(t, np.array(gaps)) for t, gaps in zip(result["ttfts"], result["itls"], strict=True) if len(gaps)]
    lengths = [n for n, gaps in zip(result["output_lens"], result["itls"], strict=True) if len(gaps)]
    return {
        "tok_s": [(n - 1) / float(gaps.sum()) for n, (_, gaps) in zip(lengths, rows, strict=True)],
        "ttft_ms": [t * 1e3 for t, _ in rows],
        "itl_p50_ms": [float(np.percentile(gaps, 50)) * 1e3 for _, gaps in rows],
        "itl_p99_ms": [float(np.percentile(gaps, 99)) * 1e3 for _, gaps in rows],
    }


def _vllm(load: Load, out: Path) -> list[str]:
    return [
        *("bench", "serve", "--backend", "openai", "--base-url", load.url, "--endpoint", "/v1/completions"),
        *("--model", "truth", "--tokenizer", load.tokenizer, "--dataset-name", "random", "--random-input-len", "16"),
        *("--random-output-len", str(load.tokens), "--num-prompts", str(load.requests), "--ignore-eos"),
        *("--max-concurrency", str(load.concurrency), "--save-result", "--save-detailed"),
        *("--result-dir", str(out), "--result-filename", "result.json"),
    ]


def _sglang(load: Load, out: Path) -> list[str]:
    return [
        *("-m", "sglang.bench_serving", "--backend", "vllm", "--base-url", load.url, "--model", "truth"),
        *("--tokenizer", load.tokenizer, "--dataset-name", "random-ids", "--random-input-len", "16"),
        *("--random-output-len", str(load.tokens), "--random-range-ratio", "1", "--num-prompts", str(load.requests)),
        *("--max-concurrency", str(load.concurrency), "--output-details", "--output-file", str(out / "result.json")),
    ]


def _guidellm(load: Load, out: Path) -> list[str]:
    """GuideLLM 0.8."""
    return [
        *("run", "--backend", f"kind=openai_http,target={load.url},model=truth,request_format=/v1/completions"),
        *("--tokenizer", f"kind=huggingface_auto,model={load.tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=16,output_tokens={load.tokens}"),
        *("--profile", f"kind=concurrent,streams={load.concurrency}"),
        *("--constraint", f"kind=max_requests,count={load.requests}"),
        *("--output", f"kind=json,path={out / 'result.json'}", "--disable-progress"),
    ]


def _read_guidellm(out: Path) -> Values:
    done = json.loads((out / "result.json").read_text())["benchmarks"][0]["requests"]["successful"]
    return {
        "tok_s": [1e3 / r["inter_token_latency_ms"] for r in done],
        "ttft_ms": [r["time_to_first_token_ms"] for r in done],
        "itl_p50_ms": [r["inter_token_latency_ms"] for r in done],
        "itl_p99_ms": [r["inter_token_latency_ms"] for r in done],
    }


def _aiperf(load: Load, out: Path) -> list[str]:
    return [
        *("profile", "--model", "truth", "--url", load.url, "--endpoint-type", "completions", "--streaming"),
        *("--tokenizer", load.tokenizer, "--concurrency", str(load.concurrency)),
        *("--request-count", str(load.requests), "--synthetic-input-tokens-mean", "16"),
        *(
            "--output-tokens-mean",
            str(load.tokens),
            "--artifact-dir",
            str(out),
            "--ui",
            "none",
            "--use-server-token-count",
        ),
    ]


def _read_aiperf(out: Path) -> Values:
    lines = next(out.rglob("profile_export.jsonl")).read_text().splitlines()
    rows = [json.loads(line)["metrics"] for line in lines]

    def of(row: Mapping[str, Any], name: str) -> float:
        return float(row[name]["value"])

    rows = [row for row in rows if "inter_token_latency" in row and of(row, "inter_token_latency") > 0]
    return {
        "tok_s": [1e3 / of(row, "inter_token_latency") for row in rows],
        "ttft_ms": [of(row, "time_to_first_token") for row in rows],
        "itl_p50_ms": [of(row, "inter_token_latency") for row in rows],
        "itl_p99_ms": [of(row, "inter_token_latency") for row in rows],
    }


def _read_detailed(out: Path) -> Values:
    return _detailed(json.loads((out / "result.json").read_text().splitlines()[-1]))


PEERS: Mapping[str, Peer] = {
    "vllm bench serve": Peer("vllm", _vllm, _read_detailed),
    "sglang.bench_serving": Peer("python", _sglang, _read_detailed),
    "guidellm": Peer("guidellm", _guidellm, _read_guidellm),
    "aiperf": Peer("aiperf", _aiperf, _read_aiperf),
}
_SHORT = {name.split(".")[0].split(" ")[0]: name for name in PEERS}


def installed(named: Mapping[str, str]) -> dict[str, str]:
    """Peer to the program that starts it. ``named`` maps short names (vllm, sglang, guidellm, aiperf) to Pythons."""
    found: dict[str, str] = {}
    for short, name in _SHORT.items():
        program = PEERS[name].program
        beside = Path(named[short]).parent / program if short in named else None
        path = str(beside) if beside is not None and beside.exists() else None
        if path is None and short not in named and short != "sglang":
            path = shutil.which(program)
        if path:
            found[name] = path
    return found


@dataclass
class Meter:
    """CPU seconds of a process and its descendants, over CLOCK_MONOTONIC seconds; who ended keeps what he had."""

    process: psutil.Process
    at: list[float] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)
    _seen: dict[int, float] = field(default_factory=dict)

    def sample(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (self.process, *self.process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    self._seen[process.pid] = times.user + times.system
        self.at.append(time.monotonic())
        self.spent.append(sum(self._seen.values()))

    def between(self, start: float, end: float) -> float:
        low, high = np.interp([start, end], self.at, self.spent)
        return float(high - low)


def run(name: str, program: str, load: Load) -> tuple[Values, Meter]:
    """One run of a peer: what it measured, and the CPU that it took. Raises ``RuntimeError`` with its last words when
    it fails."""
    peer = PEERS[name]
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "said.txt").open("w+b") as said:
        environment = {**os.environ, "OPENAI_API_KEY": "none"}
        words = [program, *peer.words(load, Path(folder))]
        with subprocess.Popen(words, env=environment, cwd=folder, stdout=said, stderr=subprocess.STDOUT) as process:
            meter = Meter(psutil.Process(process.pid))
            while process.poll() is None:
                meter.sample()
                time.sleep(SAMPLE_S)
        if process.returncode:
            said.seek(0)
            end = said.read()[-2000:].decode("utf-8", "replace")
            raise RuntimeError(f"{program}: exit {process.returncode}\n{end}")
        return peer.read(Path(folder)), meter
