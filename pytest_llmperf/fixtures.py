"""What a test asks for: ``llm_server``, ``llm_servers``, ``baseline`` and ``engine``. Light to import: every pytest
session of the environment loads this module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_llmperf.face import LlmServer
    from pytest_llmperf.gating import Baseline
    from pytest_llmperf.session import Session
    from pytest_llmperf.subject import PerfTest

SESSION: pytest.StashKey[Session] = pytest.StashKey()


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> str:
    """Name of the engine this test runs on; the test is run once for each ``--engine``."""
    name = getattr(request, "param", None)
    if name is None:
        pytest.fail("no engine chosen: pass --engine NAME, or set engine in [tool.llmperf]", pytrace=False)
    return str(name)


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
    if not test.named:
        pytest.fail("llm_servers needs @pytest.mark.llm_servers(name={...overrides}, ...)", pytrace=False)
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


def _here(request: pytest.FixtureRequest) -> tuple[Session, PerfTest]:
    session = request.config.stash.get(SESSION, None)
    if session is None:
        pytest.fail("performance tests run with --engine NAME or -m perf only", pytrace=False)
    return session, session.test(request.node)
