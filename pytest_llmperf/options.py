"""Every option of the plugin in one table, read as: command line > pytest ini > ``[tool.llmperf]`` > default."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import pytest
import tomli

from pytest_llmperf.engines.base import EngineSettings
from pytest_llmperf.errors import ConfigError


@dataclass(frozen=True)
class Spec:
    """One option: ``flags`` on the command line, ``llmperf_<name>`` in the ini, ``<name>`` in ``[tool.llmperf]``."""

    name: str
    flags: tuple[str, ...]
    help: str
    default: Any = None
    type: type = str
    many: bool = False
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    least: float | None = None


SPECS = (
    Spec("engine", ("--engine", "--llmperf-engine"), "Engine to run the performance tests on; repeat for several", (),
         many=True, metavar="NAME"),
    Spec("baselines", ("--baselines", "--llmperf-baselines"), "Folder of the committed baselines", "baselines",
         metavar="DIR"),
    Spec("launches", ("--launches", "--llmperf-launches"), "Launches of each server to measure on (more: tighter "
         "judgement, more start-up time)", 1, int, metavar="N", least=1),
    Spec("accept_regression", ("--accept-regression", "--llmperf-accept-regression"), "With --update-baselines: record "
         "slower results too, with this reason", metavar="REASON"),
    Spec("keep_servers", ("--keep-servers", "--llmperf-keep-servers"), "Leave servers up for the next run to reuse "
         "(llmperf servers stop ends them)", False, bool),
    Spec("url", ("--llmperf-url",), "Measure a server that is already up instead of launching one (API key from "
         "LLMPERF_API_KEY)", metavar="URL"),
    Spec("json", ("--llmperf-json",), "Write the results as JSON", metavar="PATH"),
    Spec("html", ("--llmperf-html",), "Write a self-contained HTML report", metavar="PATH"),
    Spec("confirm", ("--llmperf-confirm",), "Fresh launches that confirm a suspect before it fails", 2, int,
         metavar="N", least=0),
    Spec("inconclusive", ("--llmperf-inconclusive",), "What an inconclusive verdict does to its test", "skip",
         choices=("skip", "fail")),
    Spec("level", ("--llmperf-level",), "Chance that a session without any change is red, over all its gated metrics",
         0.01, float, metavar="P"),
    Spec("min_effect", ("--llmperf-min-effect",), "Smallest change that matters, as a fraction", 0.01, float,
         metavar="X", least=0),
    Spec("ignore_guards", ("--llmperf-ignore-guard",), "Guard that is shown but makes no verdict inconclusive; repeat "
         "for several", (), many=True, metavar="NAME"),
    Spec("gpu_wait", ("--llmperf-gpu-wait",), "Seconds to wait for busy GPUs before giving up", 0.0, float,
         metavar="S", least=0),
    Spec("parallel_measure", ("--llmperf-parallel-measure",), "Let measurements on disjoint GPUs overlap under xdist "
         "instead of taking turns", False, bool),
    Spec("startup_timeout", ("--llmperf-startup-timeout",), "Seconds a starting server may show no progress", 600.0,
         float, metavar="S", least=1),
    Spec("stop_grace", ("--llmperf-stop-grace",), "Seconds a server gets between the polite signal and SIGKILL", 5.0,
         float, metavar="S", least=0),
    Spec("log_dir", ("--llmperf-log-dir",), "Folder of the servers' logs, one file per launch", ".llmperf/logs",
         metavar="DIR"),
    Spec("warm_caches", ("--llmperf-warm-caches",), "Spend one discarded launch per server first, so that compile "
         "caches are warm", False, bool),
    Spec("runner_pool", ("--llmperf-runner-pool",), "Name of a pool of alike machines; becomes part of the fingerprint",
         metavar="NAME"),
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """The options in force, ill-typed values refused. Paths are absolute; ``update`` is None, "yes" or "force"."""

    engine: tuple[str, ...]
    baselines: Path
    launches: int
    accept_regression: str | None
    keep_servers: bool
    url: str | None
    json: Path | None
    html: Path | None
    confirm: int
    inconclusive: str
    level: float
    min_effect: float
    ignore_guards: tuple[str, ...]
    gpu_wait: float
    parallel_measure: bool
    startup_timeout: float
    stop_grace: float
    log_dir: Path
    warm_caches: bool
    runner_pool: str | None
    update: str | None
    ci: bool
    opted_in: bool
    engines: Mapping[str, EngineSettings] = field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def from_pytest_config(cls, config: pytest.Config) -> Options:
        """Raises ``ConfigError`` that names the wrong key and the right ones."""
        where, table = _project_table(config)
        known = {s.name for s in SPECS} | {"engines", "profiles"}
        for key in table:
            if key not in known:
                raise ConfigError(f"{where}: unknown key {key!r}{nearest(key, known)}")
        values = {spec.name: _value(config, spec, table, where) for spec in SPECS}
        for name in ("baselines", "log_dir"):
            values[name] = config.rootpath / values[name]
        for name in ("json", "html"):
            values[name] = Path.cwd() / values[name] if values[name] else None
        markexpr: str = config.getoption("markexpr", "") or ""
        return cls(
            **values,
            update=config.getoption("llmperf_update"),
            ci=os.environ.get("CI", "").lower() not in ("", "0", "false"),
            opted_in=bool(config.getoption("llmperf_engine")) or "perf" in markexpr.replace("(", " ").split(),
            engines={k: _engine_settings(k, v, where) for k, v in _table(table, "engines", where).items()},
            profiles={k: dict(_table({k: v}, k, where)) for k, v in _table(table, "profiles", where).items()},
        )


def add_options(parser: pytest.Parser) -> None:
    """Register every option under one group. A short flag that another plugin owns is left to it."""
    group = parser.getgroup("llmperf", "performance of LLM servers")
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
        _add(group, spec.flags, kwargs)
        ini: Literal["args", "string"] = "args" if spec.many else "string"
        parser.addini(f"llmperf_{spec.name}", spec.help, type=ini, default=None)
    # "=force" is an option string of its own: an optional argument would swallow a path that follows.
    for suffix, const, text in (
        ("", "yes", "Record new baselines and agreeing launches, start a new epoch after an improvement"),
        ("=force", "force", "The same where CI is set"),
    ):
        flags = (f"--update-baselines{suffix}", f"--llmperf-update-baselines{suffix}")
        _add(group, flags, {"dest": "llmperf_update", "action": "store_const", "const": const, "help": text})


def _add(group: pytest.OptionGroup, flags: tuple[str, ...], kwargs: dict[str, Any]) -> None:
    try:
        group.addoption(*flags, **kwargs)
    except ValueError:  # the short name is taken
        group.addoption(*(f for f in flags if f.startswith("--llmperf-")), **kwargs)


def nearest(word: str, known: Any) -> str:
    """`` (did you mean 'x'?)`` or, when nothing is near, the list of what there is."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else f"; there are: {', '.join(sorted(known))}"


