"""Services of a compose file as the ``docker run`` commands that start the same containers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_llmperf.cli.shell_script import SimpleCommand, expand
from pytest_llmperf.errors import ConfigError

#: Key of a service to option of ``run``: one for each entry of a list, one alone for a text.
_OPTIONS = {
    **{"volumes": "--volume", "devices": "--device", "cap_add": "--cap-add", "security_opt": "--security-opt"},
    **{"group_add": "--group-add", "env_file": "--env-file", "extra_hosts": "--add-host", "ipc": "--ipc"},
    **{"shm_size": "--shm-size", "runtime": "--runtime", "network_mode": "--network", "pid": "--pid"},
    **{"container_name": "--name", "restart": "--restart", "ports": "--publish", "hostname": "--hostname"},
    **{"working_dir": "--workdir", "user": "--user", "cpuset": "--cpuset-cpus", "mem_limit": "--memory"},
}
#: Of no matter for one server that the plugin starts and stops.
_IDLE = frozenset(
    {"expose", "healthcheck", "logging", "labels", "networks", "depends_on", "profiles", "stdin_open", "tty"}
    | {"pull_policy", "stop_grace_period", "init"}
)


def services(text: str, name: str, environ: Mapping[str, str]) -> Iterator[tuple[str, SimpleCommand]]:
    """Each service that names an image, with its command. Raises ``ConfigError`` where ``text`` is no compose file,
    where a key has no counterpart in ``docker run``, and where no YAML library is installed."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ConfigError(f"{name} needs a YAML library to be read: pip install 'pytest-llmperf[compose]'") from error
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is no YAML: {error}") from error
    found = data.get("services") if isinstance(data, dict) else None
    if not isinstance(found, dict) or not all(isinstance(service, dict) for service in found.values()):
        raise ConfigError(f"{name} is no compose file: it has no table `services`")
    for service, table in found.items():
        if "image" in table:
            words = _run(_expanded(table, environ), f"{name}: {service}")
            idle = ", ".join(key for key in table if key in _IDLE)
            notes = (f"left out of the service: {idle}",) if idle else ()
            yield str(service), SimpleCommand(tuple(words), {}, 1, notes)


def _expanded(value: Any, environ: Mapping[str, str]) -> Any:
    """Every text with its variables in place; ``$$`` is a dollar."""
    if isinstance(value, dict):
        return {key: _expanded(v, environ) for key, v in value.items()}
    if isinstance(value, list):
        return [_expanded(v, environ) for v in value]
    return "$".join(expand(part, environ) for part in value.split("$$")) if isinstance(value, str) else value


def _run(table: Mapping[str, Any], where: str) -> list[str]:
    known = {"image", "command", "entrypoint", "environment", "deploy", "ulimits", "privileged", "gpus"}
    unknown = sorted(set(table) - known - _OPTIONS.keys() - _IDLE)
    if unknown:
        raise ConfigError(
            f"{where}: no option of `docker run` is known for {', '.join(unknown)}; take it out, or paste the "
            "`docker run` command"
        )
    words = ["docker", "run"]
    for key, option in _OPTIONS.items():
        value = table.get(key, [])
        words += [f"{option}={v}" for v in (value if isinstance(value, list) else [value])]
    words += [f"--ulimit={k}={_limit(v)}" for k, v in (table.get("ulimits") or {}).items()]
    words += ["--privileged"] if table.get("privileged") else []
    words += [f"--gpus={g}" for g in _gpus(table)]
    environment = table.get("environment") or []
    pairs = (
        environment
        if isinstance(environment, list)
        else [k if v is None else f"{k}={v}" for k, v in environment.items()]
    )
    words += [f"--env={pair}" for pair in pairs]
    first, *more = _words(table.get("entrypoint")) or [""]
    words += [f"--entrypoint={first}"] if first else []
    return [*words, str(table["image"]), *more, *_words(table.get("command"))]


def _words(value: Any) -> list[str]:
    return shlex.split(value) if isinstance(value, str) else [str(v) for v in value or []]


def _limit(value: Any) -> str:
    return f"{value['soft']}:{value['hard']}" if isinstance(value, dict) else str(value)


def _gpus(table: Mapping[str, Any]) -> list[str]:
    """The devices that are reserved, as ``--gpus`` takes them."""
    reserved = ((table.get("deploy") or {}).get("resources") or {}).get("reservations") or {}
    found = [str(table["gpus"])] if "gpus" in table else []
    for device in reserved.get("devices") or []:
        ids = device.get("device_ids")
        found.append('"device=' + ",".join(map(str, ids)) + '"' if ids else str(device.get("count", "all")))
    return found
