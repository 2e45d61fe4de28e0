"""What appears on the terminal: the live line while servers start and measure, the report at the end."""

from __future__ import annotations

import io
import os
import sys

import pytest

from pytest_llmperf.measure.measuring_progress import MeasuringProgress
from pytest_llmperf.records.results import SessionRecord
from pytest_llmperf.report.live import LiveLine
from pytest_llmperf.session.makereport import is_explained


class Status:
    """One line of progress below what pytest has printed so far, gone before pytest prints on.

    Where ``CI`` is set, and with ``-s``, it is plain lines instead. xdist's workers have no terminal: theirs show in
    ``CI`` only, on standard error.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._line: LiveLine | None = None
        if config.getoption("verbose", 0) < 0:
            return
        try:
            self._aside = _Aside(config)
        except (OSError, io.UnsupportedOperation):  # standard output is no file
            return
        config.add_cleanup(self._aside.close)
        plain = config.getoption("capture", None) == "no" and not hasattr(config, "workerinput")
        self._line = LiveLine(self._aside, mode="plain") if plain else LiveLine.on(self._aside, os.environ)

    def say(self, text: str) -> None:
        """Show ``text``; what stands before the first colon is its subject, whose news may replace each other."""
        if self._line is not None:
            self._line.say(text)

    def measuring(self, test: str, at: MeasuringProgress) -> None:
        """Show how far the measurement of ``test`` is."""
        if self._line is not None:
            self._line.update(test, at.number, at.most, at.tok_s, at.left_s, at.stage)

    def clear(self) -> None:
        """Before pytest prints on: the cursor goes back to where it was."""
        if self._line is not None:
            self._line.clear()
            self._aside.end()


class _Aside(io.TextIOWrapper):
    """The terminal, past pytest's capture. What is written goes below the line that pytest is at."""

    def __init__(self, config: pytest.Config) -> None:
        file = sys.stderr if hasattr(config, "workerinput") else sys.stdout
        super().__init__(os.fdopen(os.dup(file.fileno()), "wb"), encoding="utf-8", errors="replace")
        self._config = config
        self._column: int | None = None

    def write(self, text: str) -> int:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        at = 0
        if reporter and not hasattr(self._config, "workerinput"):
            at = reporter._tw.width_of_current_line % reporter._tw.fullwidth
        if self._column is None if self.isatty() else at not in (0, self._column):
            super().write("\n")
        self._column = at
        return super().write(text)

    def end(self) -> None:
        """Plain lines stay: then the next one needs a line break only if pytest has printed on."""
        if self._column is not None and self.isatty():
            super().write("\x1b[1A" + (f"\x1b[{self._column}C" if self._column else ""))
            self.flush()
            self._column = None


def show(record: SessionRecord, reporter: pytest.TerminalReporter) -> None:
    """Print the session's report after pytest's own results, and annotations where GitHub runs us."""
    from pytest_llmperf.report import github, terminal  # here: rich is for sessions that have something to show

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
            told=_told(reporter),
        )
    )
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in github.annotations(record, github.folder_in_checkout(reporter.config.rootpath, os.environ)):
            writer.line(line)


def _told(reporter: pytest.TerminalReporter) -> set[str]:
    """Tests of whose failure pytest has printed the whole."""
    if reporter.no_summary or reporter.config.getoption("tbstyle") in ("no", "line"):
        return set()
    printed = [r for kind in ("failed", "error") for r in reporter.stats.get(kind, ())]
    return {r.nodeid for r in printed if is_explained(r)}
