"""The fallback transport: openai's own client, its raw bytes stamped as they come. For servers behind a proxy.

Everything that a proxy needs (CONNECT, authentication, certificates) stays openai's business. The stamps are this
process's, and TTFT holds what openai adds between its request and the wire.
"""

from __future__ import annotations

import time

import openai

from pytest_llmperf.engines.base import Endpoint
from pytest_llmperf.measure.client.body import Response
from pytest_llmperf.measure.client.compiler import Call, create, http_library, ordinary_client
from pytest_llmperf.measure.client.connection import Connection
from pytest_llmperf.measure.client.request_outcome import RequestOutcome, conclude
from pytest_llmperf.measure.client.wire import Stamped
from pytest_llmperf.measure.limits import Limits


class RawSender:
    """Plays requests one at a time on one openai client. Close it when done."""

    def __init__(self, endpoint: Endpoint, limits: Limits) -> None:
        self._client = ordinary_client(endpoint).with_options(timeout=limits.idle_s)

    def close(self) -> None:
        self._client.close()

    def send(self, call: Call, connection: Connection) -> RequestOutcome:
        """Stream one request to its end; what went wrong is in the outcome."""
        pieces: list[Stamped] = []
        status: int | None = None
        kind, error = "", None
        sent = time.monotonic_ns()
        try:
            with create(self._client, call.id, call.arguments) as response:
                status, kind = response.status_code, response.headers.get("content-type", "")
                for data in response.iter_bytes():
                    pieces.append(Stamped(time.monotonic_ns(), data))
        except openai.APIStatusError as refused:
            status = refused.status_code
            pieces.append(Stamped(time.monotonic_ns(), str(refused.message).encode()))
        except (openai.OpenAIError, http_library().HTTPError, OSError) as failure:
            error = str(failure.__cause__ or failure) or type(failure).__name__
        whole = Response(status, kind, tuple(pieces), error is None, error)
        return conclude(call, sent, whole, error, connection)
