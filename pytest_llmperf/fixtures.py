"""What a test asks for: ``llm_server``, ``llm_servers``, ``baseline`` and ``engine``. Light to import: every pytest
session of the environment loads this module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

from pytest_llmperf.session.selection import PLUGIN

if TYPE_CHECKING:
    from pytest_llmperf.session.ab_fixture import Ab
    from pytest_llmperf.session.hooks import SessionHooks
    from pytest_llmperf.session.llm_server import LlmServer
    from pytest_llmperf.session.perf_session import PerfSession
    from pytest_llmperf.session.perf_test import PerfTest
    from pytest_llmperf.session.verdicts import Baseline


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> str:
    """Name of the engine this test runs on; a test with a server is run once for each ``--engine``."""
    chosen: str | None = getattr(request, "param", None)
    if chosen is None:
        session = _session(request)
        test = session.tests.get(request.node.nodeid)
        names = (test.engine,) if test else session.options.engine
        if len(names) != 1:
            pytest.fail(f"one engine is needed here, and --engine names {len(names)}", pytrace=False)
        chosen = names[0]
    return chosen


@pytest.fixture
def llm_server(request: pytest.FixtureRequest, engine: str) -> Iterator[LlmServer]:
    """The server that this test's ``llm_server`` markers declare, launched once per config and session.

    ``.stream(output_tokens=, prompt_tokens=, repetitions=)`` and ``.load(concurrency=, ...)`` measure; ``.client`` is
    an ``openai.OpenAI``; ``.base_url``, ``.config`` and ``.effective`` say where and what it is.
    """
    session, test = _here(request)
    server = session.open(test, test.configs[0])
    yield server
    server.close()


@pytest.fixture
def llm_servers(request: pytest.FixtureRequest, engine: str) -> Iterator[Mapping[str, LlmServer]]:
    """Several servers at once, by the names in ``@pytest.mark.llm_servers(name={...overrides}, ...)``."""
    session, test = _here(request)
    servers = {name: session.open(test, config) for name, config in test.named.items()}
    yield servers
    for server in servers.values():
        server.close()


@pytest.fixture
def baseline(request: pytest.FixtureRequest) -> Baseline:
    """The accepted launches of this test on this hardware.

    ``assert run.decode_tok_s in baseline`` gates one metric; ``baseline.check(run)`` gates all that ``@perf(metric=)``
    names. A target given in ``@perf(target=)`` is judged in the same place.
    """
    session, test = _here(request)
    return session.baseline(test)


@pytest.fixture
def ab(request: pytest.FixtureRequest, engine: str) -> Ab:
    """Two builds or configs against each other, as ``@pytest.mark.llm_ab(a={...}, b={...})`` says.

    ``result = ab(lambda server: server.stream(output_tokens=128))`` launches them by turns until the answer is clear or
    the budget is spent; ``result.ratio`` (b / a), ``.interval``, ``.better``, ``.launches`` and ``.stopped`` say it.
    """
    if request.node.get_closest_marker("llm_ab") is None:
        pytest.fail("ab needs @pytest.mark.llm_ab(a={...}, b={...}): overrides of the test's llm_server", pytrace=False)
    from pytest_llmperf.session.ab_fixture import Ab

    return Ab(*_here(request))


def _session(request: pytest.FixtureRequest) -> PerfSession:
    hooks: SessionHooks | None = request.config.pluginmanager.get_plugin(PLUGIN)
    if hooks is None:
        pytest.fail("performance tests run with --engine NAME or -m perf only", pytrace=False)
    return hooks.session


def _here(request: pytest.FixtureRequest) -> tuple[PerfSession, PerfTest]:
    session = _session(request)
    test = session.tests.get(request.node.nodeid)
    if test is None:
        pytest.fail("a test gets a server or a baseline only when it names the fixture llm_server or llm_servers "
                    "as an argument, so that its server is known when tests are collected", pytrace=False)  # fmt: skip
    return session, test
