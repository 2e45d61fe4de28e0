"""Small control-plane requests to one server: no proxies, no redirects, bounded bodies. Never used to measure."""

from __future__ import annotations

import http.client
import json
import selectors
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmperf.engines.base import Endpoint

#: Bytes of a body that are read at most.
LIMIT = 32 << 20
#: Seconds to wait for a connection (a request may wait longer for its answer).
CONNECT_S = 5.0
#: Seconds for a question about its resolved configuration: vLLM runs a dozen programs (pip among them) to answer one.
PROBE_S = 60.0


@dataclass(frozen=True)
class HttpAnswer:
    """An HTTP status with its body; ``status`` is 0 when there was no answer, and ``text`` then says why."""

    status: int
    text: str

    @property
    def ok(self) -> bool:
        return self.status == 200

    def json(self) -> Any | None:
        """The parsed body, or None when it is not JSON."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None


class Exchange:
    """One request under way. ``ready(seconds)`` waits for the answer to begin; ``answer()`` reads it."""

    def __init__(
        self, endpoint: Endpoint, method: str, path: str, body: Mapping[str, Any] | None = None, timeout: float = 10.0
    ) -> None:
        kind = http.client.HTTPSConnection if endpoint.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(endpoint.host, endpoint.port, timeout=min(timeout, CONNECT_S))
        self._error: str | None = None
        headers = {"Accept": "*/*", "Connection": "close"}
        if endpoint.api_key:
            headers["Authorization"] = f"Bearer {endpoint.api_key}"
        data = None
        if body is not None:
            data = json.dumps(body)
            headers["Content-Type"] = "application/json"
        try:
            self._connection.request(method, endpoint.path + path, body=data, headers=headers)
            if self._connection.sock is not None:
                self._connection.sock.settimeout(timeout)
        except (OSError, http.client.HTTPException) as e:
            self._error = _reason(e)

    def ready(self, seconds: float) -> bool:
        sock = self._connection.sock
        if self._error is not None or sock is None:
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            return bool(selector.select(seconds))

    def answer(self) -> HttpAnswer:
        try:
            if self._error is not None:
                return HttpAnswer(0, self._error)
            response = self._connection.getresponse()
            data = response.read(LIMIT)
            if response.length and len(data) < LIMIT:
                return HttpAnswer(0, "the connection was closed in the middle of the answer")
            return HttpAnswer(response.status, data.decode("utf-8", "replace"))
        except (OSError, http.client.HTTPException) as e:
            return HttpAnswer(0, _reason(e))
        finally:
            self.close()

    def close(self) -> None:
        self._connection.close()


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def get(endpoint: Endpoint, path: str, timeout: float = 10.0) -> HttpAnswer:
    """GET ``path`` with the endpoint's API key. Never raises for what a server does."""
    return Exchange(endpoint, "GET", path, timeout=timeout).answer()


class LiveProbe:
    """``engines.base.Probe`` over a running server. ``log`` is read anew each time."""

    def __init__(self, endpoint: Endpoint, log: Callable[[], str], timeout: float = PROBE_S) -> None:
        self._endpoint = endpoint
        self._log = log
        self._timeout = timeout

    @property
    def log(self) -> str:
        return self._log()

    def text(self, path: str) -> str | None:
        answer = get(self._endpoint, path, self._timeout)
        return answer.text if answer.ok else None

    def json(self, path: str) -> Any | None:
        answer = get(self._endpoint, path, self._timeout)
        return answer.json() if answer.ok else None
