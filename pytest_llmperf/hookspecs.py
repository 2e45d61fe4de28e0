"""What other plugins (entry point ``pytest11``) and the conftest.py at the root may add; each example is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_llmperf.engines.base import Engine
    from pytest_llmperf.measure.metrics import Metric
    from pytest_llmperf.records.results import SessionRecord
    from pytest_llmperf.server_config import ServerConfig


@pytest.hookspec
def pytest_llmperf_engines(config: pytest.Config) -> Iterable[Engine]:
    """Return engine adapters to add; one with the name of a built-in engine replaces it.

    ``llmperf ab`` knows them too, ``llmperf inspect --running`` those that replace one. A fork of vLLM with a flag
    and a name of its own::

        from pytest_llmperf.engines.vllm import VLLM


        class OurFork(VLLM):
            name = "ourfork"
            program = ("ourfork", "serve")
            flags = {**VLLM.flags, "quantization": "weight_format"}


        def pytest_llmperf_engines(config):
            return [OurFork()]
    """
    raise NotImplementedError  # a specification: nobody calls it


@pytest.hookspec
def pytest_llmperf_metrics(config: pytest.Config) -> Iterable[Metric]:
    """Return metrics to add, each with a name that none has yet.

    ``@perf(metric=...)`` knows them, and every run of ``llm_server`` has them where ``compute`` gives values. The
    slowest first token of a run, which differs more from launch to launch than a median does::

        from pytest_llmperf import Metric


        def slowest(requests):
            return [max(r.ttft_ms for r in requests)]


        def pytest_llmperf_metrics(config):
            what = "longest time to the first token among the requests of a run"
            return [Metric("ttft_max_ms", "ms", False, what, launch_spread=0.25, compute=slowest)]
    """
    raise NotImplementedError


@pytest.hookspec
def pytest_llmperf_fingerprint(config: pytest.Config, server: ServerConfig) -> Mapping[str, str]:
    """Return fields to add to the fingerprint of every baseline of ``server`` (name to text).

    Launches with other values are not comparable. The firmware of a network card, as a file of the host tells it::

        from pathlib import Path


        def pytest_llmperf_fingerprint(config, server):
            told = Path("/etc/nic-firmware")
            return {"nic_firmware": told.read_text().strip()} if server.tp > 1 and told.exists() else {}
    """
    raise NotImplementedError


@pytest.hookspec
def pytest_llmperf_report_formats(config: pytest.Config) -> Mapping[str, Callable[[SessionRecord], str]]:
    r"""Return report formats to add: a name, which none may have yet, and the function that makes the text.

    ``--llmperf-export tsv=out.tsv`` writes it at the end of a session, ``llmperf export tsv report.json`` from a stored
    report. A line for each result::

        def tsv(session):
            lines = [f"{r.nodeid}\t{r.metric}\t{r.value}\t{r.unit}\t{r.verdict}" for r in session.results]
            return "\n".join(["test\tmetric\tvalue\tunit\tverdict", *lines, ""])


        def pytest_llmperf_report_formats(config):
            return {"tsv": tsv}
    """
    raise NotImplementedError