def _project_table(config: pytest.Config) -> tuple[str, Mapping[str, Any]]:
    """``llmperf.toml``, else ``[tool.llmperf]`` of pyproject.toml in the root folder."""
    for name in ("llmperf.toml", "pyproject.toml"):
        path = config.rootpath / name
        if not path.is_file():
            continue
        try:
            data = tomli.loads(path.read_text(encoding="utf-8"))
        except (tomli.TOMLDecodeError, UnicodeDecodeError) as e:
            raise ConfigError(f"{path}: not valid TOML: {e}") from e
        if name == "llmperf.toml":
            return name, data
        return "[tool.llmperf] in pyproject.toml", _table(_table(data, "tool", name), "llmperf", name)
    return "[tool.llmperf]", {}


def _table(data: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {key} must be a table, not {type(value).__name__}")
    return value


def _value(config: pytest.Config, spec: Spec, table: Mapping[str, Any], where: str) -> Any:
    cli = config.getoption(f"llmperf_{spec.name}")
    if cli is not None:
        return _checked(spec, tuple(cli) if spec.many else cli, spec.flags[0])
    ini = config.getini(f"llmperf_{spec.name}")
    if ini:
        return _checked(spec, ini, f"ini llmperf_{spec.name}")
    if spec.name in table:
        return _checked(spec, table[spec.name], f"{where}: {spec.name}")
    return spec.default


def _checked(spec: Spec, value: Any, where: str) -> Any:
    if spec.many:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(x, str) for x in items):
            raise ConfigError(f"{where}: expected names, got {value!r}")
        return tuple(dict.fromkeys(items))
    if spec.type is bool:
        text = str(value).lower()
        if text not in ("true", "false", "1", "0", "yes", "no"):
            raise ConfigError(f"{where}: expected true or false, got {value!r}")
        return text in ("true", "1", "yes")
    if spec.type is str:
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f"{where}: expected text, got {value!r}")
    else:
        try:
            value = spec.type(value)
        except (TypeError, ValueError):
            raise ConfigError(f"{where}: expected {spec.type.__name__}, got {value!r}") from None
    if spec.choices and value not in spec.choices:
        raise ConfigError(f"{where}: {value!r} is not one of {', '.join(spec.choices)}")
    if spec.least is not None and not value >= spec.least:
        raise ConfigError(f"{where}: {value!r} is less than {spec.least:g}")
    if spec.name == "level" and not 0 < value < 1:
        raise ConfigError(f"{where}: {value!r} is not a probability between 0 and 1")
    return value


def _engine_settings(name: str, table: Any, where: str) -> EngineSettings:
    where = f"{where}: engines.{name}"
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table, not {type(table).__name__}")
    known = {f.name for f in fields(EngineSettings)}
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}{nearest(key, known)}")
    values = dict(table)
    command = values.get("command")
    if command is not None:
        if not isinstance(command, list) or not command or not all(isinstance(x, str) for x in command):
            raise ConfigError(f'{where}.command must be a list of words, like ["python", "-m", "server"]: {command!r}')
        values["command"] = tuple(command)
    env = values.get("env", {})
    if not isinstance(env, Mapping) or not all(isinstance(v, (str, int)) for v in env.values()):
        raise ConfigError(f"{where}.env must be a table of text values")
    values["env"] = {k: str(v) for k, v in env.items()}
    return EngineSettings(**values)
