"""Which performance tests pytest collects here: asked of pytest itself, nothing is run."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.session.selection import PLUGIN

if TYPE_CHECKING:
    from pytest_llmperf.session.hooks import SessionHooks


class _Collector:
    """A pytest plugin that keeps (test, engine) of every performance test that was collected."""

    def __init__(self) -> None:
        self.tests: set[tuple[str, str]] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        ours: SessionHooks | None = session.config.pluginmanager.get_plugin(PLUGIN)
        self.tests = {(t.test, t.engine) for t in ours.session.tests.values()} if ours else set()


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
