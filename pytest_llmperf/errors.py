"""The errors a user can meet. Each message says what happened, where, and what to do next."""

from __future__ import annotations

from collections.abc import Iterable


class LlmperfError(Exception):
    """Base of every error raised on purpose by this plugin; shown to the user without a traceback of ours."""


class ConfigError(LlmperfError):
    """Something declared is wrong (marker, option, profile, engine settings). Becomes a UsageError, exit code 4."""


class LaunchError(LlmperfError):
    """A server could not be started, or is not the server that was asked for. Becomes a test error."""


class ServerDiedError(LaunchError):
    """A server that was ready died or stopped answering. Becomes a test error, never a regression."""


class GpuDriverError(LaunchError):
    """A GPU driver that is there does not answer. What it was asked for is unknown, never none."""


class MeasurementError(LlmperfError):
    """A measurement is invalid (short, failed, empty, truncated, cached). Never stored, never a regression."""


class BaselineError(LlmperfError):
    """A baseline file is broken, or an update was refused. The file is left as it was."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)``, or nothing when no name in ``known`` is near. Case is the caller's to level."""
    import difflib  # here: a session without an error has no use for it

    close = difflib.get_close_matches(word, sorted(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """``did_you_mean`` or, when nothing is near, the list of what there is."""
    names = sorted(known)
    return did_you_mean(word, names) or f"; there are: {', '.join(names) or 'none'}"
