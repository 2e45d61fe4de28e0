"""Engines in other places: what a command prefix (``ssh``, ``srun``, a container) needs to carry variables along."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from pytest_llmperf.engines.base import Endpoint
from pytest_llmperf.errors import LaunchError
from pytest_llmperf.server_config import is_secret

#: In ``command``: where ``env NAME=VALUE ...`` is to stand, for prefixes that forward no variables.
PLACEHOLDER = "{env}"


def expand(argv: Sequence[str], env: Mapping[str, str], endpoint: Endpoint, where: str) -> tuple[str, ...]:
    """``argv`` with the placeholder replaced by the declared variables.

    ``ssh`` hands one line to a shell on the other host, so every word from there on is quoted for it. Raises
    LaunchError where variables would be lost without a word, or where a secret would show in a process list.
    """
    if PLACEHOLDER not in argv:
        if env and PurePath(argv[0]).name == "ssh" and not any("SendEnv" in word for word in argv):
            raise LaunchError(
                f"{where}: ssh would not carry {', '.join(sorted(env))} to the other host: put {PLACEHOLDER!r} into "
                'the command before the program, as in ["ssh", "-tt", "host", "{env}", "python3", "-m", ...]'
            )
        return tuple(argv)
    shown = sorted(k for k, v in env.items() if is_secret(k) and v != endpoint.api_key)
    if shown:
        raise LaunchError(
            f"{where}: {', '.join(shown)} would show in the process lists of both hosts: set it where the engine runs"
        )
    at = list(argv).index(PLACEHOLDER)
    words = [*(["env", *(f"{k}={v}" for k, v in sorted(env.items()))] if env else []), *argv[at + 1 :]]
    if PurePath(argv[0]).name == "ssh":
        words = [shlex.quote(word) for word in words]
    return (*argv[:at], *words)
