"""Ready means: our process, our port, our key, our model, and a token really made. Anything else says why, at once."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pytest_llmperf.engines.base import EngineSettings, Starting
from pytest_llmperf.errors import LaunchError
from pytest_llmperf.server_config import ServerConfig
from tests.server.fakes import ENGINES, FAKE, FakeEngine, Pools, config, pids_in

#: A start that works would take far longer than any failure here may.
LONG = 3600.0


def failure(pools: Pools, asked: ServerConfig, **settings: object) -> str:
    with pytest.raises(LaunchError) as caught:
        pools(startup_timeout=LONG, **settings).get(asked)
    return str(caught.value)


def test_a_crash_says_its_cause_first_then_the_log_and_where_it_is(pools: Pools, tmp_path: Path) -> None:
    text = failure(pools, config(crash="oom", hostile_log=1, env={"HF_TOKEN": "hf_verysecret123"}, log_secrets=1))
    assert text.splitlines()[0].startswith("fake fake-model did not start (")
    assert text.splitlines()[0].endswith("out of GPU memory")
    assert "what to do: lower the memory fraction" in text
    assert "  | torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB." in text
    log = next((tmp_path / "logs").glob("*.log"))
    assert f"full log: {log}" in text
    assert "hf_verysecret123" not in text + log.read_text("utf-8", "replace")
    assert "\x1b" not in text
    assert "\x07" not in text


def test_a_wrong_flag_is_named(pools: Pools) -> None:
    text = failure(pools, config(strict=1, flags={"no_such_flag": 3}))
    assert "it does not know the flag --no-such-flag" in text.splitlines()[0]


def test_a_program_that_does_not_exist(pools: Pools) -> None:
    text = failure(pools, config(), engines={"fake": EngineSettings(command=("/no/such/python",))})
    assert "/no/such/python" in text
    assert "[tool.llmperf.engines.fake] command" in text


def test_a_log_folder_that_cannot_be(pools: Pools, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    text = failure(pools, config(), log_dir=tmp_path / "file" / "logs")
    assert "nothing can be started here" in text


def test_a_variable_that_no_process_can_have(pools: Pools) -> None:
    assert "embedded null byte" in failure(pools, config(env={"A": "x\0y"}))


def test_an_engine_that_dies_of_its_first_request(pools: Pools, tmp_path: Path) -> None:
    text = failure(pools, config(die="1", die_code=-4, pids_file=tmp_path / "pids"))
    assert "SIGILL" in text.splitlines()[0]


def test_an_engine_that_says_it_is_lost_is_not_waited_for(pools: Pools) -> None:
    code = "import time; print('Rank 3 scheduler is dead\\nSIGQUIT received.', flush=True); time.sleep(600)"
    text = failure(pools, config(), engines={"fake": EngineSettings(command=(sys.executable, "-c", code))})
    assert text.splitlines()[0].endswith("the scheduler of rank 3 died")


def test_what_the_log_says_comes_before_the_signal_that_an_engine_sends_itself(pools: Pools) -> None:
    said = "AttributeError: no rope\\nReceived sigquit from a child process. It usually means the child failed."
    code = f"import os; print('{said}', flush=True); os.kill(os.getpid(), 9)"
    text = failure(pools, config(), engines={"fake": EngineSettings(command=(sys.executable, "-c", code))})
    assert text.splitlines()[0].endswith("AttributeError: no rope")
    assert "out-of-memory" not in text


def test_ranks_that_wait_for_each_other_are_told_apart_from_a_slow_start(pools: Pools) -> None:
    heartbeat = (
        "INFO 11-11 12:31:53 [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds. "
        "This typically happens when some processes are hanging or doing some time-consuming work (e.g. compilation)."
    )
    code = f"import time; print('Init torch distributed begin.\\n{heartbeat}', flush=True); time.sleep(600)"
    own = EngineSettings(command=(sys.executable, "-c", code))
    text = failure(pools, replace(config(), startup_timeout=1.0), engines={"fake": own})
    assert "showed no progress for 1 s (last sign: joining ranks)" in text.splitlines()[0]
    assert "nccl={'debug': 'INFO'}" in text
    assert "nccl={'p2p_disable': 1}" in text


def test_health_alone_is_not_ready(pools: Pools) -> None:
    text = failure(pools, config(generation_broken=1))
    assert "is up but answered a completion with HTTP 500" in text.splitlines()[0]


def test_no_progress_is_given_up(pools: Pools, tmp_path: Path) -> None:
    asked = config(hang="600", startup_timeout=2.0, pids_file=tmp_path / "pids")
    text = failure(pools, asked)
    assert "showed no progress for 2 s" in text
    assert "startup_timeout" in text
    from tests.server.fakes import alive

    assert alive(pids_in(tmp_path / "pids")["main"]) == []


def test_progress_extends_the_timeout(pools: Pools) -> None:
    server = pools(startup_timeout=3.0).get(config(start_s=4.0, start_tick_s=0.5))
    assert server.launch.startup_s > 4.0


def test_ready_waits_for_health(pools: Pools) -> None:
    server = pools().get(config(ready_s=0.5))
    assert server.launch.startup_s > 0.5


def test_progress_is_told_as_plain_lines_or_on_one_line(pools: Pools) -> None:
    pools(plain_progress=True, worker="gw1").get(config(start_s=0.3))
    assert all(line.startswith("[gw1] fake fake-model: ") for line in pools.said)
    assert any("loading weights" in line for line in pools.said)
    assert len(pools.said) < 10
    pools.said.clear()
    pools(plain_progress=False).get(config(start_s=2.6, start_tick_s=0.2))
    assert all(line.startswith("fake fake-model: ") for line in pools.said)
    assert any("loading weights" in line for line in pools.said)


# -- whose server is it?


class Stolen(FakeEngine):
    """Before its first start somebody else takes the port."""

    name: ClassVar[str] = "stolen"

    def __init__(self) -> None:
        self.thief: socket.socket | None = None

    def own_flags(self, start: Starting) -> Mapping[str, Any]:
        if self.thief is None:
            self.thief = socket.socket()
            self.thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self.thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.thief.bind(("127.0.0.1", start.endpoint.port))
            self.thief.listen()
        return super().own_flags(start)


def test_a_port_lost_in_the_race_is_replaced(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Stolen()
    monkeypatch.setitem(ENGINES, "stolen", engine)
    server = pools().get(config(engine="stolen"))
    assert engine.thief is not None
    lost = engine.thief.getsockname()[1]
    assert server.launch.endpoint.port != lost
    assert server.launch.notes[0] == f"port {lost} was lost to another program; started again"
    engine.thief.close()


def test_another_server_on_a_fixed_port_is_never_taken_for_ours(pools: Pools) -> None:
    foreign = pools().get(config(env={"NO_KEY": "1"}))
    port = foreign.launch.endpoint.port
    text = failure(pools, config(start_s=60), engines={"fake": EngineSettings(port=port)})
    assert f"port {port} is answered by pid {foreign.launch.pids[0]} (python" in text
    foreign.check()


#: A front that drops its key: a router, a proxy, a fork.
KEYLESS = (
    sys.executable,
    "-c",
    "import os, sys; a = sys.argv[1:]; i = a.index('--api-key'); del a[i:i+2]; "
    f"os.execv(sys.executable, [sys.executable, {str(FAKE)!r}, *a])",
)


def test_a_server_here_that_takes_any_key_is_used_with_a_note(pools: Pools) -> None:
    """The socket has proven whose it is."""
    server = pools(engines={"fake": EngineSettings(command=KEYLESS)}).get(config())
    assert any(note.startswith("the server takes any API key") for note in server.launch.notes)


def test_a_server_elsewhere_that_takes_any_key_is_refused_unless_it_is_to_have_none(
    pools: Pools, tmp_path: Path
) -> None:
    launches = tmp_path / "launches"
    asked = config(launch_log=launches)
    text = failure(pools, asked, engines={"fake": EngineSettings(command=KEYLESS, remote=True)})
    assert "takes any API key" in text
    assert "set `api_key = false` in [tool.llmperf.engines.fake]" in text
    assert len(launches.read_text().splitlines()) == 1
    server = pools(engines={"fake": EngineSettings(remote=True, api_key=False)}).get(asked)
    assert server.launch.endpoint.api_key is None
    assert "--api-key" not in json.loads(launches.read_text().splitlines()[-1])["argv"]
    assert any(note.startswith("no API key proves") for note in server.launch.notes)


def test_a_server_of_another_model_is_refused(pools: Pools) -> None:
    text = failure(pools, config(flags={"served_model_name": "other-model"}))
    assert "serves other-model, not fake-model" in text


def test_two_pools_at_once_never_collide(pools: Pools) -> None:
    servers = [pools().get(config(seed=n % 2)) for n in range(3)]
    assert len({s.launch.endpoint.port for s in servers}) == 3
    assert len({s.launch.id for s in servers}) == 3
    for server in servers:
        server.check()


# -- what it resolved to


def test_a_replaced_backend_is_an_error_that_names_both(pools: Pools) -> None:
    asked = config(attention_backend="flashinfer", replace_backend="triton")
    pool = pools()
    for _ in range(2):
        with pytest.raises(LaunchError) as caught:
            pool.get(asked)
        assert "attention_backend: declared flashinfer, effective triton (replaced)" in str(caught.value)
        assert "allow_mismatch=['attention_backend']" in str(caught.value)
    assert len(pool.launches) == 1
    assert pool.failures[asked.key] == [str(caught.value)]
    allowed = config(attention_backend="flashinfer", replace_backend="triton", allow_mismatch=("attention_backend",))
    server = pool.get(allowed)
    assert "attention_backend: declared flashinfer, effective triton (replaced)" in server.launch.notes
    assert len(pool.launches) == 1


def test_variables_reach_the_engine_and_nothing_else(
    pools: Pools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    before = dict(os.environ)
    log = tmp_path / "launches"
    asked = ServerConfig("fake", "fake-model", nccl={"NCCL_PROTO": "LL"}, env={"FAKE_LAUNCH_LOG": str(log)})
    server = pools().get(asked)
    assert dict(os.environ) == before
    env = json.loads(log.read_text())["env"]
    assert (env["NCCL_PROTO"], env["NCCL_ALGO"]) == ("LL", "Tree")
    assert "inherited from the environment: NCCL_ALGO=Tree" in server.launch.notes


def test_no_shell_reads_what_is_declared(pools: Pools, tmp_path: Path) -> None:
    model = f"$(touch {tmp_path}/owned); `touch {tmp_path}/owned` && touch {tmp_path}/owned > x | y"
    server = pools().get(config(model=model))
    assert server.launch.model == model
    assert not (tmp_path / "owned").exists()


def test_counters_and_log(pools: Pools) -> None:
    before = time.time()
    server = pools().get(config())
    counters = server.counters()
    assert counters is not None
    assert counters.generation_tokens
    assert counters.generation_tokens >= 2
    assert "POST /v1/completions" in server.log()
    assert before - 1 < server.launch.started_at < time.time()
