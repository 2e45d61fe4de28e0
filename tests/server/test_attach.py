"""Servers that somebody else runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pytest_llmperf.errors import ConfigError, LaunchError, ServerDiedError
from pytest_llmperf.server.attach import parse
from pytest_llmperf.server.launch import Launch
from tests.server.fakes import Pools, alive, config


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """A running server, as somebody else would have started it."""
    started = Pools(tmp_path_factory.mktemp("theirs"))
    yield started().get(config(attention_backend="triton")).launch
    started.made[0].close()


@pytest.fixture
def key(theirs: Launch, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("LLMPERF_API_KEY", str(theirs.endpoint.api_key))
    return "LLMPERF_API_KEY"


def test_it_is_used_read_and_never_stopped(pools: Pools, theirs: Launch, key: str) -> None:
    pool = pools(url=theirs.endpoint.root_url, api_key_env=key)
    server = pool.get(config())
    assert server.launch.attached
    assert server.launch.effective.attention_backend == "triton"
    server.check()
    assert server.counters() is not None
    assert server.log() == ""
    pool.release(config())
    pool.close()
    assert alive(theirs.pids) == list(theirs.pids)


def test_two_visits_are_one_launch(pools: Pools, theirs: Launch, key: str) -> None:
    ids = {
        pools(url=f"{theirs.endpoint.root_url}{tail}", api_key_env=key).get(config()).launch.id for tail in ("", "/v1/")
    }
    assert len(ids) == 1


def test_what_it_resolved_to_is_held_against_the_declaration(pools: Pools, theirs: Launch, key: str) -> None:
    pool = pools(url=theirs.endpoint.root_url, api_key_env=key)
    with pytest.raises(LaunchError, match="attention_backend: declared fa3, effective triton"):
        pool.get(config(attention_backend="fa3"))


def test_a_fresh_launch_is_refused(pools: Pools, theirs: Launch, key: str) -> None:
    pool = pools(url=theirs.endpoint.root_url, api_key_env=key)
    pool.get(config())
    with pytest.raises(LaunchError, match="may not restart"):
        pool.fresh(config())


def test_a_wrong_key(pools: Pools, theirs: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEIR_KEY", "sk-wrong-and-secret")
    with pytest.raises(
        LaunchError, match=r"refused the API key \(HTTP 401\)\nwhat to do: put its key into THEIR_KEY"
    ) as e:
        pools(url=theirs.endpoint.root_url, api_key_env="THEIR_KEY").get(config())
    assert "sk-wrong" not in str(e.value)


def test_another_model(pools: Pools, theirs: Launch, key: str) -> None:
    with pytest.raises(LaunchError, match="serves fake-model, not llama"):
        pools(url=theirs.endpoint.root_url, api_key_env=key).get(config(model="llama"))


def test_nobody_there(pools: Pools) -> None:
    with pytest.raises(LaunchError, match=r"at http://127.0.0.1:9: no answer \(.*refused\)\nwhat to do: check that"):
        pools(url="http://127.0.0.1:9").get(config())


def test_one_that_goes_away(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    host = pools()
    endpoint = host.get(config()).launch.endpoint
    monkeypatch.setenv("LLMPERF_API_KEY", str(endpoint.api_key))
    server = pools(url=endpoint.root_url, api_key_env="LLMPERF_API_KEY").get(config())
    host.close()
    with pytest.raises(ServerDiedError, match="takes no connections any more"):
        server.check()


def test_urls() -> None:
    assert parse("http://box:8000/v1", None).base_url == "http://box:8000/v1"
    assert parse("https://box/llm/", None).base_url == "https://box:443/llm/v1"
    assert replace(parse("http://[::1]:8000", None), api_key=None).root_url == "http://[::1]:8000"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://user:hunter22@box:8000", "must not hold a password"),
        ("box:8000", "use http://host:port"),
        ("ftp://box", "use http://host:port"),
        ("http://box:port", "wrong port"),
        ("http://", "use http://host:port"),
    ],
)
def test_wrong_urls(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse(url, None)
    assert "hunter22" not in str(caught.value)
