"""The stand-in engine: its schedule against its own truth, and both dialects."""

from __future__ import annotations

import re
import statistics
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

import tests.fake_engine
from tests.conftest import FakeServer, StartFake
from tests.fake_engine.client import call, stream, together
from tests.fake_engine.schedule import launch_factor, plan, request_factor
from tests.fake_engine.settings import Settings

DIALECTS = pytest.mark.parametrize("dialect", ["sglang", "vllm"])


def on_schedule(record: dict[str, Any], first: float, step: float) -> None:
    """Every chunk of a truth record was due, and meant to be written, exactly at start + first + i * step."""
    for i, (due, intended, actual, _) in enumerate(record["chunks"]):
        assert due == pytest.approx(record["start"] + first + i * step, abs=2e-7)
        assert intended == due
        assert actual >= due - 1e-6


def sample(text: str, name: str) -> float:
    """The sum over labels of one Prometheus sample."""
    families = text_string_to_metric_families(text)
    return sum(s.value for family in families for s in family.samples if s.name == name)


# schedule


def test_tokens_are_due_at_absolute_times_without_drift() -> None:
    p = plan(Settings(itl_ms=12.1, ttft_ms=50), tokens=1000, request=1)
    assert p.tokens == 1000
    assert [c.step for c in p.chunks] == list(range(1000))
    assert p.due(999) == pytest.approx(0.05 + 999 * 0.0121, abs=1e-12)


def test_a_chunk_leaves_with_its_last_token() -> None:
    p = plan(Settings(tokens_per_chunk=(1, 4, 2)), tokens=10, request=1)
    assert [(c.step, c.tokens) for c in p.chunks] == [(0, 1), (4, 4), (6, 2), (7, 1), (9, 2)]


def test_the_stream_interval_sends_the_first_token_alone() -> None:
    p = plan(Settings(), tokens=10, request=1, interval=4)
    assert [(c.step, c.tokens) for c in p.chunks] == [(0, 1), (4, 4), (8, 4), (9, 1)]


def test_speculation_gives_its_mean_exactly() -> None:
    p = plan(Settings(), tokens=251, request=1, accept=2.5, most=4)
    assert sum(p.accepted) == 250
    assert len(p.accepted) == 100
    assert set(p.accepted) == {2, 3}


def test_factors_of_launches_and_requests() -> None:
    listed = Settings(launch_factors=(1.0, 0.9))
    assert [launch_factor(listed, n) for n in (1, 2, 3)] == [1.0, 0.9, 1.0]
    drawn = Settings(launch_cv=0.01, seed=3)
    values = [launch_factor(drawn, n) for n in range(1, 401)]
    assert values[:3] == [launch_factor(drawn, n) for n in (1, 2, 3)]
    assert statistics.stdev(values) == pytest.approx(0.01, rel=0.15)
    warm = Settings(warmup_requests=2, warmup_factor=4)
    assert [request_factor(warm, 1, n) for n in (1, 2, 3)] == pytest.approx([0.25, 0.5, 1.0])
    assert request_factor(Settings(drift=0.01), 1, 3) == pytest.approx(1.01**-2)


@DIALECTS
def test_what_was_sent_follows_the_schedule(fake_server: StartFake, dialect: str) -> None:
    server = fake_server(dialect, env={"FAKE_ITL_MS": 1.5, "FAKE_TTFT_MS": 4, "FAKE_SLOWDOWN": 0.75})
    stream(server.port, {"max_tokens": 40})
    [record] = server.truth
    assert len(record["chunks"]) == 40
    on_schedule(record, 0.004, 0.002)


def test_the_launch_counts_and_sets_the_factor(fake_server: StartFake, tmp_path: Path) -> None:
    env = {"FAKE_LAUNCH_FACTORS": "1,0.5", "FAKE_ITL_MS": 1, "FAKE_COUNTER": tmp_path / "counter"}
    for expected in (0.001, 0.002):
        server = fake_server(env=env)
        stream(server.port)
        assert server.truth[0]["step_s"] == pytest.approx(expected)
    assert server.launches[0]["launch"] == 2


