"""What the stand-in says of itself, in each engine's own words."""

from __future__ import annotations

import http.client
import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import StartFake, wait_for
from tests.fake_engine.client import call, stream
from tests.fake_engine.commandline import dialect_of, resolve
from tests.fake_engine.settings import Settings

SPECULATIVE = {
    "sglang": (
        "--speculative-algorithm",
        "EAGLE3",
        "--speculative-draft-model-path",
        "d",
        "--speculative-num-steps",
        "3",
    ),
    "vllm": ("--speculative-config", '{"method":"eagle3","model":"d","num_speculative_tokens":3}'),
}
DIALECTS = pytest.mark.parametrize("dialect", ["sglang", "vllm"])


def samples(text: str) -> dict[str, float]:
    """Prometheus samples by name, those of several labels summed."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for s in family.samples:
            found[s.name] = found.get(s.name, 0) + s.value
    return found


@pytest.mark.parametrize(
    ("argv", "dialect"),
    [
        (["sglang", "--model", "m"], "sglang"),
        (["vllm", "serve", "m"], "vllm"),
        (["serve", "m", "--port", "1"], "vllm"),
        (["--model-path", "m"], "sglang"),
        (["--model", "m"], "vllm"),
    ],
)
def test_the_dialect_is_told_from_the_words(argv: list[str], dialect: str) -> None:
    assert dialect_of(argv)[0] == dialect
    assert resolve(argv, Settings(), {}).model == "m"


@pytest.mark.parametrize(
    ("dialect", "flags"),
    [
        (
            "sglang",
            "--tp-size 4 --max-running-requests=7 --context-length 512 --disable-radix-cache --disable-cuda-graph",
        ),
        ("vllm", "-tp 4 --max_num_seqs 7 --max-model-len 512 --no-enable-prefix-caching --enforce-eager"),
    ],
)
def test_one_meaning_in_both_command_lines(dialect: str, flags: str) -> None:
    o = resolve([dialect, "--model", "m", *flags.split(), "--disable-custom-all-reduce"], Settings(), {})
    assert (o.tp, o.max_running, o.context) == (4, 7, 512)
    assert (o.prefix_cache, o.decode_graph, o.custom_all_reduce) == (False, False, False)


def test_sglang_info_is_flat_and_resolved(fake_server: StartFake) -> None:
    server = fake_server(
        "sglang", "--tp-size", "2", "--context-length", "4096", "--cuda-graph-backend-decode", "disabled"
    )
    status, info = call(server.port, "/server_info")
    assert status == 200
    assert (info["attention_backend"], info["prefill_attention_backend"]) == ("fa3", None)
    assert (info["tp_size"], info["context_length"], info["max_running_requests"]) == (2, 4096, 2048)
    assert info["cuda_graph_config"]["decode"]["backend"] == "disabled"
    assert info["version"] == "0.5.17"
    [state] = info["internal_states"]
    assert state["effective_max_running_requests_per_dp"] == 2048
    assert call(server.port, "/get_server_info")[1]["max_total_num_tokens"] == info["max_total_num_tokens"]
    assert "Attention backend not specified. Use fa3 backend by default." in server.log


def test_sglang_hybrid_and_own_variables(fake_server: StartFake) -> None:
    flags = ("--prefill-attention-backend", "fa3", "--decode-attention-backend", "flashinfer")
    env = {"SGLANG_EXPOSE_OWN_ENV_VARS": 1, "NCCL_PROTO": "LL"}
    server = fake_server("sglang", *flags, env=env)
    _, info = call(server.port, "/server_info")
    assert (info["prefill_attention_backend"], info["decode_attention_backend"]) == ("fa3", "flashinfer")
    assert info["internal_states"][0]["env_vars"]["NCCL_PROTO"] == "LL"
    assert "Using hybrid attention backend for decode and prefill" in server.log


def test_vllm_info_only_in_development_mode(fake_server: StartFake) -> None:
    assert call(fake_server("vllm").port, "/server_info")[0] == 404
    server = fake_server("vllm", "--max-num-seqs", "9", env={"VLLM_SERVER_DEV_MODE": 1})
    _, text = call(server.port, "/server_info")
    assert "enforce_eager=False" in text["vllm_config"]
    _, info = call(server.port, "/server_info?config_format=json")
    assert info["vllm_config"]["scheduler_config"]["max_num_seqs"] == 9
    assert info["vllm_config"]["attention_config"]["backend"] is None
    assert call(server.port, "/version")[1] == {"version": "0.26.0"}


def test_vllm_names_its_backend_in_the_log(fake_server: StartFake) -> None:
    assert "Using FLASH_ATTN attention backend out of potential backends: [" in fake_server("vllm").log
    assert "Using FLASHINFER backend." in fake_server("vllm", "--attention-backend", "FLASHINFER").log


@DIALECTS
def test_what_is_changed_behind_ones_back(fake_server: StartFake, dialect: str) -> None:
    env = {
        "FAKE_REPLACE_BACKEND": "OTHER",
        "FAKE_CUSTOM_ALL_REDUCE_OFF": 1,
        "FAKE_MAX_RUNNING": 48,
        "FAKE_VERSION": "9.9",
    }
    server = fake_server(dialect, "--attention-backend", "flashinfer", env={**env, "VLLM_SERVER_DEV_MODE": 1})
    _, info = call(server.port, "/server_info?config_format=json")
    assert "Custom allreduce is disabled because" in server.log
    if dialect == "sglang":
        assert (info["attention_backend"], info["max_running_requests"], info["version"]) == ("OTHER", 48, "9.9")
    else:
        assert "Using OTHER attention backend out of" in server.log
        assert info["vllm_config"]["scheduler_config"]["max_num_seqs"] == 48
        assert info["system_env"]["vllm_version"] == "9.9"


def test_speculation_resets_max_running_requests(fake_server: StartFake) -> None:
    server = fake_server("sglang", *SPECULATIVE["sglang"])
    assert call(server.port, "/server_info")[1]["max_running_requests"] == 48
    assert "Max running requests is reset to 48 for speculative decoding." in server.log


@DIALECTS
def test_counters_of_speculation(fake_server: StartFake, dialect: str) -> None:
    server = fake_server(dialect, *SPECULATIVE[dialect], "--enable-metrics", env={"FAKE_SPEC_ACCEPT_BY": "d:2;e:3"})
    answer = stream(server.port, {"max_tokens": 101})
    assert len(answer.texts) == 51
    seen = samples(server.get("/metrics")[1])
    if dialect == "sglang":
        assert seen["sglang:spec_accept_length"] == pytest.approx(2)
        assert seen["sglang:spec_verify_calls_total"] == 50
        assert seen["sglang:generation_tokens_total"] >= 101
        assert "accept len: 2.00, accept rate: 0.33, cuda graph: True" in server.log
    else:
        drafts, accepted = (seen[f"vllm:spec_decode_num_{x}_total"] for x in ("drafts", "accepted_tokens"))
        assert (drafts, 1 + accepted / drafts) == (50, 2)
        assert seen["vllm:spec_decode_num_draft_tokens_total"] == 150
        assert seen["vllm:spec_decode_num_accepted_tokens_per_pos_total"] == 50
        assert seen["vllm:generation_tokens_total"] == 101


@pytest.mark.parametrize(
    ("dialect", "flags", "env"),
    [
        ("sglang", SPECULATIVE["sglang"], {"SGLANG_SIMULATE_ACC_LEN": 3}),
        ("vllm", ("-sc", '{"num_speculative_tokens":3,"synthetic_acceptance_length":3}'), {}),
    ],
)
def test_forced_acceptance(fake_server: StartFake, dialect: str, flags: tuple[str, ...], env: dict[str, Any]) -> None:
    server = fake_server(dialect, *flags, env=env)
    assert len(stream(server.port, {"max_tokens": 31}).texts) == 11


@DIALECTS
def test_counters_and_gauges_of_ordinary_requests(fake_server: StartFake, dialect: str) -> None:
    env = {"FAKE_PREEMPTIONS": "2@1", "FAKE_QUEUE": "5@1", "FAKE_ITL_MS": 20, "FAKE_UNCAPTURED": "1@1"}
    server = fake_server(dialect, "--enable-metrics", env=env)
    names = {
        "sglang": ("num_running_reqs", "num_queue_reqs", "num_retracted_requests_total", "prompt_tokens_total"),
        "vllm": ("num_requests_running", "num_requests_waiting", "num_preemptions_total", "prompt_tokens_total"),
    }
    running, waiting, preempted, prompt = (f"{dialect}:{name}" for name in names[dialect])
    before = samples(server.get("/metrics")[1])
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("POST", "/v1/completions", '{"prompt":[7,8,9],"stream":true,"max_tokens":60}')
    during = wait_for(lambda: (s := samples(server.get("/metrics")[1]))[running] and s, "the request to run")
    connection.getresponse().read()
    after = samples(server.get("/metrics")[1])
    assert (during[running], during[waiting], during[preempted]) == (1, 5, 2)
    assert (after[running], after[waiting]) == (0, 0)
    assert after[prompt] - before[prompt] == 3
    labelled = dict(re.findall(r'passes_total{.*mode="(\w+)"} (\d+)', server.get("/metrics")[1]))
    if dialect == "sglang":
        assert during["sglang:is_cuda_graph"] == 0
        assert labelled["decode_none"] == "59"
        assert labelled["decode_cuda_graph"] == "0"
        assert "cuda graph: False, gen throughput" in server.log


def test_sglang_has_no_metrics_unasked(fake_server: StartFake) -> None:
    assert fake_server("sglang").get("/metrics")[0] == 404


@DIALECTS
def test_wrong_requests_are_told_so(fake_server: StartFake, dialect: str) -> None:
    flag = "--context-length" if dialect == "sglang" else "--max-model-len"
    server = fake_server(dialect, flag, "32")
    assert stream(server.port, {"max_tokens": 64}).status == 400
    assert stream(server.port, {"prompt": []}).status == 400
    assert call(server.port, "/v1/completions", {"prompt": "a", "stream_options": {"include_usage": True}})[0] == 400
    assert call(server.port, "/v1/nothing", {})[0] == 404
    if dialect == "vllm":
        assert stream(server.port, {"model": "someone-else"}).status == 404


@pytest.mark.parametrize(
    ("dialect", "cold", "warm"),
    [
        ("sglang", "elapsed=46.03 s", "elapsed=4.82 s"),
        ("vllm", "Compiling a graph", "Directly load the compiled graph"),
    ],
)
def test_a_cold_cache_shows_in_the_log(fake_server: StartFake, dialect: str, cold: str, warm: str) -> None:
    for launches, line in (("1", cold), ("1@2+", warm)):
        assert line in fake_server(dialect, env={"FAKE_COLD": launches}).log
