"""A server that somebody else runs (``--llmperf-url``): find out what it is, use it, never stop it."""

from __future__ import annotations

import os
import re
import time
from urllib.parse import urlsplit

from pytest_llmperf.engines.base import Endpoint, Engine
from pytest_llmperf.errors import ConfigError, LaunchError
from pytest_llmperf.server import http
from pytest_llmperf.server.attached_life import AttachedLife, launch_id, look
from pytest_llmperf.server.logs import Log
from pytest_llmperf.server.masking import Masker
from pytest_llmperf.server.readiness import COMPLETIONS, check_model, completion, completion_problem
from pytest_llmperf.server.running_server import Server, serving
from pytest_llmperf.server_config import MASK, ServerConfig, without_login

#: Seconds that its first completion may take (it may have kernels to compile).
PATIENCE_S = 300.0
#: What a URL and a key are made of: printable ASCII without a space.
_WORD = re.compile(r"[!-~]+")


def parse(url: str, api_key_env: str | None, option: str = "--llmperf-url") -> Endpoint:
    """``http(s)://host[:port][/path][/v1]``, with the key of the variable ``api_key_env``.

    Raises ConfigError that names ``option``; a key in the URL is refused, for it would be shown.
    """
    use = "use http://host:port or https://host"
    shown = without_login(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError(f"{option} is {shown!r}, which is no URL: {use}") from None
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.username or parts.password:
        raise ConfigError(
            f"{option} must not hold a password ({parts.scheme}://{MASK}@{parts.hostname}): put the key into the "
            f"variable {api_key_env or 'LLMPERF_API_KEY'}"
        )
    if parts.query or parts.fragment:
        raise ConfigError(f"{option} must end with the server's path, without ? or #: {use}")
    if parts.scheme not in ("http", "https") or not _is_host(parts.hostname) or not _WORD.fullmatch(url):
        raise ConfigError(f"{option} is {shown!r}, which is no URL of a server: {use}")
    if port == 0:
        raise ConfigError(f"{option} has a wrong port: use http://host:port")
    return Endpoint(
        host=str(parts.hostname),
        port=port or (443 if parts.scheme == "https" else 80),
        api_key=_key(api_key_env) if api_key_env else None,
        scheme=parts.scheme,
        path=parts.path.rstrip("/").removesuffix("/v1"),
    )


def _is_host(name: str | None) -> bool:
    try:
        return bool(name) and bool(str(name).encode("idna"))
    except UnicodeError:  # an empty or endless part
        return False


def _key(variable: str) -> str | None:
    """What ``variable`` holds, without the line end that a file or a secret store may have left. It is never shown."""
    if not _WORD.fullmatch(os.environ.get(variable, "").strip() or "none"):
        raise ConfigError(
            f"the variable {variable} holds what no HTTP header can carry as a key (a space, a line end, a character "
            "that is not ASCII): set it to the key alone, without `Bearer`"
        )
    return os.environ.get(variable, "").strip() or None


def attach(config: ServerConfig, engine: Engine, endpoint: Endpoint, api_key_env: str | None) -> Server:
    """Use the server at ``endpoint`` as ``config``. Raises LaunchError when it is silent or serves another model."""
    where = f"{config.label} at {endpoint.root_url}"
    masker = Masker([endpoint.api_key] if endpoint.api_key else [])

    def error(what: str, advice: str) -> LaunchError:
        return LaunchError(masker(f"{where}: {what}" + (f"\nwhat to do: {advice}" if advice else "")))

    began = time.monotonic()
    check_model(endpoint, engine.model_name(config), error)
    exchange = http.Exchange(endpoint, "POST", COMPLETIONS, completion(engine, config), timeout=PATIENCE_S)
    answer = exchange.answer()
    if answer.status == 0:
        raise error(f"no answer ({answer.text})", "check that the server is up and --llmperf-url is right")
    if answer.status in (401, 403):
        raise error(
            f"refused the API key (HTTP {answer.status})", f"put its key into {api_key_env or 'LLMPERF_API_KEY'}"
        )
    if problem := completion_problem(answer):
        raise error(problem, "")
    log = Log(None, masker)
    seen = look(endpoint, engine)
    return serving(
        engine,
        config,
        endpoint,
        AttachedLife(endpoint, engine, seen),
        log,
        id_=launch_id(endpoint, seen),
        started_at=time.time(),
        startup_s=time.monotonic() - began,
        attached=True,
        notes=[f"{endpoint.root_url}: {seen.disagreement}"] if seen.disagreement else [],
    )
