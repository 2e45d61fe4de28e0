"""One running server as a test sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_llmperf.engines.base import EffectiveConfig
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.measure.workloads import Workload
from pytest_llmperf.server_config import ServerConfig
from pytest_llmperf.session.perf_test import PerfTest

if TYPE_CHECKING:
    import openai

    from pytest_llmperf.measure.run import Run
    from pytest_llmperf.server.pool import Server


class LlmServer:
    """One running server as a test uses it. Measurements on it take turns with every other run on this host."""

    def __init__(self, test: PerfTest, server: Server, measure: Callable[[Workload], Run]) -> None:
        self._test = test
        self._server = server
        self._run = measure

    @property
    def config(self) -> ServerConfig:
        """The declared config."""
        return self._server.launch.config

    @property
    def effective(self) -> EffectiveConfig:
        """What the engine says it resolved to; None in a field means unknown."""
        return self._server.launch.effective

    @property
    def base_url(self) -> str:
        """``http://host:port/v1``"""
        return self._server.launch.endpoint.base_url

    @property
    def launch_id(self) -> str:
        """Identity of this life of the server process, the unit of replication."""
        return self._server.launch.id

    @property
    def model(self) -> str:
        """The model name that requests must carry."""
        return self._server.launch.model

    @cached_property
    def client(self) -> openai.OpenAI:
        """An ``openai`` client of this server, without retries (a retry would hide a failure)."""
        import openai  # slow to import, and no measurement needs it

        key = self._server.launch.endpoint.api_key
        return openai.OpenAI(base_url=self.base_url, api_key=key or "none", max_retries=0)

    def stream(
        self,
        output_tokens: int = 256,
        prompt_tokens: int = 128,
        repetitions: int | None = None,
        *,
        max_repetitions: int | None = None,
        precision: float | None = None,
        chat: bool = False,
    ) -> Run:
        """Measure one stream: warm until steady, then repeat until the launch mean is known to ``precision``.

        Returns a ``Run`` with ``decode_tok_s``, ``ttft_ms``, ``tpot_ms``, ``itl_p50_ms``, ``itl_p99_ms``, ``e2e_ms``
        and, with speculative decoding, ``acceptance_length``, ``acceptance_rate``, ``steps_s``. Raises
        ``ServerDiedError`` when the server is gone.
        """
        return self._measure(
            output_tokens=output_tokens,
            prompt_tokens=prompt_tokens,
            repetitions=repetitions,
            max_repetitions=max_repetitions,
            precision=precision,
            chat=chat,
        )

    def load(
        self,
        concurrency: int = 8,
        *,
        requests: int | None = None,
        seconds: float | None = None,
        rate: float | None = None,
        output_tokens: int = 128,
        prompt_tokens: int = 128,
        repetitions: int | None = None,
        chat: bool = False,
    ) -> Run:
        """Measure several streams at once: a closed loop of ``concurrency``, or Poisson arrivals at ``rate`` per s.

        Bounded by ``requests`` (default: six per stream, of which the steady window holds five rounds) or ``seconds``.
        Returns a ``Run`` with ``output_tok_s``, ``stream_tok_s``, ``ttft_ms`` and the ITL metrics.
        """
        if requests is None and seconds is None:
            requests = 6 * concurrency
        return self._measure(
            output_tokens=output_tokens,
            prompt_tokens=prompt_tokens,
            repetitions=repetitions,
            concurrency=concurrency,
            requests=requests,
            seconds=seconds,
            rate=rate,
            chat=chat,
        )

    def close(self) -> None:
        """Close the client, if one was made; the server lives on in the pool."""
        if "client" in self.__dict__:
            self.client.close()

    def _measure(self, **asked: Any) -> Run:
        marked = self._test.perf.workload() if self._test.perf else {}
        given = {k: v for k, v in asked.items() if v is not None}
        try:
            workload = Workload(**{**marked, **given})
        except ConfigError as e:
            raise ConfigError(f"{self._test.nodeid}: {e}") from None
        if workload.max_repetitions < workload.repetitions:
            workload = replace(workload, max_repetitions=workload.repetitions)
        return self._run(workload)
