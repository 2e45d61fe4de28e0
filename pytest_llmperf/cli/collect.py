"""Which performance tests pytest collects here: asked of pytest itself, nothing is run."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence

import pytest

from pytest_llmperf.errors import ConfigError


class _Collector:
    """A pytest plugin that keeps (test, engine) of every performance test that was collected."""

    def __init__(self) -> None:
        self.tests: set[tuple[str, str]] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        from pytest_llmperf.fixtures import SESSION  # costly: only who collects pays for it

        ours = session.config.stash.get(SESSION, None)
        self.tests = {(t.test, t.engine) for t in ours.tests.values()} if ours else set()


def collect(engines: Sequence[str], arguments: Sequence[str]) -> set[tuple[str, str]]:
    """(test, engine) of every performance test on ``engines`` (unless ``arguments`` choose others) in this folder.

    Raises ``ConfigError`` when collection fails or finds none: then nothing can be called unused.
    """
    words = ["--collect-only", "-q", *arguments]
    if not any(x.startswith(("--engine", "--llmperf-engine")) for x in arguments):
        words += [word for name in engines for word in ("--engine", name)]
    collector, output = _Collector(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = pytest.main(words, plugins=[collector])
    done = code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if not done or not collector.tests:
        why = "pytest collected no performance test" if done else "pytest's collection failed"
        raise ConfigError(f"{why}, so no baseline can be called unused:\n{output.getvalue().strip()}")
    return collector.tests
