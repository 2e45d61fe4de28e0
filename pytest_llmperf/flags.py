"""Every option of the plugin in one table, and its registration. Light to import: every pytest session does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import pytest


@dataclass(frozen=True)
class Option:
    """One option: ``flags`` on the command line, ``llmperf_<name>`` in the ini, ``<name>`` in ``[tool.llmperf]``.

    Numbers must lie in ``least`` to ``below``, the latter excluded.
    """

    name: str
    flags: tuple[str, ...]
    help: str
    default: Any = None
    type: type = str
    many: bool = False
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    below: float | None = None


SPECS = (
    Option("engine", ("--engine", "--llmperf-engine"), "Engine to run the performance tests on; repeat for several", (),
           many=True, metavar="NAME"),
    Option("baselines", ("--baselines", "--llmperf-baselines"), "Folder of the committed baselines", "baselines",
           metavar="DIR"),
    Option("launches", ("--launches", "--llmperf-launches"), "Launches of each server to measure on (more: "
           "tighter judgement, more start-up time)", 1, int, metavar="N", least=1),
    Option("accept_regression", ("--accept-regression", "--llmperf-accept-regression"), "With --update-baselines: "
           "record slower results too, with this reason", metavar="REASON"),
    Option("keep_servers", ("--keep-servers", "--llmperf-keep-servers"), "Leave servers up for the next run to reuse "
           "(llmperf servers stop ends them)", False, bool),
    Option("url", ("--llmperf-url",), "Measure a server that is already up instead of launching one (API key from "
           "LLMPERF_API_KEY)", metavar="URL"),
    Option("json", ("--llmperf-json",), "Write the results as JSON", metavar="PATH"),
    Option("html", ("--llmperf-html",), "Write a self-contained HTML report", metavar="PATH"),
    Option("confirm", ("--llmperf-confirm",), "Fresh launches that confirm a suspect before it fails (0: one look "
           "decides)", 2, int, metavar="N", least=0),
    Option("inconclusive", ("--llmperf-inconclusive",), "What an inconclusive verdict does to its test", "skip",
           choices=("skip", "fail")),
    Option("level", ("--llmperf-level",), "Chance that a session without any change is red, over all its gated metrics",
           0.01, float, metavar="P", least=1e-9, below=0.5),
    Option("min_effect", ("--llmperf-min-effect",), "Smallest change that matters, as a fraction", 0.01,
           float, metavar="X", least=0, below=1),
    Option("ignore_guards", ("--llmperf-ignore-guard",), "Guard that is shown but makes no verdict inconclusive; "
           "repeat for several", (), many=True, metavar="NAME"),
    Option("gpu_wait", ("--llmperf-gpu-wait",), "Seconds to wait for busy GPUs before giving up", 0.0, float,
           metavar="S", least=0),
    Option("parallel_measure", ("--llmperf-parallel-measure",), "Let measurements on disjoint GPUs overlap under xdist "
           "instead of taking turns", False, bool),
    Option("startup_timeout", ("--llmperf-startup-timeout",), "Seconds a starting server may show no progress", 600.0,
           float, metavar="S", least=1),
    Option("stop_grace", ("--llmperf-stop-grace",), "Seconds a server gets between the polite signal and SIGKILL", 5.0,
           float, metavar="S", least=0),
    Option("log_dir", ("--llmperf-log-dir",), "Folder of the servers' logs, one file per launch", ".llmperf/logs",
           metavar="DIR"),
    Option("warm_caches", ("--llmperf-warm-caches",), "Spend one discarded launch per server first, so that compile "
           "caches are warm", False, bool),
    Option("runner_pool", ("--llmperf-runner-pool",), "Name of a pool of alike machines; becomes part of the "
           "fingerprint", metavar="NAME"),
)  # fmt: skip

_NEGATED = re.compile(r"\bnot\s+(?:\([^()]*\)|[\w.:+-]+)")
_PERF = re.compile(r"(?<![\w.:+-])perf(?![\w.:+-])")


def opted_in(config: pytest.Config) -> bool:
    """Whether this session measures: ``--engine`` was given, or ``-m`` asks for ``perf`` (``not perf`` does not)."""
    expression: str = config.getoption("markexpr", "") or ""
    return bool(config.getoption("llmperf_engine") or _PERF.search(_NEGATED.sub("", expression)))


def add_options(parser: pytest.Parser) -> None:
    """Register every option under one group. A short flag that another plugin owns is left to it."""
    group = parser.getgroup("llmperf", "performance of LLM servers")
    taken = _taken(parser)
    for spec in SPECS:
        kwargs: dict[str, Any] = {"dest": f"llmperf_{spec.name}", "default": None, "help": spec.help}
        if spec.type is bool:
            kwargs["action"] = "store_true"
        else:
            kwargs.update(action="append" if spec.many else "store", metavar=spec.metavar)
            if spec.type is not str:
                kwargs["type"] = spec.type
            if spec.choices:
                kwargs["choices"] = spec.choices
        group.addoption(*(f for f in spec.flags if f not in taken), **kwargs)
        ini: Literal["args", "string"] = "args" if spec.many else "string"
        parser.addini(f"llmperf_{spec.name}", spec.help, type=ini, default=None)
    # "=force" is an option string of its own: an optional argument would swallow a path that follows.
    for suffix, const, text in (
        ("", "yes", "Record new baselines and agreeing launches, start a new epoch after an improvement"),
        ("=force", "force", "The same where CI is set"),
    ):
        flags = (f"--update-baselines{suffix}", f"--llmperf-update-baselines{suffix}")
        group.addoption(
            *(f for f in flags if f not in taken), dest="llmperf_update", action="store_const", const=const, help=text
        )


def _taken(parser: pytest.Parser) -> set[str]:
    """Option strings that other plugins have registered so far. pytest has no public way to ask for them."""
    groups = [*getattr(parser, "_groups", ()), getattr(parser, "_anonymous", None)]
    return {name for group in groups if group is not None for option in group.options for name in option.names()}
