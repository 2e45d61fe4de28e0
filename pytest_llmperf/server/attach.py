"""A server that somebody else runs (``--llmperf-url``): find out what it is, use it, never stop it."""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from pytest_llmperf.engines.base import Endpoint, Engine
from pytest_llmperf.errors import ConfigError, LaunchError
from pytest_llmperf.server import http
from pytest_llmperf.server.launch import Launch, new_id
from pytest_llmperf.server.logs import Log
from pytest_llmperf.server.masking import Masker
from pytest_llmperf.server.process import Remains
from pytest_llmperf.server.readiness import COMPLETIONS, check_model, completion, completion_problem
from pytest_llmperf.server.running_server import Server, mismatch_text
from pytest_llmperf.server_config import MASK, ServerConfig

#: Seconds that its first completion may take (it may have kernels to compile).
PATIENCE_S = 300.0
_BORN = re.compile(r"^process_start_time_seconds(?:\{[^}]*\})? ([0-9.e+]+)", re.MULTILINE)


@dataclass(frozen=True)
class AttachedLife:
    """Somebody else's server: it lives as long as it answers, and is never stopped from here."""

    def ended(self, wait: float) -> str | None:
        return None

    def ask_to_stop(self) -> None:
        return

    def stop(self) -> Remains:
        return Remains()


def parse(url: str, api_key_env: str | None) -> Endpoint:
    """``http(s)://host[:port][/path][/v1]``. Raises ConfigError; a key in the URL is refused, for it would be shown."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise ConfigError("--llmperf-url has a wrong port: use http://host:port") from None
    if parts.username or parts.password:
        raise ConfigError(
            f"--llmperf-url must not hold a password ({parts.scheme}://{MASK}@{parts.hostname}): put the key into the "
            f"variable {api_key_env or 'LLMPERF_API_KEY'}"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--llmperf-url is {url!r}: use http://host:port or https://host")
    return Endpoint(
        host=parts.hostname,
        port=port or (443 if parts.scheme == "https" else 80),
        api_key=os.environ.get(api_key_env) if api_key_env else None,
        scheme=parts.scheme,
        path=parts.path.rstrip("/").removesuffix("/v1"),
    )


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
    effective = engine.effective(config, http.LiveProbe(endpoint, log.text))
    mismatches = engine.mismatches(config, effective)
    launch = Launch(
        id=_identity(endpoint, engine),
        config=config,
        endpoint=endpoint,
        effective=effective,
        startup_s=time.monotonic() - began,
        started_at=time.time(),
        model=engine.model_name(config),
        cache_state=effective.cache_state,
        attached=True,
        notes=tuple(mismatch_text(m) for m in mismatches),
    )
    return Server(launch, engine, AttachedLife(), log, mismatches)


def _identity(endpoint: Endpoint, engine: Engine) -> str:
    """The same for every run that meets this life of the server, so that it never counts as two launches.

    Its process start time (Prometheus' standard metric) makes a restart another launch; without it every visit to that
    URL counts as the same one.
    """
    metrics = http.get(endpoint, engine.metrics_path) if engine.metrics_path else http.HttpAnswer(0, "")
    born = _BORN.search(metrics.text) if metrics.ok else None
    stamp = new_id(float(born.group(1))).rpartition("-")[0] if born else "attached"
    mark = hashlib.sha256(f"{endpoint.root_url} {stamp}".encode()).hexdigest()[:8]
    return f"{stamp}-{mark}"
