"""One table of options, their registration, and the options in force: command line > pytest ini > ``[tool.llmperf]`` >
default. Light to import: every pytest session does."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_llmperf.errors import ConfigError, nearest

if TYPE_CHECKING:
    from pytest_llmperf.engines.settings import EngineSettings
    from pytest_llmperf.tuning.presets import Presets


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


OPTIONS = (
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
    Option("previous", ("--llmperf-previous",), "JSON of the branch's last run: the HTML report tells what changed "
           "since", metavar="PATH"),
    Option("export", ("--llmperf-export",), "Write the results in a format that `llmperf export` knows, a "
           "plugin's too; repeat for several", (), many=True, metavar="NAME=PATH"),
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
    Option("cold", ("--llmperf-cold",), "Let launches count that filled the engine's compile cache, in place of "
           "one more launch each", False, bool),
    Option("warm_caches", ("--llmperf-warm-caches",), "Spend the first launch of each server also where it does not "
           "say that it loaded all from its compile cache", False, bool),
    Option("runner_pool", ("--llmperf-runner-pool",), "Name of a pool of alike machines; becomes part of the "
           "fingerprint", metavar="NAME"),
)  # fmt: skip

_PATHS = ("baselines", "log_dir", "json", "html", "previous")
_TRUTH = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def add_options(parser: pytest.Parser) -> None:
    """Register every option under one group. A short flag that another plugin owns is left to it."""
    group = parser.getgroup("llmperf", "performance of LLM servers")
    taken = _taken(parser)
    for option in OPTIONS:
        kwargs: dict[str, Any] = {"dest": f"llmperf_{option.name}", "default": None, "help": option.help}
        if option.type is bool:
            kwargs["action"] = "store_true"
        else:
            kwargs.update(action="append" if option.many else "store", metavar=option.metavar)
            if option.type is not str:
                kwargs["type"] = option.type
            if option.choices:
                kwargs["choices"] = option.choices
        group.addoption(*(f for f in option.flags if f not in taken), **kwargs)
        ini: Literal["args", "string"] = "args" if option.many else "string"
        parser.addini(f"llmperf_{option.name}", option.help, type=ini, default=None)
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
    return {name for group in groups if group is not None for one in group.options for name in one.names()}


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
    previous: Path | None
    export: tuple[tuple[str, Path], ...]
    """Report formats by name, and where each goes."""
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
    cold: bool
    warm_caches: bool
    runner_pool: str | None
    update: str | None
    ci: bool
    said: frozenset[str] = frozenset()
    """Names of the options that the command line gave."""
    engines: Mapping[str, EngineSettings] = field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    presets: Presets = field(default_factory=dict)

    @classmethod
    def from_pytest_config(cls, config: pytest.Config) -> Options:
        """Raises ``ConfigError`` that names the wrong key and the right ones."""
        from pytest_llmperf.engines.settings import engine_settings
        from pytest_llmperf.tuning.presets import load_presets

        here, root = config.invocation_params.dir, config.rootpath
        folder, where, table = project_settings(here if here.is_relative_to(root) else root)
        known = {s.name for s in OPTIONS} | {"engines", "profiles", "presets"}
        for key in table:
            if key not in known:
                raise ConfigError(f"{where}: unknown key {key!r}{nearest(key, known)}")
        read = cls(
            **{option.name: _value(config, option, folder, table, where) for option in OPTIONS},
            said=frozenset(s.name for s in OPTIONS if config.getoption(f"llmperf_{s.name}") is not None),
            update=config.getoption("llmperf_update"),
            ci=os.environ.get("CI", "").lower() not in ("", "0", "false"),
            engines={k: engine_settings(k, v, where) for k, v in _table(table, "engines", where).items()},
            profiles={k: dict(_as_table(v, k, where)) for k, v in _table(table, "profiles", where).items()},
            presets=load_presets(_table(table, "presets", where), f"{where}: presets"),
        )
        read.check()
        return read

    def check(self) -> None:
        """Raise ``ConfigError`` for options that contradict each other."""
        if self.update == "yes" and self.ci:
            raise ConfigError(
                "--update-baselines is refused where CI is set, so that nothing is accepted by accident: "
                "write --update-baselines=force, or gate without it"
            )
        if self.accept_regression and not self.update:
            raise ConfigError("--accept-regression does nothing alone: add --update-baselines")
        if self.cold and self.warm_caches:
            raise ConfigError(
                "--llmperf-cold keeps launches that compiled, --llmperf-warm-caches spends them: leave one of them out "
                "(`-o llmperf_warm_caches=false` overrides the configuration)"
            )
        if (self.html or "html" in dict(self.export)) and importlib.util.find_spec("jinja2") is None:
            raise ConfigError("an HTML report needs jinja2: python -m pip install 'pytest-llmperf[report]'")
        if self.url and self.launches > 1:
            raise ConfigError(
                f"--launches {self.launches} needs fresh launches, and --llmperf-url attaches to a server that this "
                "session may not restart: leave one of them out"
            )


def project_settings(start: Path) -> tuple[Path, str, Mapping[str, Any]]:
    """The settings in force in ``start``: of the nearest folder from there up that has ``llmperf.toml``, or
    ``[tool.llmperf]`` in its pyproject.toml; that folder, which relative paths in them start from, what to call them in
    a message, and the table. An empty table of ``start`` where there are none.

    Raises ``ConfigError`` that names a file which cannot be read.
    """
    for folder in (start, *start.parents):
        for name in ("llmperf.toml", "pyproject.toml"):
            data = _toml(folder / name)
            said = name if folder == start else str(folder / name)
            if data is None or (name == "pyproject.toml" and "llmperf" not in _table(data, "tool", said)):
                continue
            if name == "llmperf.toml":
                return folder, said, data
            return folder, f"[tool.llmperf] in {said}", _table(_table(data, "tool", said), "llmperf", said)
    return start, "[tool.llmperf]", {}


def _toml(path: Path) -> Mapping[str, Any] | None:
    if not path.is_file():
        return None
    import tomli  # here: only a session that measures has use for it

    try:
        return tomli.loads(path.read_text(encoding="utf-8"))
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: not valid TOML: {e}") from e
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror or e}") from e


def _table(data: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    return _as_table(data.get(key, {}), key, where)


def _as_table(value: Any, key: str, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {key} must be a table, not {type(value).__name__}")
    return value


def _value(config: pytest.Config, option: Option, folder: Path, table: Mapping[str, Any], where: str) -> Any:
    given = config.getoption(f"llmperf_{option.name}")
    ini = config.getini(f"llmperf_{option.name}")
    if given is not None:
        value, base = _checked(option, given, option.flags[0]), config.invocation_params.dir
    elif ini:
        value, base = _checked(option, ini, f"ini llmperf_{option.name}"), config.rootpath
    elif option.name in table:
        value, base = _checked(option, table[option.name], f"{where}: {option.name}"), folder
    else:
        value, base = option.default, folder if table else config.rootpath
    if option.name == "export":
        return tuple((name, base / Path(path).expanduser()) for name, _, path in (x.partition("=") for x in value))
    return base / Path(value).expanduser() if option.name in _PATHS and value else value


def _checked(option: Option, value: Any, where: str) -> Any:
    if option.many:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(x, str) and x.strip() for x in items):
            raise ConfigError(f"{where}: expected names, got {value!r}")
        for item in items if option.name == "export" else ():
            if not all(item.partition("=")):
                raise ConfigError(f"{where}: {item!r}: write NAME=PATH, such as bencher=bench.json")
        return tuple(dict.fromkeys(items))
    if option.type is bool:
        if str(value).lower() not in _TRUTH:
            raise ConfigError(f"{where}: expected true or false, got {value!r}")
        return _TRUTH[str(value).lower()]
    if option.type is str:
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f"{where}: expected text, got {value!r}")
        if option.choices and value not in option.choices:
            raise ConfigError(f"{where}: {value!r} is not one of {', '.join(option.choices)}")
        return value
    return _number(option, value, where)


def _number(option: Option, value: Any, where: str) -> int | float:
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number) or (option.type is int and not number.is_integer()):
        raise ConfigError(f"{where}: expected {'a whole number' if option.type is int else 'a number'}, got {value!r}")
    if option.least is not None and number < option.least:
        raise ConfigError(f"{where}: {value!r} is less than {option.least:g}")
    if option.below is not None and number >= option.below:
        raise ConfigError(f"{where}: {value!r} is not below {option.below:g} (it is a fraction)")
    return int(number) if option.type is int else number
