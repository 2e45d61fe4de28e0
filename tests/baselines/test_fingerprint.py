from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_llmperf import models
from pytest_llmperf.baselines import fingerprint
from pytest_llmperf.baselines.fingerprint import Fingerprint, cpu_model, host_identity, memory_class
from pytest_llmperf.hardware import Hardware
from pytest_llmperf.server_config import ServerConfig

from .conftest import gpu, machine

CONFIG = ServerConfig(engine="sglang", model="m", tp=2, flags={"num_continuous_decode_steps": 4})
BOX = machine((gpu("GPU-b"), gpu("GPU-a")))
WORK = {"output_tokens": 256, "rate": 0.5}


def of(hardware: Hardware = BOX, config: ServerConfig = CONFIG, gpu_count: int = 2, **more: Any) -> Fingerprint:
    return fingerprint.of(hardware, config, gpu_count, WORK, **more)


def test_holds_what_makes_the_experiment() -> None:
    assert dict(of(pool="blue").fields) == {
        "compute capability": "9.0",
        "definitions": "1",
        "gpu": "NVIDIA H200",
        "gpu count": "2",
        "gpu memory": "144 GiB",
        "pool": "blue",
        "server.engine": "sglang",
        "server.flags.num_continuous_decode_steps": "4",
        "server.model": "m",
        "server.tp": "2",
        "workload.output_tokens": "256",
        "workload.rate": "0.5",
    }


@pytest.mark.parametrize(
    "same",
    [
        replace(BOX, host="runner-2"),
        replace(BOX, cores=64, memory_gb=512.0, cpu="AMD EPYC"),
        replace(BOX, gpus=tuple(reversed(BOX.gpus))),
        replace(BOX, gpus=(gpu("GPU-x", driver="580.1"), gpu("GPU-y", memory_mib=143_156))),
    ],
    ids=["host name", "cpu of a GPU box", "order of GPUs", "other cards, driver, reserved memory"],
)
def test_ignores_what_is_provenance(same: Hardware) -> None:
    assert of(same).key == of().key


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("gpu", of(replace(BOX, gpus=(gpu("a", name="NVIDIA H100"),)))),
        ("gpu memory", of(replace(BOX, gpus=(gpu("a", memory_mib=81_559),)))),
        ("compute capability", of(replace(BOX, gpus=(gpu("a", compute_capability="10.0"),)))),
        ("mig", of(replace(BOX, gpus=(gpu("a", mig="1g.18gb"),)))),
        ("interconnect", of(replace(BOX, gpus=(gpu("a", nvlinked=("b",)), gpu("b", nvlinked=("a",)))))),
        ("pool", of(pool="blue")),
        ("definitions", of(definitions=2)),
        ("server.load_format", of(config=replace(CONFIG, load_format="dummy"))),
        ("server.flags.num_continuous_decode_steps", of(config=replace(CONFIG, flags={}))),
        ("tenant", of(extra={"tenant": "a"})),
    ],
)
def test_differences_name_the_field(name: str, other: Fingerprint) -> None:
    assert [d[0] for d in of().differences(other)] == [name]
    assert other.key != of().key


def test_the_tiny_model_is_known_by_its_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = replace(CONFIG, model="tiny")
    before = of(config=tiny)
    monkeypatch.setattr(models, "RECIPE", models.RECIPE + 1)
    assert [d[0] for d in of(config=tiny).differences(before)] == ["tiny model"]


def test_engine_on_the_cpu_is_known_by_its_cpu() -> None:
    fields = of(gpu_count=0).fields
    assert (fields["cpu"], fields["cores"]) == ("Intel Xeon CPU @ 2.20GHz", "2")
    assert not [f for f in fields if f.startswith("gpu")]


def test_an_engine_for_gpus_on_a_machine_without_any_is_known_by_its_cpu() -> None:
    bare = machine(())
    assert of(bare, gpu_count=2) == of(bare, gpu_count=0)


def test_only_the_held_gpus_count_on_a_mixed_host() -> None:
    mixed = machine((gpu("GPU-a"), gpu("GPU-t", name="Tesla T4")))
    assert of(mixed, gpus=("GPU-t",)).fields["gpu"] == "Tesla T4"
    assert of(mixed).fields["gpu"] == "NVIDIA H200, Tesla T4"


def test_a_number_has_one_spelling() -> None:
    def workload(rate: float) -> Fingerprint:
        return fingerprint.of(BOX, CONFIG, 2, {"rate": rate})

    assert workload(2).key == workload(2.0).key != workload(2.5).key


def test_secrets_stay_out_and_numbers_that_sound_like_them_stay_in() -> None:
    config = replace(
        CONFIG,
        model="https://user:hunter2@example.org/model",
        env={"HF_TOKEN": "hunter2", "PROXY": "http://me:hunter2@proxy:3128"},
        flags={"token_budget": 4096, "urls": ["redis://:hunter2@cache"], "api_key": "hunter2"},
    )
    secret = of(config=config, extra={"access_token": "hunter2", "tenant": "a"})
    assert "hunter2" not in str(secret.fields)
    assert secret.fields["server.flags.token_budget"] == "4096"
    assert secret.fields["server.model"] == "https://***@example.org/model"


@pytest.mark.parametrize(
    ("mib", "gib"),
    [(143_771, 144), (143_156, 144), (81_559, 80), (81_920, 80), (24_564, 24), (23_028, 24), (15_360, 16), (15_109, 16),
     (10_240, 10), (9_728, 10), (46_068, 48), (183_359, 184), (196_592, 192), (1, 2)],
)  # fmt: skip
def test_memory_is_the_size_on_the_box(mib: int, gib: int) -> None:
    assert memory_class(mib) == gib


def test_labels_are_short_and_safe() -> None:
    assert of().label == "h200-x2"
    assert of(gpu_count=0).label == "intel-xeon-cpu-2-20ghz"
    assert Fingerprint({"cpu": "Zhaoxin ☃ " + "x" * 80}).label == ("zhaoxin-" + "x" * 80)[:40]
    assert Fingerprint({"cpu": "☃"}).label == "unknown"


def test_hardware_is_everything_but_server_and_workload() -> None:
    assert set(of(pool="blue").hardware) == {"compute capability", "gpu", "gpu count", "gpu memory", "pool"}


def test_host_is_its_gpus_else_its_name() -> None:
    one = host_identity(BOX)
    assert one == host_identity(replace(BOX, gpus=tuple(reversed(BOX.gpus)), host="renamed"))
    assert one != host_identity(replace(BOX, gpus=(gpu("GPU-z"),)))
    assert host_identity(machine(host="a")) != host_identity(machine(host="b"))
    assert "runner" not in host_identity(machine())


def test_cpu_names_lose_trademarks() -> None:
    assert cpu_model("AMD  EPYC(TM)   9654 96-Core") == "AMD EPYC 9654 96-Core"
    assert cpu_model("") == "unknown"
