"""openai builds every request; this module keeps the bytes that it would have sent.

``openai`` stays the one place that knows the API: URL, authentication, headers and body are its own. It is given a
transport that takes the finished HTTP request and answers with nothing. It builds the first request of each kind, and
the others are that one with another prompt and another id, since it takes milliseconds to build one. Works on openai
1.x and 2.x (httpx) and 3.x (httpx2): the HTTP library is the one that openai's own default client derives from.
"""

from __future__ import annotations

import importlib
import json
import ssl
import urllib.request
from dataclasses import dataclass
from typing import Any

import h11
import openai

from pytest_llmperf.engines.base import Endpoint
from pytest_llmperf.errors import MeasurementError
from pytest_llmperf.measure.client.wire import Target

_ID = "X-Request-Id"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Call:
    """One request, ready to be sent. ``arguments`` are what openai was given (for the ``raw`` transport)."""

    id: str
    payload: bytes
    prompt_tokens: int
    output_tokens: int
    arguments: dict[str, Any]


def http_library() -> Any:
    """The module (``httpx`` or ``httpx2``) that this openai is built on."""
    base = next(c for c in openai.DefaultHttpxClient.__mro__ if c.__name__ == "Client")
    return importlib.import_module(base.__module__.partition(".")[0])


def proxy_for(endpoint: Endpoint) -> str | None:
    """The proxy that the environment names for this endpoint. A server on this host is always reached directly."""
    if endpoint.host in _LOOPBACK or urllib.request.proxy_bypass(endpoint.host):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(endpoint.scheme) or proxies.get("all")


def target_of(endpoint: Endpoint) -> Target:
    """The socket address of an endpoint; HTTPS is verified as httpx would (its context, so its certificates)."""
    tls: ssl.SSLContext | None = None
    if endpoint.scheme == "https":
        tls = http_library().create_ssl_context()
        tls.set_alpn_protocols(["http/1.1"])
    return Target(endpoint.host, endpoint.port, tls)


def ordinary_client(endpoint: Endpoint) -> openai.OpenAI:
    """A plain openai client without retries: proxies as openai honours them, but never to a server on this host."""
    plain = endpoint.scheme == "http" and proxy_for(endpoint) is None
    # without TLS: a context that trusts nobody, which spares the loading of certificates
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else http_library().create_ssl_context()
    return openai.OpenAI(
        api_key=endpoint.api_key or "none",
        base_url=endpoint.base_url,
        max_retries=0,
        http_client=openai.DefaultHttpxClient(trust_env=endpoint.host not in _LOOPBACK, verify=verify),
    )


class Compiler:
    """Turns request arguments into bytes with one openai client. Close it when done."""

    def __init__(self, endpoint: Endpoint) -> None:
        library = http_library()
        self._captured: Any = None
        self._kind: dict[str, Any] | None = None

        def capture(request: Any) -> Any:
            self._captured = request
            return library.Response(200, headers={"content-type": "text/event-stream"}, content=b"")

        self._client = openai.OpenAI(
            api_key=endpoint.api_key or "none",
            base_url=endpoint.base_url,
            max_retries=0,
            http_client=library.Client(transport=library.MockTransport(capture), trust_env=False),
        )

    def close(self) -> None:
        self._client.close()

    def compile(self, id: str, arguments: dict[str, Any], *, prompt_tokens: int, output_tokens: int) -> Call:
        """The bytes of one streamed request. Raises ``MeasurementError`` when openai refuses the arguments."""
        prompt = "messages" if "messages" in arguments else "prompt"
        kind = {name: None if name == prompt else value for name, value in arguments.items()}
        if kind != self._kind:
            short = {**arguments, prompt: arguments[prompt][:1]}  # openai looks at every token of it
            try:
                with create(self._client, id, short):
                    self._kind, self._head = kind, head(self._captured)
                    self._body = json.loads(self._captured.read())
            except openai.OpenAIError as error:
                raise MeasurementError(f"openai could not build the request {id}: {error}") from error
        body = json.dumps({**self._body, prompt: arguments[prompt]}, ensure_ascii=False, separators=(",", ":")).encode()
        own = b"%b: %b\r\ncontent-length: %d\r\n\r\n" % (_ID.encode(), id.encode(), len(body))
        return Call(id, self._head + own + body, prompt_tokens, output_tokens, arguments)


def create(client: openai.OpenAI, id: str, arguments: dict[str, Any]) -> Any:
    """openai's context manager of one streamed completion (chat when the arguments have messages)."""
    api: Any = client.chat.completions if "messages" in arguments else client.completions
    return api.with_streaming_response.create(**arguments, stream=True, extra_headers={_ID: id})


def head(request: Any) -> bytes:
    """The head of an httpx request in HTTP/1.1, asking for one answer on this connection and for no compression, but
    for its end: id, length and the empty line that follows."""
    ours = {b"connection": b"close", b"accept-encoding": b"identity"}
    left_out = {*ours, b"content-length", _ID.lower().encode()}
    headers = [(name, value) for name, value in request.headers.raw if name.lower() not in left_out]
    whole = h11.Request(method=request.method, target=request.url.raw_path, headers=[*headers, *ours.items()])
    return (h11.Connection(h11.CLIENT).send(whole) or b"").removesuffix(b"\r\n")
