"""Servers that somebody else runs."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pytest_llmperf.errors import ConfigError, LaunchError, ServerDiedError
from pytest_llmperf.server.attach import parse
from pytest_llmperf.server.attached_life import AttachedLife, Seen
from pytest_llmperf.server.launch import Launch
from tests.balancer import Balancer
from tests.conftest import StartFake
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


# -- one server, another one, or several?


@pytest.fixture
def balancer() -> Iterator[Balancer]:
    made = Balancer(lambda connections, requests: 9)
    yield made
    made.close()


def test_a_restarted_server_is_another_launch(pools: Pools, balancer: Balancer, fake_server: StartFake) -> None:
    first = fake_server("sglang")
    balancer.route = lambda *_: first.port
    pool = pools(url=balancer.url)
    server = pool.get(config())
    server.check(1.0)
    assert pool.get(config()) is server
    first.stop()
    second = fake_server("sglang")
    balancer.route = lambda *_: second.port
    with pytest.raises(ServerDiedError, match=r"restarted since this session attached to it.*belongs to neither"):
        server.check(1.0)
    again = pool.get(config())
    again.check(1.0)
    assert [x.id for x in pool.launches] == [server.launch.id, again.launch.id]
    assert server.launch.id != again.launch.id
    assert pools(url=balancer.url).get(config()).launch.id == again.launch.id


def test_several_servers_behind_one_address_are_noticed(
    pools: Pools, balancer: Balancer, fake_server: StartFake
) -> None:
    ports = [fake_server("sglang").port for _ in range(2)]
    balancer.route = lambda connections, _: ports[connections % 2]
    server = pools(url=balancer.url).get(config())
    assert server.launch.notes == (f"{balancer.url}: 2 servers answer there",)
    assert isinstance(server.life, AttachedLife)
    assert server.life.disagreement() == "2 servers answer there"
    server.check(1.0)


def test_one_server_agrees_with_itself(pools: Pools, theirs: Launch, key: str) -> None:
    server = pools(url=theirs.endpoint.root_url, api_key_env=key).get(config())
    assert isinstance(server.life, AttachedLife)
    assert server.life.disagreement() is None
    assert len(server.life.seen.births) == len(server.life.seen.models) == 1


def test_servers_that_tell_no_start_are_told_apart_by_their_models() -> None:
    seen = Seen(models=frozenset({"[{'id': 'a'}]"}))
    assert seen.disagreement is None
    assert (seen | Seen(models=frozenset({"[{'id': 'b'}]"}))).disagreement is not None


# -- the address and the key


@pytest.mark.parametrize("around", ["{}\n", " {}\r\n"])
def test_a_line_end_about_the_key_is_dropped(
    pools: Pools, theirs: Launch, monkeypatch: pytest.MonkeyPatch, around: str
) -> None:
    monkeypatch.setenv("THEIR_KEY", around.format(theirs.endpoint.api_key))
    assert pools(url=theirs.endpoint.root_url, api_key_env="THEIR_KEY").get(config()).launch.attached


@pytest.mark.parametrize("value", ["sk-hunter22\nmore", "Bearer sk-hunter22", "sk-hunter22-\u00e9", "sk-hunter22\x07"])
def test_a_key_that_no_header_can_carry_is_refused_unseen(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("THEIR_KEY", value)
    with pytest.raises(ConfigError, match="the variable THEIR_KEY holds what no HTTP header can carry") as caught:
        parse("http://box:8000", "THEIR_KEY")
    assert "hunter22" not in "".join(traceback.format_exception(caught.value))


def test_an_empty_key_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEIR_KEY", " \n")
    assert parse("http://box:8000", "THEIR_KEY").api_key is None


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
        ("http://box:0", "wrong port"),
        ("http://box:99999", "wrong port"),
        ("http://[::1", "no URL"),
        ("http://a..b:8000", "no URL of a server"),
        ("http://b\u00f6x:8000", "no URL of a server"),
        ("http://bo x:8000", "no URL of a server"),
        ("http://box:8000\n", "no URL of a server"),
        ("http://box:8000/v1?key=hunter22", "without \\? or #"),
    ],
)
def test_wrong_urls(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse(url, None)
    assert "hunter22" not in str(caught.value)
