"""What ``engines_own`` gives both sides, and the turn of the engine's own benchmark."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines_own_rows import Summary

from pytest_llmperf.engines.base import Counters, Endpoint
from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.measure.prompts import PromptLedger, TextPrompts
from pytest_llmperf.measure.tokenizer import Tokenizer
from pytest_llmperf.server import http

#: Requests of each stream in a round: alone, and among several.
ALONE, AMONG = 10, 3
#: Tokens of a prompt or an output at least, and of both together, that the benchmarks take from a file.
LEAST, MOST = 4, 2048
#: The wheel for CPUs is not called vllm, which the program `vllm` insists on.
VLLM_BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@dataclass(frozen=True)
class Bench:
    """What both sides are given. ``python``: the program in whose environment the engine's benchmark is; ``requests``
    of each stream in a round, None for the default; ``ledger``: what this process has sent to the server."""

    engine: str
    endpoint: Endpoint
    model: str
    tokenizer: Path
    python: str
    prompt: int
    output: int
    requests: int | None
    ledger: PromptLedger = field(default_factory=PromptLedger)

    def total(self, streams: int) -> int:
        """Requests of one side's turn."""
        return streams * (self.requests or (ALONE if streams == 1 else AMONG))


def counters(bench: Bench) -> Counters | None:
    adapter = builtin()[bench.engine]
    answer = http.get(bench.endpoint, adapter.metrics_path or "/metrics")
    return adapter.counters(answer.text) if answer.ok else None


def write_prompts(path: Path, bench: Bench, count: int, seed: int) -> None:
    """``count`` texts of ``bench.prompt`` tokens that begin as none before, as conversations of ShareGPT. Raises
    ``MeasurementError`` when the server does not tokenize."""
    tokenize_path = builtin()[bench.engine].traits.tokenize_path
    assert tokenize_path is not None
    with closing(Tokenizer(bench.endpoint, tokenize_path, bench.model)) as tokenizer:
        prompts = TextPrompts(bench.ledger, f"theirs-{seed}", tokenizer.count)
        texts = [prompts.draw("measured", i, bench.prompt) for i in range(count)]
    answer = {"value": "an answer, whose length nobody asks for"}
    path.write_text(json.dumps([{"conversations": [{"value": text}, answer]} for text in texts]))


def theirs(bench: Bench, streams: int, seed: int) -> Summary:
    """The summary that the engine's own benchmark writes, and ``counted_prompt_tokens``: of a request, by the engine's
    counters. Raises ``RuntimeError`` when not every request succeeded."""
    total = bench.total(streams)
    common = ["--base-url", bench.endpoint.root_url, "--model", bench.model, "--tokenizer", str(bench.tokenizer)]
    common += ["--num-prompts", str(total), "--max-concurrency", str(streams), "--seed", str(seed)]
    common += ["--dataset-name", "sharegpt", "--sharegpt-output-len", str(bench.output)]
    with tempfile.TemporaryDirectory() as folder:
        result, prompts = Path(folder, "result.json"), Path(folder, "prompts.json")
        write_prompts(prompts, bench, total, seed)
        common += ["--dataset-path", str(prompts)]
        if bench.engine == "vllm":
            words = ["-c", VLLM_BENCH_SERVE, "--backend", "openai", "--endpoint", "/v1/completions"]
            words += ["--ignore-eos", "--temperature", "0", "--num-warmups", str(streams)]
            words += ["--save-result", "--save-detailed", "--result-dir", folder, "--result-filename", result.name]
        else:
            words = ["-m", "sglang.bench_serving", "--backend", "sglang-oai", "--warmup-requests", str(streams)]
            words += ["--output-details", "--output-file", str(result)]
        env = {**os.environ, "OPENAI_API_KEY": bench.endpoint.api_key or "none", "HF_HUB_OFFLINE": "1"}
        command = [bench.python, *words, *common]
        before = counters(bench)
        done = subprocess.run(command, check=False, env=env, cwd=folder, capture_output=True, text=True)
        if done.returncode or not result.is_file():
            end = (done.stdout + done.stderr)[-3000:]
            raise RuntimeError(f"{bench.engine}'s own benchmark: exit {done.returncode}\n{end}")
        summary: dict[str, Any] = json.loads(result.read_text().splitlines()[-1])
    if summary["completed"] != total:
        raise RuntimeError(f"{bench.engine}'s own benchmark completed {summary['completed']} of {total} requests")
    summary.pop("generated_texts", None)
    after = counters(bench)
    if before and after and before.prompt_tokens is not None and after.prompt_tokens is not None:
        asked = total + streams  # the warm-up; vLLM 0.10 also asks once beforehand
        summary["counted_prompt_tokens"] = (after.prompt_tokens - before.prompt_tokens) / asked
    return summary
