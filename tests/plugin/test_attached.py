"""``--llmperf-url`` and what may answer there: one server, one that is restarted, several by turns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.balancer import Balancer
from tests.conftest import StartFake
from tests.plugin.conftest import SUITE, Project

TARGETED = SUITE.replace("@perf(", "@perf(target=1, ")
AGAIN = """

@perf(target=1, repetitions=3, max_repetitions=3)
def test_again(llm_server, baseline):
    assert llm_server.stream(output_tokens=24, prompt_tokens=16).decode_tok_s in baseline
"""


@pytest.fixture
def balancer() -> Iterator[Balancer]:
    made = Balancer(lambda connections, requests: 9)
    yield made
    made.close()


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_replicas_behind_a_balancer_are_inconclusive(
    project: Project, balancer: Balancer, fake_server: StartFake, dialect: str
) -> None:
    ports = [fake_server(dialect, "--enable-metrics", env={"FAKE_ITL_MS": 4}).port for _ in range(2)]
    balancer.route = lambda connections, _: ports[connections % 2]
    project.suite(TARGETED)
    result = project.run_here("--llmperf-url", balancer.url, "-rs", engine=dialect)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED *inconclusive: decode_tok_s: one server: 2 servers answer there*"])
    assert f"{balancer.url}: 2 servers answer there" in project.messages


def test_replicas_that_only_the_counter_tells_apart_are_inconclusive(
    project: Project, balancer: Balancer, fake_server: StartFake
) -> None:
    """Whoever looks meets the first; every other request goes to the second."""
    first, second = (fake_server("sglang", "--enable-metrics", env={"FAKE_ITL_MS": 4}).port for _ in range(2))
    seen = [0]

    def route(connections: int, requests: int) -> int:
        asks, seen[0] = requests > seen[0], requests
        return second if asks and requests % 2 else first

    balancer.route = route
    project.suite(TARGETED)
    result = project.run_here("--llmperf-url", balancer.url, "-rs")
    result.assert_outcomes(skipped=1)
    said = "SKIPPED *: one server: each look met the same server; of the 72 tokens * its counter misses *"
    result.stdout.fnmatch_lines([said])


def test_a_restart_in_the_midst_belongs_to_no_launch_and_the_next_test_has_the_new_one(
    project: Project, balancer: Balancer, fake_server: StartFake
) -> None:
    first, second = (fake_server("sglang", "--enable-metrics", env={"FAKE_ITL_MS": 4}).port for _ in range(2))
    balancer.route = lambda _, requests: first if requests <= 5 else second
    project.suite(TARGETED + AGAIN)
    result = project.run_here("--llmperf-url", balancer.url)
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(["*died: it was restarted since this session attached to it*belongs to neither"])
    assert project.verdicts["test_again[sglang]"] == "passed"
    [server] = project.report["servers"]
    assert len({launch["id"] for launch in server["launches"]}) == 2


@pytest.mark.parametrize(
    ("url", "key", "said"),
    [
        ("127.0.0.1:8000", "k", "--llmperf-url is '127.0.0.1:8000', which is no URL of a server"),
        ("http://[::1", "k", "--llmperf-url is 'http://?::1', which is no URL"),
        ("http://127.0.0.1:9", "sk-hunter2\nx", "the variable LLMPERF_API_KEY holds what no HTTP header can carry"),
    ],
)
def test_what_cannot_be_asked_is_a_usage_error(
    project: Project, monkeypatch: pytest.MonkeyPatch, url: str, key: str, said: str
) -> None:
    monkeypatch.setenv("LLMPERF_API_KEY", key)
    project.suite(SUITE)
    result = project.run_here("--llmperf-url", url)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {said}*"])
    assert "hunter2" not in str(result.stderr) + str(result.stdout)
