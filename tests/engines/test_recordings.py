"""What each version of an engine that was seen shows of itself, as the readers find it in logs and bodies.

The table in ``docs/reference/engines.md`` is made of it: a reader that loses a field, or finds a new one, ends here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from pytest_llmperf.engines.base import Counters, EffectiveConfig
from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.engines.vllm.vllm_read import INFO
from pytest_llmperf.server_config import ServerConfig

from .probe import Recorded, sample, sample_json

ENGINES = builtin()
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "engines.md"
FIELDS = tuple(
    f.name for f in fields(EffectiveConfig) if f.name not in ("versions", "nccl_env", "other", "sources", "cache_state")
)
#: What is chosen besides, under the names that provenance has.
CHOICES = ("kv_cache_dtype", "moe_backend", "moe_runner_backend", "all_reduce_backends", "sampling_backend")


@dataclass(frozen=True)
class Recording:
    """One server of the past. ``silent``: what it has, and this version does not tell. ``without``: what it has not,
    and another of this version would tell. ``counters``: those of its metrics, where they were kept."""

    engine: str
    server: str
    log: str
    info: str | None = None
    silent: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    metrics: str | None = None

    @property
    def version(self) -> str:
        return self.log.split("-")[1]

    @property
    def name(self) -> str:
        return f"{self.engine} {self.version}, {self.server}"

    def effective(self) -> EffectiveConfig:
        paths = {"sglang": "/server_info", "vllm": INFO}
        bodies = {paths[self.engine]: sample_json(self.info)} if self.info else {}
        config = ServerConfig(engine=self.engine, model="MODEL")
        return ENGINES[self.engine].effective(config, Recorded(sample(self.log), bodies))


SPLIT = frozenset({"prefill_attention_backend", "decode_attention_backend"})
RECORDINGS = (
    Recording(
        "sglang",
        "H200",
        "sglang-0.5.17-h200.log",
        "sglang-0.5.17-h200-server_info.json",
        silent=frozenset({"moe_runner_backend"}),
        without=SPLIT | {"quantization", "speculative"},
    ),
    Recording(
        "sglang",
        "CPU",
        "sglang-0.5.23-cpu.log",
        "sglang-0.5.23-cpu-server_info.json",
        silent=frozenset({"moe_runner_backend"}),
        without=SPLIT | {"quantization", "speculative"},
        metrics="sglang-0.5.23-cpu.metrics",
    ),
    Recording(
        "sglang",
        "log lines of its source",
        "sglang-0.5.23-texts.log",
        silent=frozenset(
            {
                *("engine_version", "model", "dtype", "quantization", "cuda_graph", "prefix_cache", "speculative"),
                *("tp", "sampling_backend"),
            }
        ),
    ),
    Recording(
        "vllm",
        "H200",
        "vllm-0.26.0-h200.log",
        "vllm-0.26.0-h200-server_info.json",
        without=frozenset({"quantization", "speculative", "moe_backend", "all_reduce_backends", "kv_cache_dtype"}),
    ),
    Recording(
        "vllm",
        "CPU",
        "vllm-0.32.0-cpu.log",
        "vllm-0.32.0-cpu-server_info.json",
        silent=frozenset({"attention_backend", "sampling_backend"}),
        without=frozenset({"quantization", "moe_backend", "all_reduce_backends", "kv_cache_dtype"}),
        metrics="vllm-0.32.0-cpu-ngram.metrics",
    ),
    Recording(
        "vllm",
        "log lines of its source",
        "vllm-0.33.0-texts.log",
        silent=frozenset({"max_running_requests"}),
        without=frozenset({"quantization"}),
    ),
)


def told(effective: EffectiveConfig) -> dict[str, str]:
    """Field or choice to where it was read."""
    known = {name: effective.sources[name] for name in FIELDS if getattr(effective, name) is not None}
    return known | {name: "told" for name in CHOICES if name in effective.other}


def asked(engine: str) -> tuple[str, ...]:
    """What can be told of this engine: vLLM has one backend for both phases, and SGLang names no all-reduce."""
    absent = {"vllm": SPLIT | {"moe_runner_backend"}, "sglang": {"moe_backend", "all_reduce_backends"}}
    return tuple(name for name in (*FIELDS, *CHOICES) if name not in absent[engine])


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda r: r.name)
def test_a_version_shows_all_but_what_is_said(recording: Recording) -> None:
    missing = set(asked(recording.engine)) - told(recording.effective()).keys()
    assert missing == recording.silent | recording.without
    assert not recording.silent & recording.without


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda r: r.name)
def test_no_request_is_taken_for_an_answer(recording: Recording) -> None:
    effective = recording.effective()
    values = [*effective.other.values(), *(getattr(effective, name) for name in FIELDS)]
    assert "auto" not in [str(v).lower() for v in values]


def test_what_was_chosen() -> None:
    """Out of the texts of the newest sources, where no machine at hand could record them."""
    sglang, vllm = (r.effective() for r in RECORDINGS if r.info is None)
    assert (sglang.max_running_requests, sglang.custom_all_reduce) == (9, False)
    assert (sglang.decode_attention_backend, sglang.prefill_attention_backend) == ("trtllm_mla", "flashinfer")
    assert sglang.other == {"kv_cache_dtype": "fp8_e4m3", "moe_runner_backend": "flashinfer_trtllm"}
    assert (vllm.attention_backend, vllm.custom_all_reduce, vllm.tp) == ("FLASHINFER_MLA", False, 2)
    assert vllm.other == {
        **{"kv_cache_dtype": "fp8_e4m3", "moe_backend": "FlashInfer TRTLLM", "all_reduce_backends": "PYNCCL"},
        "sampling_backend": "flashinfer",
    }


@pytest.mark.parametrize("recording", [r for r in RECORDINGS if r.metrics], ids=lambda r: r.name)
def test_counters_that_a_measurement_needs_are_there(recording: Recording) -> None:
    counters = ENGINES[recording.engine].counters(sample(str(recording.metrics)))
    needed = {"generation_tokens", "prompt_tokens", "cached_tokens", "running", "waiting"}
    assert {f.name for f in fields(Counters) if getattr(counters, f.name) is not None} >= needed


def table() -> Iterator[str]:
    """Markdown: a row for each field, a column for each recording."""
    columns: list[Mapping[str, str]] = []
    for r in RECORDINGS:
        unknown = {**dict.fromkeys(r.silent, "not told"), **dict.fromkeys(r.without, "none here")}
        columns.append({**unknown, **told(r.effective())})
    yield f"| | {' | '.join(r.name for r in RECORDINGS)} |"
    yield f"|---|{'---|' * len(RECORDINGS)}"
    for name in (*FIELDS, *CHOICES):
        cells = [c.get(name, "-").replace("/server_info?config_format=json", "/server_info") for c in columns]
        yield f"| `{name}` | {' | '.join(cells)} |"


def test_the_reference_says_so() -> None:
    text = "\n".join(table())
    assert text in PAGE.read_text("utf-8"), f"put this table into {PAGE.name}:\n{text}"