def test_many_streams_each_keep_their_schedule(fake_server: StartFake) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 12.1, "FAKE_TTFT_MS": 20})
    run_together(server.port, 64, 20)
    assert len(server.truth) == 64
    for record in server.truth:
        assert record["tokens"] == 20
        on_schedule(record, 0.02, 0.0121)


def test_in_lockstep_all_streams_share_their_ticks(fake_server: StartFake) -> None:
    server = fake_server("vllm", env={"FAKE_LOCKSTEP": 1, "FAKE_ITL_MS": 20, "FAKE_TTFT_MS": 5})
    run_together(server.port, 8, 30)
    ticks = sorted({row[0] for record in server.truth for row in record["chunks"]})
    assert len(ticks) < 30 + 8
    for before, after in pairwise(ticks):
        assert after - before == pytest.approx(0.02, abs=1e-6)


def test_in_lockstep_a_bigger_batch_has_longer_steps(fake_server: StartFake) -> None:
    server = fake_server("vllm", env={"FAKE_LOCKSTEP": 1, "FAKE_ITL_MS": 10, "FAKE_PER_STREAM": 0.5})
    run_together(server.port, 3, 30)
    ticks = sorted({row[0] for record in server.truth for row in record["chunks"]})
    gaps = {round((after - before) * 1e3, 2) for before, after in pairwise(ticks)}
    assert 20.0 in gaps
    assert gaps <= {10.0, 15.0, 20.0}


@DIALECTS
def test_above_the_limit_requests_queue(fake_server: StartFake, dialect: str) -> None:
    flag = "--max-running-requests" if dialect == "sglang" else "--max-num-seqs"
    server = fake_server(dialect, flag, "2")
    run_together(server.port, 4, 10)
    waited = [record for record in server.truth if record["start"] > record["t0"]]
    assert len(waited) == 2
    for record in server.truth:
        on_schedule(record, 0.01, 0.002)


def run_together(port: int, streams: int, tokens: int) -> None:
    together(port, [{"max_tokens": tokens, "prompt": [100 + i, 7, 9]} for i in range(streams)])


# both dialects


@pytest.fixture(scope="module", params=["sglang", "vllm"])
def plain(request: pytest.FixtureRequest, module_fake_server: StartFake) -> FakeServer:
    """A server of each dialect with nothing special, for tests that only ask."""
    return module_fake_server(request.param)


