from __future__ import annotations

from pytest_llmperf.baselines import provenance
from pytest_llmperf.engines.base import EffectiveConfig
from pytest_llmperf.records.results import Difference

from .conftest import gpu, machine, make_launch


def test_tells_versions_driver_and_what_the_engine_resolved_to() -> None:
    effective = EffectiveConfig(
        engine_version="0.5.17",
        attention_backend="fa3",
        cuda_graph=True,
        max_running_requests=48,
        kv_tokens=1_234_567,
        versions={"torch": "2.9", "flashinfer": "0.6"},
        nccl_env={"NCCL_PROTO": "LL"},
        other={"moe backend": "triton\n  autotuned", "hf_token": "hunter2"},
        sources={"cuda_graph": "log"},
    )
    facts = provenance.of(
        machine((gpu("a"), gpu("b"))), effective, commit="abc123", extra={"power cap": "700 W", "api_key": "k"}
    )
    assert facts == {
        "engine version": "0.5.17",
        "driver": "570.86.15",
        "cpu": "Intel(R) Xeon(R) CPU @ 2.20GHz",
        "cores": "2",
        "host memory": "8 GB",
        "commit": "abc123",
        "torch version": "2.9",
        "flashinfer version": "0.6",
        "attention backend": "fa3",
        "cuda graph": "True",
        "max running requests": "48",
        "kv tokens": "about 1200000",
        "NCCL_PROTO": "LL",
        "moe backend": "triton autotuned",
        "hf_token": "***",
        "power cap": "700 W",
        "api_key": "***",
    }


def test_the_most_telling_difference_comes_first() -> None:
    names = ["commit", "cpu", "attention backend", "NCCL_ALGO", "flashinfer version", "nccl version", "cuda version",
             "driver", "engine version"]  # fmt: skip
    before, after = (dict.fromkeys(names, side) for side in ("old", "new"))
    found = provenance.differences([make_launch(0, provenance=before)], [make_launch(1, provenance=after)])
    assert [d.name for d in found] == names[::-1]
    assert found[0] == Difference("engine version", "old", "new")


def test_what_was_not_recorded_then_is_no_difference() -> None:
    now = {"executable": "/bin/serve", "command --stream-interval": "4"}
    assert provenance.differences([make_launch(0)], [make_launch(1, provenance={"driver": "570", **now})]) == ()
    (found,) = provenance.differences(
        [make_launch(0, provenance={"executable": "/bin/serve"})], [make_launch(1, provenance=now)]
    )
    assert found == Difference("command --stream-interval", "-", "4")


def test_what_any_stored_launch_had_is_no_difference() -> None:
    stored = [make_launch(n, provenance={"driver": d}) for n, d in enumerate(("570", "575"))]
    assert provenance.differences(stored, [make_launch(5, provenance={"driver": "570"})]) == ()
    (found,) = provenance.differences(stored, [make_launch(5, provenance={"driver": "580"})])
    assert found == Difference("driver", "575 (also 570)", "580")


def test_a_fact_that_one_side_lacks_is_shown_as_absent() -> None:
    found = provenance.differences(
        [make_launch(0, provenance={"NCCL_PROTO": "LL"})], [make_launch(1, cache="cold", provenance={"x": "1"})]
    )
    assert [(d.name, d.baseline, d.now) for d in found] == [
        ("NCCL_PROTO", "LL", "-"), ("compile cache", "-", "cold"), ("x", "-", "1"),
    ]  # fmt: skip


def test_without_a_baseline_nothing_differs() -> None:
    assert provenance.differences([], [make_launch(0)]) == ()
