"""Where and how an engine is started on this machine: ``[tool.llmperf.engines.<name>]``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pytest_llmperf.errors import ConfigError, nearest


@dataclass(frozen=True)
class EngineSettings:
    """``[tool.llmperf.engines.<name>]``: where and how this engine is started on this machine.

    ``command`` replaces the adapter's default program (the flags are appended). ``host`` is where clients connect,
    ``bind`` what the server is told to listen on. ``remote`` says the server's processes are not on this host
    (``ssh``, ``srun``): sockets and GPUs are then not checked here. ``port`` fixes the port where the kernel of this
    host cannot choose one. ``api_key = false`` gives the server no key, where a front before the engine takes none.
    """

    command: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    host: str = "127.0.0.1"
    bind: str = "127.0.0.1"
    port: int | None = None
    remote: bool = False
    api_key: bool = True


def engine_settings(name: str, table: Any, where: str) -> EngineSettings:
    """What ``[tool.llmperf.engines.<name>]`` says. Raises ``ConfigError`` that names the key and what it takes."""
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
    elif key in ("remote", "api_key"):
        good, wanted = isinstance(value, bool), "true or false"
    else:
        good, wanted = isinstance(value, str) and bool(value), "text"
    if not good:
        raise ConfigError(f"{where} must be {wanted}, not {value!r}")
