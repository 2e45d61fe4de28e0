"""The options in force, each read as: command line > pytest ini > ``[tool.llmperf]`` > default."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
import tomli

from pytest_llmperf.engines.base import EngineSettings
from pytest_llmperf.errors import ConfigError, nearest
from pytest_llmperf.flags import SPECS, Option
from pytest_llmperf.tuning.presets import Presets, load_presets

_PATHS = ("baselines", "log_dir", "json", "html")
_TRUTH = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


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
    said: frozenset[str] = frozenset()
    """Names of the options that the command line gave."""
    engines: Mapping[str, EngineSettings] = field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    presets: Presets = field(default_factory=load_presets)

    @classmethod
    def from_pytest_config(cls, config: pytest.Config) -> Options:
        """Raises ``ConfigError`` that names the wrong key and the right ones."""
        where, table = _project_table(config.rootpath)
        known = {s.name for s in SPECS} | {"engines", "profiles", "presets"}
        for key in table:
            if key not in known:
                raise ConfigError(f"{where}: unknown key {key!r}{nearest(key, known)}")
        options = cls(
            **{spec.name: _value(config, spec, table, where) for spec in SPECS},
            said=frozenset(s.name for s in SPECS if config.getoption(f"llmperf_{s.name}") is not None),
            update=config.getoption("llmperf_update"),
            ci=os.environ.get("CI", "").lower() not in ("", "0", "false"),
            engines={k: _engine_settings(k, v, where) for k, v in _table(table, "engines", where).items()},
            profiles={k: dict(_as_table(v, k, where)) for k, v in _table(table, "profiles", where).items()},
            presets=load_presets(_table(table, "presets", where), f"{where}: presets"),
        )
        options.check()
        return options

    def check(self) -> None:
        """Raise ``ConfigError`` for options that contradict each other."""
        if self.update == "yes" and self.ci:
            raise ConfigError(
                "--update-baselines is refused where CI is set, so that nothing is accepted by accident: "
                "write --update-baselines=force, or gate without it"
            )
        if self.accept_regression and not self.update:
            raise ConfigError("--accept-regression does nothing alone: add --update-baselines")
        if self.html and importlib.util.find_spec("jinja2") is None:
            raise ConfigError("--llmperf-html needs jinja2: python -m pip install 'pytest-llmperf[report]'")
        if self.url and self.launches > 1:
            raise ConfigError(
                f"--launches {self.launches} needs fresh launches, and --llmperf-url attaches to a server that this "
                "session may not restart: leave one of them out"
            )


def _project_table(root: Path) -> tuple[str, Mapping[str, Any]]:
    """``llmperf.toml``, else ``[tool.llmperf]`` of pyproject.toml in the root folder."""
    for name in ("llmperf.toml", "pyproject.toml"):
        path = root / name
        if not path.is_file():
            continue
        try:
            data = tomli.loads(path.read_text(encoding="utf-8"))
        except (tomli.TOMLDecodeError, UnicodeDecodeError) as e:
            raise ConfigError(f"{path}: not valid TOML: {e}") from e
        except OSError as e:
            raise ConfigError(f"{path} cannot be read: {e.strerror or e}") from e
        if name == "llmperf.toml":
            return name, data
        return "[tool.llmperf] in pyproject.toml", _table(_table(data, "tool", name), "llmperf", name)
    return "[tool.llmperf]", {}


def _table(data: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    return _as_table(data.get(key, {}), key, where)


def _as_table(value: Any, key: str, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {key} must be a table, not {type(value).__name__}")
    return value


def _value(config: pytest.Config, spec: Option, table: Mapping[str, Any], where: str) -> Any:
    given = config.getoption(f"llmperf_{spec.name}")
    ini = config.getini(f"llmperf_{spec.name}")
    if given is not None:
        value, base = _checked(spec, given, spec.flags[0]), config.invocation_params.dir
    elif ini:
        value, base = _checked(spec, ini, f"ini llmperf_{spec.name}"), config.rootpath
    elif spec.name in table:
        value, base = _checked(spec, table[spec.name], f"{where}: {spec.name}"), config.rootpath
    else:
        value, base = spec.default, config.rootpath
    return base / Path(value).expanduser() if spec.name in _PATHS and value else value


def _checked(spec: Option, value: Any, where: str) -> Any:
    if spec.many:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(x, str) and x.strip() for x in items):
            raise ConfigError(f"{where}: expected names, got {value!r}")
        return tuple(dict.fromkeys(items))
    if spec.type is bool:
        if str(value).lower() not in _TRUTH:
            raise ConfigError(f"{where}: expected true or false, got {value!r}")
        return _TRUTH[str(value).lower()]
    if spec.type is str:
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f"{where}: expected text, got {value!r}")
        if spec.choices and value not in spec.choices:
            raise ConfigError(f"{where}: {value!r} is not one of {', '.join(spec.choices)}")
        return value
    return _number(spec, value, where)


def _number(spec: Option, value: Any, where: str) -> int | float:
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number) or (spec.type is int and not number.is_integer()):
        raise ConfigError(f"{where}: expected {'a whole number' if spec.type is int else 'a number'}, got {value!r}")
    if spec.least is not None and number < spec.least:
        raise ConfigError(f"{where}: {value!r} is less than {spec.least:g}")
    if spec.below is not None and number >= spec.below:
        raise ConfigError(f"{where}: {value!r} is not below {spec.below:g} (it is a fraction)")
    return int(number) if spec.type is int else number


def _engine_settings(name: str, table: Any, where: str) -> EngineSettings:
    where = f"{where}: engines.{name}"
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table, not {type(table).__name__}")
    known = {f.name for f in fields(EngineSettings)}
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}{nearest(key, known)}")
        _check_setting(key, value, f"{where}.{key}")
    values = dict(table)
    if "command" in values:
        values["command"] = tuple(values["command"])
    values["env"] = {k: str(v) for k, v in values.get("env", {}).items()}
    return EngineSettings(**values)


def _check_setting(key: str, value: Any, where: str) -> None:
    if key == "command":
        good = isinstance(value, list) and bool(value) and all(isinstance(x, str) for x in value)
        wanted = 'a list of words, like ["python", "-m", "server"]'
    elif key == "env":
        good = isinstance(value, Mapping) and all(type(v) in (str, int, float) for v in value.values())
        wanted = "a table of texts"
    elif key == "port":
        good, wanted = type(value) is int and 0 < value < 65536, "a port, 1 to 65535"
    elif key == "remote":
        good, wanted = isinstance(value, bool), "true or false"
    else:
        good, wanted = isinstance(value, str) and bool(value), "text"
    if not good:
        raise ConfigError(f"{where} must be {wanted}, not {value!r}")
