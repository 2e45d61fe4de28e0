"""What plugins and the conftest at the root add to the project in this folder: pytest loads them, and is asked."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Generic, TypeVar

import pytest

from pytest_llmperf.errors import ConfigError

T = TypeVar("T")


class _Asker(Generic[T]):
    """A pytest plugin that puts one question to the configured pytest, in place of a session."""

    def __init__(self, question: Callable[[pytest.Config], T]) -> None:
        self._question = question
        self.answers: list[T] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        if not hasattr(config.hook, "pytest_llmperf_engines"):
            raise ConfigError(
                "pytest does not load pytest-llmperf in this folder, so its hooks cannot be asked: take -p no:llmperf "
                "out of the settings or, where plugins are not loaded by themselves, add -p pytest_llmperf.plugin"
            )
        self.answers.append(self._question(config))
        return pytest.ExitCode.OK


def ask(question: Callable[[pytest.Config], T]) -> T:
    """``question`` answered by pytest as it stands before a session in this folder; nothing is collected.

    Raises ``ConfigError`` with pytest's words when it cannot be configured here (a broken conftest or ini file).
    """
    asker, output = _Asker(question), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        pytest.main([], plugins=[asker])
    if not asker.answers:
        said = output.getvalue().strip()
        raise ConfigError(f"pytest cannot load the plugins and the conftest of this folder:\n{said}")
    return asker.answers[0]
