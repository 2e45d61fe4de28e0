"""Engines in other places: what a command prefix (``ssh``, ``srun``, a container) needs to carry variables along."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath

from pytest_llmperf.engines.base import Endpoint, Engine
from pytest_llmperf.errors import LaunchError
from pytest_llmperf.server import http
from pytest_llmperf.server.launch import Launch
from pytest_llmperf.server.readiness import COMPLETIONS, completion
from pytest_llmperf.server_config import is_secret

#: In ``command``: where ``env NAME=VALUE ...`` is to stand, for prefixes that forward no variables.
PLACEHOLDER = "{env}"
#: Launchers that start a program without the variables of their own environment, with the words by which each can be
#: told to forward them (which ones is then its own affair).
FORGETFUL: Mapping[str, tuple[str, ...]] = {
    "docker": (),
    "podman": ("--env-host",),
    "nerdctl": (),
    "kubectl": (),
    "oc": (),
    "sudo": ("-E", "--preserve-env"),
    "ssh": ("SendEnv",),
    "sshpass": ("SendEnv",),
}
#: Seconds that a server on another host may take to end once its launcher has, and between looks at it.
STILL_S = 5.0
POLL_S = 0.2
#: Options of ``ssh`` that take the next word.
SSH_TAKES = frozenset("BbcDEeFIiJLlmOoPpQRSWw")


def expand(
    argv: Sequence[str], env: Mapping[str, str], endpoint: Endpoint, where: str, command: Sequence[str] | None = None
) -> tuple[str, ...]:
    """``argv`` with the placeholder replaced by the declared variables.

    ``command`` is that part of ``argv`` which the user wrote, all of it by default: a launcher is looked for there.
    ``ssh`` hands one line to a shell on the other host, so every word behind the host is quoted for it, save those that
    the user put before the placeholder. Raises LaunchError where variables would be lost without a word, or where a
    secret would show in a process list.
    """
    words = list(argv)
    prefix = words[: len(argv if command is None else command)]
    ssh = next((i for i, word in enumerate(prefix) if PurePath(word).name == "ssh"), None)
    quoted = len(words) if ssh is None else _behind_host(words, ssh)
    if PLACEHOLDER in words:
        _refuse_secrets(env, endpoint, where)
        at = words.index(PLACEHOLDER)
        words[at : at + 1] = ["env", *(f"{k}={v}" for k, v in sorted(env.items()))] if env else []
        quoted = len(words) if ssh is None else max(at, quoted)
    elif env:
        _refuse_loss(prefix, env, where)
    return (*words[:quoted], *(shlex.quote(word) for word in words[quoted:]))


def still_up(launch: Launch, engine: Engine, patience: float = STILL_S) -> bool:
    """True when a server on another host goes on answering to its launch's key after it was stopped here: only its
    launcher is ours, and a container outlives its client."""
    end = time.monotonic() + patience
    while http.Exchange(launch.endpoint, "POST", COMPLETIONS, completion(engine, launch.config)).answer().ok:
        if time.monotonic() > end:
            return True
        time.sleep(POLL_S)  # it may be about to end
    return False


def _refuse_loss(prefix: Sequence[str], env: Mapping[str, str], where: str) -> None:
    launchers = [name for name in (PurePath(word).name for word in prefix) if name in FORGETFUL]
    launcher = next((n for n in launchers if not any(s in word for s in FORGETFUL[n] for word in prefix)), None)
    lost = sorted(set(env) - _forwarded(prefix))
    if launcher and lost:
        raise LaunchError(
            f"{where}: {launcher} would not carry {', '.join(lost)} to the engine: put {PLACEHOLDER!r} into the "
            'command before the program, as in ["ssh", "-tt", "host", "{env}", "python3", "-m", ...] or '
            '["docker", "run", ..., "image", "{env}", "vllm", "serve"]'
        )


def _forwarded(prefix: Sequence[str]) -> set[str]:
    """Variables that a container's client is told by name to take from its own environment (``-e NAME``)."""
    spaced = {name for option, name in pairwise(prefix) if option in ("-e", "--env")}
    return spaced | {word.removeprefix("--env=") for word in prefix if word.startswith("--env=")}


def _refuse_secrets(env: Mapping[str, str], endpoint: Endpoint, where: str) -> None:
    shown = sorted(k for k, v in env.items() if is_secret(k) and v != endpoint.api_key)
    if shown:
        raise LaunchError(
            f"{where}: {', '.join(shown)} would show in the process lists of both hosts: set it where the engine runs"
        )


def _behind_host(words: Sequence[str], ssh: int) -> int:
    """Where the other host's command begins, in the words of an ``ssh`` that stands at ``ssh``."""
    at = ssh + 1
    while at < len(words) and words[at].startswith("-"):
        # A cluster such as -ttp takes the next word when its last letter does, and -p22 has it already.
        takes = next((i for i, letter in enumerate(words[at]) if i and letter in SSH_TAKES), None)
        at += 2 if takes is not None and takes == len(words[at]) - 1 else 1
    return at + 1