@pytest.mark.parametrize("chat", [False, True])
def test_the_openai_client_streams_every_token(plain: FakeServer, chat: bool) -> None:
    client = openai.OpenAI(base_url=plain.base_url, api_key="none needed", max_retries=0)
    events: list[Any]
    if chat:
        events = list(
            client.chat.completions.create(
                model="fake-model",
                messages=[{"role": "user", "content": "hello there"}],
                max_tokens=20,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        text = "".join(e.choices[0].delta.content or "" for e in events if e.choices)
    else:
        events = list(
            client.completions.create(
                model="fake-model",
                prompt=[5, 6, 7],
                max_tokens=20,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        text = "".join(e.choices[0].text for e in events if e.choices)
    assert len(text.split()) == 20
    assert events[-1].usage.completion_tokens == 20
    record = plain.truth[-1]
    assert (record["end"], record["finish"]) == ("ok", "length")
    assert [row[3] for row in record["chunks"]] == [1] * 20


@pytest.mark.parametrize("chat", [False, True])
def test_an_answer_in_one_piece(plain: FakeServer, chat: bool) -> None:
    path = "/v1/chat/completions" if chat else "/v1/completions"
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "a b"}]} if chat else {"prompt": "a b"}
    status, body = call(plain.port, path, {**prompt, "max_tokens": 5})
    assert status == 200
    choice = body["choices"][0]
    assert len((choice["message"]["content"] if chat else choice["text"]).split()) == 5
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 5


def test_usage_as_asked(plain: FakeServer) -> None:
    assert stream(plain.port, {"stream_options": None}).usage is None
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = stream(plain.port, {"stream_options": options})
    assert [e["usage"]["completion_tokens"] for e in answer.events] == [*range(1, 9), 8]
    assert answer.events[-1]["choices"] == []


def test_temperature_zero_repeats_itself(plain: FakeServer) -> None:
    cold = [stream(plain.port, {"temperature": 0}).texts for _ in range(2)]
    hot = [stream(plain.port, {"temperature": 1}).texts for _ in range(2)]
    assert cold[0] == cold[1]
    assert hot[0] != hot[1]


@DIALECTS
def test_without_ignore_eos_the_model_may_stop(fake_server: StartFake, dialect: str) -> None:
    server = fake_server(dialect, env={"FAKE_NATURAL_EOS": 5})
    assert stream(server.port).finish == ["stop"]
    assert stream(server.port, {"ignore_eos": True}).finish == ["length"]
    answer = stream(server.port, {"min_tokens": 7})
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == 7


@pytest.mark.parametrize(
    ("dialect", "flag", "cached"),
    [("sglang", "--enable-cache-report", 63), ("vllm", "--enable-prompt-tokens-details", 48)],
)
def test_a_repeated_prefix_is_cached_and_faster(fake_server: StartFake, dialect: str, flag: str, cached: int) -> None:
    server = fake_server(dialect, flag, "--enable-metrics", env={"VLLM_SERVER_DEV_MODE": 1})
    prompt = {"prompt": list(range(100, 164))}
    usages = [stream(server.port, prompt).usage for _ in range(2)]
    assert [u["prompt_tokens_details"]["cached_tokens"] for u in usages if u] == [0, cached]
    first, second = server.truth
    assert second["ttft_s"] == pytest.approx(first["ttft_s"] * (1 - 0.8 * cached / 64))
    name = "sglang:cached_tokens_total" if dialect == "sglang" else "vllm:prefix_cache_hits_total"
    assert sample(server.get("/metrics")[1], name) == cached
    path = "/flush_cache" if dialect == "sglang" else "/reset_prefix_cache"
    assert call(server.port, path, {})[0] == 200
    stream(server.port, prompt)
    assert server.truth[-1]["cached_tokens"] == 0


def test_text_makes_the_round_trip_through_tokens(plain: FakeServer) -> None:
    _, made = call(plain.port, "/tokenize", {"prompt": "t5 some words t7", "add_special_tokens": False})
    assert made["count"] == 4
    assert (made["tokens"][0], made["tokens"][3]) == (5, 7)
    _, back = call(plain.port, "/detokenize", {"tokens": made["tokens"]})
    text = back["text" if plain.dialect == "sglang" else "prompt"]
    assert call(plain.port, "/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"] == made["tokens"]


def test_the_key_guards_what_the_real_ones_guard(fake_server: StartFake) -> None:
    for dialect, guarded in (("sglang", ["/v1/models", "/server_info"]), ("vllm", ["/v1/models"])):
        server = fake_server(dialect, "--enable-metrics", api_key="k3y")
        for path in guarded:
            assert call(server.port, path)[0] == 401
            assert call(server.port, path, key="k3y")[0] == 200
        assert call(server.port, "/health")[0] == 200
        assert call(server.port, "/metrics")[0] == 200


def test_the_table_in_the_docstring_names_every_variable() -> None:
    told = set(re.findall(r"^([A-Z_]+) {2,}", tests.fake_engine.__doc__ or "", re.M))
    assert told == {f.name.upper() for f in fields(Settings)}


def test_a_misspelt_variable_is_refused() -> None:
    with pytest.raises(SystemExit, match="FAKE_ITLMS"):
        Settings.from_env({"FAKE_ITLMS": "1"})
    with pytest.raises(SystemExit, match="FAKE_ITL_MS='fast'"):
        Settings.from_env({"FAKE_ITL_MS": "fast"})
