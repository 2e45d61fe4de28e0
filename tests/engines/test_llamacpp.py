"""The embedded llama.cpp for real: one server, launched once, asked everything that the adapter promises."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.engines.base import Endpoint, EngineSettings
from pytest_llmperf.engines.llamacpp.llamacpp_adapter import LlamaCpp
from pytest_llmperf.models import tiny_model
from pytest_llmperf.server_config import ServerConfig
from tests.conftest import wait_for

ENGINE = LlamaCpp()
NGRAM = {"method": "ngram", "num_tokens": 4}
CONFIG = ServerConfig(
    engine="llamacpp", model="tiny", max_running_requests=2, context_length=512, speculative=NGRAM, seed=1
)
#: Within these the walk of the tiny model repeats itself, so that prompt lookup has something to find.
LONG = 64


@dataclass(frozen=True)
class Running:
    """A server, seen as the plugin sees one."""

    endpoint: Endpoint
    log_path: Path
    pid: int

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def ask(self, path: str, body: dict[str, Any] | None = None, key: str | None = None) -> tuple[int, str]:
        request = urllib.request.Request(
            self.endpoint.root_url + path,
            data=json.dumps(body).encode() if body else None,
            headers={"Authorization": f"Bearer {key or self.endpoint.api_key}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def text(self, path: str) -> str | None:
        status, body = self.ask(path)
        return body if status == 200 else None

    def json(self, path: str) -> Any | None:
        body = self.text(path)
        return json.loads(body) if body else None

    def stream(self, tokens: int, **extra: Any) -> list[dict[str, Any]]:
        body = {
            "model": ENGINE.model_name(CONFIG),
            "prompt": [300 + 7 * i for i in range(32)],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **ENGINE.request_body(CONFIG, tokens),
            **extra,
        }
        status, text = self.ask("/v1/completions", body)
        assert status == 200, text
        return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    log_path = tmp_path_factory.mktemp("llamacpp") / "server.log"
    endpoint = Endpoint("127.0.0.1", _free_port(), "a-key-of-its-own")
    command = ENGINE.command(CONFIG, EngineSettings(), endpoint, str(tiny_model.cached()))
    with log_path.open("wb") as log:
        process = subprocess.Popen(command.argv, env={**os.environ, **command.env}, stdout=log, stderr=log)
    running = Running(endpoint, log_path, process.pid)

    def listening() -> bool:
        assert process.poll() is None, running.log
        return f"listening on http://127.0.0.1:{endpoint.port}" in running.log.rpartition("llamacpp_serve: ")[2]

    wait_for(listening, f"llama.cpp's server ({log_path})", 60)
    yield running
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_ready_means_ready(server: Running) -> None:
    assert server.ask(ENGINE.health_path)[0] == 200


def test_an_exact_number_of_tokens_from_token_ids(server: Running) -> None:
    chunks = server.stream(LONG)
    texts = [c["choices"][0]["text"] for c in chunks if c["choices"][0]["text"]]
    assert len(texts) == LONG
    assert all(t.strip() for t in texts)
    assert chunks[-1]["usage"]["completion_tokens"] == LONG
    assert chunks[-1]["usage"]["prompt_tokens"] == 32
    assert chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_the_same_text_each_time_and_no_cache_behind_it(server: Running) -> None:
    first, second = server.stream(8), server.stream(8)
    assert [c["choices"][0]["text"] for c in first] == [c["choices"][0]["text"] for c in second]
    assert second[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_traits_are_what_it_does(server: Running) -> None:
    chunks = server.stream(4, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert ENGINE.traits.continuous_usage is any("usage" in c for c in chunks[:-1])
    assert ENGINE.traits.tokenize_path is not None
    status, body = server.ask(ENGINE.traits.tokenize_path, {"content": "bada heda"})
    assert (status, len(json.loads(body)["tokens"])) == (200, 4)


def test_chat_streams_too(server: Running) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
        **ENGINE.request_body(CONFIG, 5),
    }
    status, text = server.ask("/v1/chat/completions", body)
    assert status == 200
    last = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")][-1]
    assert last["usage"]["completion_tokens"] == 5


def test_a_slot_holds_the_declared_context(server: Running) -> None:
    chunks = server.stream(20, prompt=[300 + i for i in range(490)])
    assert chunks[-1]["usage"]["completion_tokens"] == 20


def test_strangers_are_refused(server: Running) -> None:
    assert server.ask("/v1/models", key="another")[0] == 401
    assert server.ask("/v1/models")[0] == 200


def test_the_key_is_not_on_the_command_line(server: Running) -> None:
    assert b"a-key-of-its-own" not in Path(f"/proc/{server.pid}/cmdline").read_bytes()


def test_effective_config(server: Running) -> None:
    effective = ENGINE.effective(CONFIG, server)
    assert effective.max_running_requests == 2
    assert effective.context_length == 512
    assert effective.kv_tokens == 1024
    assert effective.prefix_cache is False
    assert effective.speculative == "ngram-simple"
    assert (effective.dtype, effective.quantization) == (None, "Q8_0")
    assert effective.engine_version == effective.versions["xllamacpp"]
    assert effective.other["threads"] == "1"
    assert effective.attention_backend is None
    assert effective.sources["max_running_requests"] == "/props"
    assert ENGINE.mismatches(CONFIG, effective) == []


def test_a_server_that_serves_something_else_is_a_mismatch(server: Running) -> None:
    wanted = ServerConfig(
        engine="llamacpp", model="tiny", max_running_requests=3, context_length=4096, prefix_cache=True
    )
    found = {m.field: (m.declared, m.effective) for m in ENGINE.mismatches(wanted, ENGINE.effective(wanted, server))}
    assert found == {
        "max_running_requests": ("3", "2"),
        "context_length": ("4096", "512"),
        "prefix_cache": ("True", "False"),
    }


def test_counters_move_by_what_was_sent(server: Running) -> None:
    before = ENGINE.counters(server.text("/metrics") or "")
    server.stream(LONG)
    after = ENGINE.counters(server.text("/metrics") or "")
    assert after.generation_tokens is not None
    assert before.generation_tokens is not None
    assert after.generation_tokens - before.generation_tokens == LONG
    assert (after.prompt_tokens or 0) - (before.prompt_tokens or 0) == 32
    assert after.cached_tokens == 0
    assert after.running == 0


def test_prompt_lookup_speculates_and_is_counted(server: Running) -> None:
    before = ENGINE.counters(server.text("/metrics") or "")
    server.stream(LONG)
    after = ENGINE.counters(server.text("/metrics") or "")
    drafts, accepted = (
        (after.drafts or 0) - (before.drafts or 0),
        (after.accepted_tokens or 0) - (before.accepted_tokens or 0),
    )
    assert drafts > 0
    assert accepted == (after.draft_tokens or 0) - (before.draft_tokens or 0), "its walk is certain: all are accepted"
    assert 3 <= accepted / drafts <= 4


def _fails(*flags: str) -> str:
    argv = [sys.executable, "-m", "pytest_llmperf.engines.llamacpp.llamacpp_serve", "--port", str(_free_port()), *flags]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (("--model", "/no/such.gguf"), "the model file /no/such.gguf could not be read"),
        (("--model", __file__), "the model file is not a GGUF file"),
    ],
)
def test_why_it_could_not_start(flags: tuple[str, ...], cause: str) -> None:
    log = _fails(*flags)
    found = [m.expand(what) for pattern, what in ENGINE.crash_patterns if (m := pattern.search(log))]
    assert cause in found[0]


def test_a_misspelt_flag_is_named_with_the_right_one() -> None:
    assert "unrecognized arguments: --thraeds 2 (did you mean '--threads'?)" in _fails("--model", "x", "--thraeds", "2")
    assert "invalid choice: 'ngram-smiple'" in _fails("--model", "x", "--spec-type", "ngram-smiple")
