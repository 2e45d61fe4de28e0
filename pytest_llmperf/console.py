"""What appears on the terminal: the live line while servers start and measure, the report at the end."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

import pytest

from pytest_llmperf.report import github, terminal
from pytest_llmperf.report.live import LiveLine
from pytest_llmperf.report.records import SessionRecord


def live(config: pytest.Config) -> Callable[[str], None]:
    """A function that shows one line of progress; it writes past pytest's capture, and nowhere on an xdist worker."""
    if hasattr(config, "workerinput") or config.getoption("verbose") < 0:
        return lambda text: None
    try:
        stream = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", errors="replace")
    except (OSError, io.UnsupportedOperation):  # stdout is no file
        return lambda text: None
    line = LiveLine.on(stream, os.environ)

    def end() -> None:
        line.clear()
        stream.close()

    config.add_cleanup(end)
    return line.say


def show(record: SessionRecord, reporter: pytest.TerminalReporter) -> None:
    """Print the session's report after pytest's own results, and annotations where GitHub runs us."""
    writer = reporter.config.get_terminal_writer()
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    reporter.section("llmperf")
    writer.write(
        terminal.render(
            record,
            width=writer.fullwidth,
            color=writer.hasmarkup,
            verbosity=reporter.config.getoption("verbose"),
            unicode=encoding.lower().startswith("utf"),
        )
    )
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in github.annotations(record):
            writer.line(line)
