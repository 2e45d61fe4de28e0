"""Hand-made sessions that cover what a report can meet. All numbers are invented."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from pytest_llmperf.records.gaps_and_sweeps import Curve, CurvePoint, Effect, Gap, Sweep
from pytest_llmperf.records.histories import ChangePoint, History, HistoryPoint
from pytest_llmperf.records.results import (
    BaselineRef,
    Difference,
    Distribution,
    LaunchRecord,
    LaunchValues,
    Result,
    ServerRecord,
    SessionRecord,
    message,
)

NCCL = {
    "NCCL_ALGO": "Ring",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_NTHREADS": "512",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_PROTO": "LL",
}
SGLANG = ServerRecord(
    key="3f2a91c0b7de",
    engine="sglang",
    config={
        "engine": "sglang",
        "model": "moonshotai/Kimi-K2.5",
        "tp": 8,
        "attention_backend": "flashinfer",
        "nccl": NCCL,
        "env": {"HF_TOKEN": "***"},
        "flags": {"disable_custom_all_reduce": True, "num_continuous_decode_steps": 4},
    },
    effective={
        "engine_version": "0.5.17",
        "attention_backend": "flashinfer",
        "cuda_graph": True,
        "max_running_requests": 48,
        "versions": {"sglang": "0.5.17", "torch": "2.9.1", "nccl": "2.28.3"},
    },
    launches=(
        LaunchRecord("20261103T101500-a1", 212.4, "cold", ".llmperf/logs/sglang-a1.log"),
        LaunchRecord("20261103T102400-b2", 181.0, "warm", ".llmperf/logs/sglang-b2.log"),
        LaunchRecord("20261103T103200-c3", 183.7, "warm", ".llmperf/logs/sglang-c3.log"),
    ),
)
VLLM = ServerRecord(
    key="9be07745aa10",
    engine="vllm",
    config={"engine": "vllm", "model": "moonshotai/Kimi-K2.5", "tp": 8},
    effective={"engine_version": "0.26.0", "attention_backend": "FLASHINFER_MLA", "cuda_graph": True},
    launches=(LaunchRecord("20261103T104100-d4", 241.9, "warm", ".llmperf/logs/vllm-d4.log"),),
)
BROKEN = ServerRecord(
    key="77aa01ff02c3",
    engine="vllm",
    config={"engine": "vllm", "model": "moonshotai/Kimi-K2.5", "tp": 8, "attention_backend": "TRITON_MLA"},
    effective={},
    failures=("vllm Kimi-K2.5 tp=8 did not start (31.2 s): out of GPU memory; full log: .llmperf/logs/vllm-e5.log",),
)

SESSION = {
    "started": "2026-11-03T10:14:31Z",
    "duration_s": 2214.0,
    "command": "pytest -m perf --engine sglang --engine vllm",
    "gated": 10,
    "alpha": 0.001004,
    "level": 0.01,
    "host": "b200-07",
    "hardware": {
        "gpus": [{"name": "NVIDIA B200", "memory_mib": 183359, "driver": "580.65"}] * 8,
        "cpu": "AMD EPYC 9575F",
        "cores": 128,
        "memory_gb": 2267.0,
    },
    "versions": {"pytest-llmperf": "0.1.0", "pytest": "9.2.0", "python": "3.12.7"},
    "messages": [
        message("unused", "baselines/test_old_name.sglang.1a2b3c4d.toml belongs to no test of this run"),
        message("update", "recorded 1 launch of test_load in baselines/test_load.sglang.3f2a91c0.toml"),
        message("refused", "not recorded: test_single_stream regressed (give --accept-regression REASON)"),
    ],
}


def _result(name: str, verdict: str, **fields: Any) -> Result:
    base = Result(
        nodeid=f"tests/perf/test_decode.py::{name}",
        test=f"tests/perf/test_decode.py::{name}",
        engine="sglang",
        server=SGLANG.key,
        metric="decode_tok_s",
        unit="tok/s",
        higher_is_better=True,
        verdict=verdict,
        alpha=0.001004,
        nu=8.0,
        location="tests/perf/test_decode.py:14",
        workload={"prompt_tokens": 128, "output_tokens": 256, "repetitions": 5, "concurrency": 1},
        fingerprint={"gpu": "8 x NVIDIA B200", "compute_capability": "10.0", "config": SGLANG.key},
        provenance={"engine version": "0.5.17", "driver": "580.65", "NCCL": "2.28.3"},
        measurement_s=41.5,
    )
    return replace(base, **fields)


def launches(
    *values: tuple[float, ...], ids: tuple[str, ...] = (), roles: tuple[str, ...] = ()
) -> tuple[LaunchValues, ...]:
    ids = ids or tuple(x.id for x in SGLANG.launches)
    roles = roles or ("screen",) + ("confirm",) * (len(values) - 1)
    return tuple(LaunchValues(ids[i], v, sorted(v)[len(v) // 2], roles[i]) for i, v in enumerate(values))


_ITL = tuple(round(500 * math.exp(-((i - 8) ** 2) / 25)) for i in range(32))
WAITS = (
    Distribution(
        "ttft_ms", 15, {"p0": 138.2, "p50": 141.0, "p90": 149.5, "p95": 160.4, "p99": 188.0, "p100": 191.2},
        (138.2, 148.8, 159.4, 170.0, 180.6, 191.2), (13, 1, 0, 0, 1),
    ),
    Distribution(
        "itl_ms", sum(_ITL) + 19, {"p0": 14.9, "p50": 15.7, "p90": 16.1, "p95": 16.4, "p99": 17.2, "p100": 88.1},
        tuple(14.9 + 0.1 * i for i in range(33)), _ITL,
    ),
)  # fmt: skip
PASSED = _result(
    "test_long_prompt", "passed", value=79.93, band=(78.41, 82.97), mde=0.0213, change=-0.00932,
    baseline=BaselineRef("test_long_prompt.sglang.3f2a91c0.toml", 5, 80.68, 12.0),
    launches=launches((79.91, 80.02, 79.93, 79.88, 79.97)), location="tests/perf/test_decode.py:31",
)  # fmt: skip
REGRESSED = _result(
    "test_single_stream", "regressed", value=63.61, band=(80.87, 84.16), target=82.5, mde=0.0209, change=-0.22903,
    baseline=BaselineRef("test_single_stream.sglang.3f2a91c0.toml", 5, 82.51, 3.0),
    launches=launches(
        (63.4, 63.62, 63.7, 63.58, 63.55), (63.8, 63.69, 63.75, 63.71, 63.66), (63.5, 63.47, 63.55, 63.61, 63.52)
    ),
    reasons=(
        "63.61 tok/s is below the band on 2 fresh launches",
        "target 82.5 tok/s: the upper limit 64.4 is under it",
    ),
    differences=(
        Difference("engine version", "0.5.16", "0.5.17"),
        Difference("attention backend", "trtllm_mla", "flashinfer"),
        Difference("NCCL_PROTO", "-", "LL"),
    ),
    latencies=WAITS,
)  # fmt: skip
IMPROVED = _result(
    "test_ttft", "improved", metric="ttft_ms", unit="ms", higher_is_better=False, value=141.2, band=(158.3, 171.9),
    mde=0.041, change=-0.1442, baseline=BaselineRef("test_ttft.sglang.3f2a91c0.toml", 3, 165.0, 40.0),
    launches=launches((141.0, 141.9, 140.8, 141.2, 143.3)), location="tests/perf/test_decode.py:44",
)  # fmt: skip
INCONCLUSIVE = _result(
    "test_acceptance", "inconclusive", metric="acceptance_length", unit="tokens/step", value=2.411, band=(2.35, 2.6),
    mde=0.055, change=-0.0252, baseline=BaselineRef("test_acceptance.sglang.3f2a91c0.toml", 4, 2.473, 1.0),
    launches=launches((2.41, 2.43, 2.39, 2.411, 2.42)), location="tests/perf/test_decode.py:60",
    guards=(
        {"name": "gpu clock", "tripped": True, "evidence": "SM clock 480 MHz, under 70 % of 1965 MHz",
         "advice": "look for a power cap or a stuck clock", "value": 480.0, "limit": 1375.5},
        {"name": "host load", "tripped": False, "evidence": "0.4 of 128 cores busy with others"},
    ),
)  # fmt: skip
NO_BASELINE = _result(
    "test_new", "no_baseline", value=80.0, launches=launches((79.8, 80.0, 80.1, 80.05, 79.95)),
    reasons=("no baseline for this test on this hardware",), location="tests/perf/test_decode.py:72",
)  # fmt: skip
RECORDED = replace(
    NO_BASELINE, nodeid="tests/perf/test_decode.py::test_first", test="tests/perf/test_decode.py::test_first",
    reasons=(),
    launches=launches((79.8, 80.0, 80.1, 80.05, 79.95), roles=("record",)),
)  # fmt: skip
NOT_COMPARABLE = _result(
    "test_moved", "not_comparable", value=77.2, launches=launches((77.1, 77.2, 77.3, 77.25, 77.15)),
    reasons=("the only baseline is for other hardware: gpu 8 x NVIDIA H200 there, 8 x NVIDIA B200 here",),
    differences=(Difference("gpu", "8 x NVIDIA H200", "8 x NVIDIA B200"),), location="tests/perf/test_decode.py:80",
)  # fmt: skip
INVALID = _result(
    "test_tools", "invalid", value=None, launches=launches((80.1, float("nan"), 79.9, 80.0, 80.2)),
    reasons=("request 2: 117 tokens instead of 256 (finish reason stop)",), location="tests/perf/test_decode.py:95",
)  # fmt: skip
BELOW_TARGET = _result(
    "test_goal", "below_target", value=80.1, band=(78.41, 82.97), target=90.0, mde=0.0213, change=-0.0072,
    baseline=BaselineRef("test_goal.sglang.3f2a91c0.toml", 5, 80.68, 12.0), launches=launches((80.0, 80.1, 80.2)),
    reasons=("target 90: 11.0% credibly short (upper limit 81.2)",), location="tests/perf/test_decode.py:101",
)  # fmt: skip
ERROR = _result(
    "test_died", "error", reasons=("sglang Kimi-K2.5 tp=8, launch f6, died: out of GPU memory",),
    location="tests/perf/test_decode.py:105",
)  # fmt: skip
PRIOR_ONLY = _result(
    "test_load[64]", "passed", metric="output_tok_s", unit="tok/s", value=2371.0, band=(2230.0, 2478.0), mde=0.067,
    change=0.0085, baseline=BaselineRef("test_load.sglang.3f2a91c0.toml", 1, 2351.0, 0.2, prior_only=True),
    launches=launches((2370.0, 2371.0, 2368.0, 2375.0, 2372.0)), host_known=False, weak=True, required_launches=4,
    location="tests/perf/test_decode.py:110", workload={"prompt_tokens": 128, "output_tokens": 256, "concurrency": 64},
)  # fmt: skip
ON_VLLM = replace(
    PASSED, nodeid="tests/perf/test_decode.py::test_single_stream[vllm]", engine="vllm", server=VLLM.key, value=82.53,
    band=(81.2, 83.9), change=0.00036, mde=0.017, test="tests/perf/test_decode.py::test_single_stream",
    baseline=BaselineRef("test_single_stream.vllm.9be07745.toml", 10, 82.5, 3.0),
    launches=launches((82.5, 82.6, 82.53, 82.48, 82.55), ids=(VLLM.launches[0].id,)),
)  # fmt: skip

GAP = Gap(
    "tests/perf/test_decode.py::test_single_stream", "decode_tok_s", "tok/s", True, "sglang", "vllm", 63.61, 82.53,
    0.7707, (0.7588, 0.7829), (3, 1),
)  # fmt: skip
SWEEP = Sweep(
    name="nccl", engine="sglang", metric="decode_tok_s", unit="tok/s", higher_is_better=True,
    base={"nccl.proto": "default", "attention_backend": "flashinfer"}, base_value=63.61, base_launches=4,
    test="tests/perf/test_sweep.py::test_nccl",
    effects=(
        Effect("attention_backend", "trtllm_mla", 82.1, 1.2907, (1.271, 1.311), True, 2),
        Effect("nccl.proto", "LL", 64.0, 1.0061, (0.99, 1.0225), False, 2),
        Effect("nccl.proto", "Simple", 47.7, 0.7499, (0.738, 0.762), True, 2),
        Effect("attention_backend", "triton", failure="did not start: unsupported architecture sm_100"),
    ),
)  # fmt: skip
CURVE = Curve(
    "tests/perf/test_decode.py::test_peak", "sglang",
    tuple(
        CurvePoint(streams, rate, rate / streams, ttft)
        for streams, rate, ttft in (
            (1, 63.6, 141.0), (4, 243.0, 150.0), (16, 905.0, 190.0), (32, 1660.0, 260.0), (48, 2290.0, 390.0),
            (64, 2352.0, 910.0), (128, 2370.0, 2900.0),
        )
    ),
    knee=48, max_running_requests=48,
)  # fmt: skip

ON_VLLM_CURVE = replace(
    CURVE, engine="vllm", knee=64, max_running_requests=256,
    points=tuple(replace(p, output_tok_s=p.output_tok_s * (1.3 if p.concurrency < 64 else 1.45)) for p in CURVE.points),
)  # fmt: skip

FULL = SessionRecord(
    SESSION,
    (SGLANG, VLLM, BROKEN),
    (
        PASSED,
        REGRESSED,
        IMPROVED,
        INCONCLUSIVE,
        NO_BASELINE,
        NOT_COMPARABLE,
        INVALID,
        BELOW_TARGET,
        ERROR,
        PRIOR_ONLY,
        ON_VLLM,
    ),
    (GAP,),
    (SWEEP,),
    (CURVE,),
)
GREEN = SessionRecord({**SESSION, "messages": []}, (SGLANG,), (PASSED, PRIOR_ONLY))
EMPTY = SessionRecord({})
#: As the last run of the same branch: the regression was none yet, one test is new since and one is gone.
BEFORE = SessionRecord(
    {**SESSION, "started": "2026-11-02T10:12:09Z"}, (SGLANG,),
    (
        replace(PASSED, value=80.4), replace(REGRESSED, verdict="passed", value=82.4), IMPROVED, BELOW_TARGET,
        replace(PASSED, test="tests/perf/test_decode.py::test_gone"),
    ),
)  # fmt: skip

HISTORY = History(
    test=REGRESSED.test, engine="sglang", metric="decode_tok_s", unit="tok/s", higher_is_better=True,
    path="test_single_stream.sglang.3f2a91c0.toml", band=(80.87, 84.16), center=82.51,
    points=tuple(
        HistoryPoint(f"l{i}", f"2026-{8 + i // 5:02d}-{3 + 5 * (i % 5):02d}T09:00:00Z", v, epoch=int(i >= 6),
                     spread=(v - 0.4, v + 0.3), host="h1" if i % 3 else "h2", version="0.5.15" if i < 6 else "0.5.16")
        for i, v in enumerate((71.9, 72.4, 72.0, 71.6, 72.2, 72.1, 82.3, 82.9, 82.1, 82.6, 82.5))
    ),
    changes=(ChangePoint(6, 0.1439, "trtllm_mla accepted"),),
)  # fmt: skip

LOGS = {
    SGLANG.launches[0].id: "[2026-11-03 10:15:02] server_args=ServerArgs(model_path='kimi', tp_size=8)\n"
    "[2026-11-03 10:18:31] max_running_requests reset to 48 for speculative decoding\n"
    "[2026-11-03 10:18:33] \x1b[32mThe server is fired up and ready to roll!\x1b[0m\n",
}
