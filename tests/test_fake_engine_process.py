"""The stand-in as a process: how it starts, crashes, hangs, dies, ignores signals and leaves others behind."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
from pathlib import Path

import psutil
import pytest
import tomli

from tests.conftest import PerfProject, StartFake, alive, wait_for
from tests.fake_engine.client import call, stream
from tests.fake_engine.faults import CRASHES, DEEP

DIALECTS = pytest.mark.parametrize("dialect", ["sglang", "vllm"])


def test_it_starts_as_a_module_and_as_a_file(fake_engine_command: list[str], tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[1]
    for command, folder in (
        ([fake_engine_command[0], "-m", "tests.fake_engine"], root),
        (fake_engine_command, tmp_path),
    ):
        ended = subprocess.run([*command, "sglang"], cwd=folder, capture_output=True, text=True, check=False)
        assert ended.returncode == 2
        assert "usage: launch_server.py" in ended.stderr


@DIALECTS
def test_a_slow_start_shows_progress(fake_server: StartFake, dialect: str) -> None:
    server = fake_server(dialect, env={"FAKE_START_S": 0.3, "FAKE_START_TICK_S": 0.1}, ready=False)
    server.wait_until_ready()
    assert "Loading safetensors checkpoint shards: 100%" in server.log
    assert "graph" in server.log
    launched = server.launches[0]["monotonic"]
    stream(server.port)
    assert server.truth[0]["t0"] - launched >= 0.3


def test_a_silent_start(fake_server: StartFake) -> None:
    server = fake_server(env={"FAKE_START_S": 0.1, "FAKE_START_SILENT": 1})
    assert "Load weight" not in server.log


@DIALECTS
def test_health_is_503_until_ready(fake_server: StartFake, dialect: str) -> None:
    server = fake_server(dialect, env={"FAKE_READY_S": 1.5}, ready=False)
    server.wait_until_listening()
    assert server.get("/health")[0] == 503
    wait_for(lambda: server.get("/health")[0] == 200, "readiness")


@DIALECTS
def test_crashes_print_their_cause_and_not_always_last(fake_server: StartFake, dialect: str) -> None:
    names = sorted(CRASHES)[:: 1 if dialect == "vllm" else 5]
    servers = {n: fake_server(dialect, env={"FAKE_CRASH": n, "FAKE_CRASH_CODE": 7}, ready=False) for n in names}
    for name, server in servers.items():
        assert server.process.wait(60) == (2 if name == "usage" else 7)
        assert CRASHES[name] in server.log
        assert server.log.rstrip().endswith(CRASHES[name]) != (name in DEEP), name


def test_a_crash_by_signal_at_one_launch_only(fake_server: StartFake, tmp_path: Path) -> None:
    env = {"FAKE_CRASH": "segfault@1", "FAKE_CRASH_CODE": -11, "FAKE_COUNTER": tmp_path / "counter"}
    assert fake_server(env=env, ready=False).process.wait(20) == -signal.SIGSEGV
    assert stream(fake_server(env=env).port).done


@DIALECTS
def test_a_taken_port(fake_server: StartFake, dialect: str) -> None:
    first = fake_server(dialect)
    second = fake_server(dialect, "--port", str(first.port), ready=False)
    assert second.process.wait(20) == 1
    assert "address already in use" in second.log.lower()


def test_a_hang_shows_no_progress(fake_server: StartFake) -> None:
    server = fake_server(env={"FAKE_HANG": "60@1"}, ready=False)
    wait_for(lambda: "Init torch distributed begin" in server.log, "the last line")
    server.process.terminate()
    assert server.process.wait(20) == 0
    assert "Uvicorn running" not in server.log


@DIALECTS
def test_strict_command_lines(fake_server: StartFake, dialect: str) -> None:
    for flags in (["--no-such-flag", "3"], ["--attention-backend", "nonsense"]):
        server = fake_server(dialect, *flags, env={"FAKE_STRICT": 1}, ready=False)
        assert server.process.wait(20) == 2
        assert "error: " in server.log
    fake_server(dialect, "--no-such-flag", "3", "--other")


@pytest.mark.parametrize(("code", "expected"), [(-9, -signal.SIGKILL), (3, 3)])
def test_death_at_a_token(fake_server: StartFake, code: int, expected: int) -> None:
    server = fake_server(env={"FAKE_DIE": "5@2", "FAKE_DIE_CODE": code, "FAKE_DIE_TEXT": "illegal"})
    assert stream(server.port).done
    assert not stream(server.port).done
    assert server.process.wait(20) == expected
    assert "illegal memory access" in server.log
    assert server.truth[-1]["tokens"] == 5


@pytest.mark.parametrize(("dialect", "number"), [("sglang", signal.SIGTERM), ("vllm", signal.SIGINT)])
def test_an_orderly_end(fake_server: StartFake, dialect: str, number: int) -> None:
    server = fake_server(dialect, env={"FAKE_CHILDREN": 1})
    wait_for(lambda: server.pids["child"], "the worker to start")
    server.process.send_signal(number)
    assert server.process.wait(20) == 0
    assert "Application shutdown complete." in server.log
    wait_for(lambda: not any(alive(pid) for pid in server.pids["child"]), "the worker to end")


def test_deaf_to_polite_signals(fake_server: StartFake) -> None:
    server = fake_server(env={"FAKE_DEAF": 1})
    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGINT)
    assert stream(server.port).done
    assert server.process.poll() is None


def test_what_a_killed_server_leaves_behind(fake_server: StartFake) -> None:
    server = fake_server(env={"FAKE_CHILDREN": 1, "FAKE_ORPHANS": 2, "FAKE_CHILD_DEAF": 1})
    pids = wait_for(lambda: sum(map(len, server.pids.values())) == 4 and server.pids, "all processes to report")
    server.process.kill()
    server.process.wait(20)
    left = [*pids["child"], *pids["orphan"]]
    for pid in left:
        os.kill(pid, signal.SIGTERM)
    for pid in pids["orphan"]:
        assert os.getsid(pid) != server.process.pid
        assert psutil.Process(pid).ppid() != server.process.pid
    assert all(alive(pid) for pid in left)
    server.stop()
    wait_for(lambda: not any(alive(pid) for pid in left), "the fixture to clean up")


def test_a_child_may_serve(fake_server: StartFake) -> None:
    server = fake_server(env={"FAKE_SERVE_IN_CHILD": 1})
    assert server.launches[0]["ppid"] == server.process.pid
    assert stream(server.port).done
    server.process.terminate()
    assert server.process.wait(20) == 0
    assert not alive(server.launches[0]["pid"])


def test_no_life_is_endless(fake_server: StartFake) -> None:
    server = fake_server(env={"FAKE_LIFE_S": 0.2, "FAKE_HANG": "60", "FAKE_DEAF": 1}, ready=False)
    assert server.process.wait(20) == -signal.SIGALRM


@DIALECTS
def test_hostile_bytes_and_secrets_in_the_log(fake_server: StartFake, dialect: str) -> None:
    env = {"FAKE_HOSTILE_LOG": 1, "FAKE_LOG_SECRETS": 1, "HF_TOKEN": "hf_s3cret"}
    server = fake_server(dialect, env=env, api_key="k3y-s3cret")
    raw = (server.folder / "log").read_bytes()
    for expected in (b"\x1b[31m", b"<script>", b"\n::error ", b"\xff\xfe", b"hf_s3cret", b"k3y-s3cret"):
        assert expected in raw


@DIALECTS
def test_the_key_is_not_printed_unasked(fake_server: StartFake, dialect: str) -> None:
    server = fake_server(dialect, api_key="k3y-s3cret")
    assert call(server.port, "/v1/models", key="k3y-s3cret")[0] == 200
    assert "k3y-s3cret" not in server.log


def test_the_launch_log_names_the_process_and_its_variables(fake_server: StartFake) -> None:
    server = fake_server("sglang", "--tp", "2", env={"NCCL_PROTO": "LL", "NCCL_DEBUG": "INFO"})
    [launch] = server.launches
    assert launch["pid"] == server.process.pid
    assert launch["env"]["NCCL_PROTO"] == "LL"
    assert "--tp" in launch["argv"]
    assert server.log.count("NCCL_PROTO set by environment to LL") == 2


def test_a_perf_project_points_both_engines_at_the_stand_in(perf_project: PerfProject) -> None:
    config = tomli.loads(perf_project.write_config("[tool.llmperf]\nalpha = 0.01\n").read_text())
    assert config["tool"]["llmperf"]["alpha"] == 0.01
    for name in ("sglang", "vllm"):
        command = config["tool"]["llmperf"]["engines"][name]["command"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=perf_project.path)
        assert ended.returncode == 2
        assert "--model" in ended.stderr
    perf_project.write_suite("def test_nothing():\n    pass\n")
    perf_project.run("-p", "no:llmperf", "-p", "no:cacheprovider", engine=None).assert_outcomes(passed=1)
    assert (perf_project.launches, perf_project.truth) == ([], [])


def test_garbage_on_the_wire_does_not_end_it(fake_server: StartFake) -> None:
    server = fake_server("vllm")
    for data in (b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\ncontent-length: x\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
            sock.sendall(data)
            assert sock.recv(100).startswith(b"HTTP/1.1 400")
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 500\r\n\r\n{")
    for body in (
        "[]",
        "{",
        "null",
        '{"prompt":{"a":1}}',
        '{"prompt":"a","max_tokens":"x"}',
        '{"prompt":[1e9]}',
        "\u0000",
    ):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request("POST", "/v1/completions", body.encode())
        assert connection.getresponse().status in (400, 422), body
        connection.close()
    assert stream(server.port).done


def test_two_requests_in_one_write_are_answered_in_order(fake_server: StartFake) -> None:
    server = fake_server("vllm")
    body = b'{"prompt":[7],"max_tokens":3}'
    one = b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        sock.sendall(one + b"GET /version HTTP/1.1\r\nconnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    assert answer.index(b"cmpl-") < answer.index(b'"version"')


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_tls_as_both_engines_offer_it(fake_server: StartFake, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    make += f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    subprocess.run(make.split(), check=True, capture_output=True)
    server = fake_server("sglang", "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key), ready=False)
    server.wait_until_listening()
    context = ssl.create_default_context(cafile=str(certificate))
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=20, context=context)
    prompt = list(range(20_000))
    connection.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "stream": True, "max_tokens": 30}))
    body = connection.getresponse().read()
    assert body.count(b"data: ") == 31
    assert server.truth[0]["prompt_tokens"] == 20_000
