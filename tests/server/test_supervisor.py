"""Nothing is left behind, whatever ends the engine, pytest, or the supervisor itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_llmperf.errors import ServerDiedError
from pytest_llmperf.server.running_server import OwnLife, Server
from tests.server.fakes import FAKE, Driver, Pools, alive, config, pids_in, until

#: The promise: nothing is left after this many seconds.
PROMISE_S = 10.0


def gone(pids: Path, count: int) -> Callable[[], bool]:
    """True once ``count`` processes had been recorded and none of them runs."""

    def check() -> bool:
        found = [pid for group in pids_in(pids).values() for pid in group]
        assert len(found) == count
        return not alive(found)

    return check


def launch_facts(path: Path) -> Any:
    return json.loads(path.read_text().splitlines()[-1])


def guard_of(server: Server) -> psutil.Process:
    assert isinstance(server.life, OwnLife)
    return psutil.Process(server.life.process.supervisor_pid)


def supervisor_of(server: Server) -> psutil.Process:
    (supervisor,) = guard_of(server).children()
    return supervisor


def test_killed_pytest_leaves_nothing(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    asked = {"pids_file": str(pids), "children": 2, "child_deaf": 1, "orphans": 2}
    driver = Driver(folder=tmp_path, configs=[{**asked, "deaf": 1}, asked])
    assert len(alive(p for group in pids_in(pids).values() for p in group)) == 10
    driver.kill(signal.SIGKILL)
    until(gone(pids, 10), PROMISE_S)


def test_killed_pytest_leaves_nothing_while_a_fork_holds_its_descriptors(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    driver = Driver(folder=tmp_path, configs=[{"pids_file": str(pids)}], fork=True)
    forks = psutil.Process(driver.process.pid).children()
    driver.kill(signal.SIGKILL)
    until(gone(pids, 1), PROMISE_S)
    for fork in forks:
        fork.kill() if fork.is_running() else None


def test_a_killed_controller_ends_the_servers_of_workers_that_go_on(tmp_path: Path) -> None:
    """xdist's workers finish their test before they notice that nobody listens any more."""
    pids, worker = tmp_path / "pids", Path(__file__).with_name("driver.py")
    asked = {"folder": str(tmp_path), "configs": [{"pids_file": str(pids), "orphans": 1}]}
    code = f"import subprocess, sys; subprocess.run([sys.executable, {str(worker)!r}, {json.dumps(asked)!r}])"
    controller = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTEST_XDIST_WORKER": "gw0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert controller.stdout is not None
    assert controller.stdin is not None
    assert controller.stdout.readline()
    (busy,) = psutil.Process(controller.pid).children()
    controller.kill()  # not waited for: a zombie until the end of this test, as under some runners
    until(gone(pids, 2), PROMISE_S)
    assert busy.is_running()
    controller.wait()
    for pipe in (controller.stdin, controller.stdout):
        pipe.close()
    busy.wait(10)


def test_killed_while_a_server_still_loads_leaves_nothing(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    asked = {"folder": str(tmp_path), "configs": [{"pids_file": str(pids), "orphans": 1, "start_s": 60}]}
    parent = subprocess.Popen([sys.executable, str(Path(__file__).with_name("driver.py")), json.dumps(asked)])
    until(lambda: "orphan" in pids_in(pids) and "main" in pids_in(pids))
    parent.kill()
    parent.wait()
    until(gone(pids, 2), PROMISE_S)


def test_a_polite_engine_may_finish_and_a_deaf_one_is_killed_after_the_grace(pools: Pools, tmp_path: Path) -> None:
    pool = pools(stop_grace=1.0)
    polite = pool.get(config(stop_s=0.3, pids_file=tmp_path / "polite"))
    polite.stop()
    assert "Shutting down" in polite.log()
    deaf = pool.get(config(deaf=1, pids_file=tmp_path / "deaf"))
    before = time.monotonic()
    deaf.stop()
    assert time.monotonic() - before >= 1.0
    assert "Shutting down" not in deaf.log()
    assert alive([*pids_in(tmp_path / "polite")["main"], *pids_in(tmp_path / "deaf")["main"]]) == []


def test_a_grandchild_in_its_own_session_is_adopted_and_ended(pools: Pools, tmp_path: Path) -> None:
    server = pools().get(config(orphans=2, child_deaf=1, pids_file=tmp_path / "pids"))
    orphans = pids_in(tmp_path / "pids")["orphan"]
    supervisor = supervisor_of(server)
    assert {psutil.Process(pid).ppid() for pid in orphans} == {supervisor.pid}
    assert {os.getsid(pid) for pid in orphans}.isdisjoint({os.getsid(supervisor.pid), os.getsid(0)})
    assert set(orphans) < set(server.launch.pids)
    server.stop()
    assert alive(orphans) == []


def test_engine_and_supervisor_have_sessions_of_their_own(pools: Pools, tmp_path: Path) -> None:
    server = pools().get(config(launch_log=tmp_path / "launches"))
    facts = launch_facts(tmp_path / "launches")
    supervisor = supervisor_of(server)
    assert facts["sid"] == facts["pgid"] == facts["pid"]
    assert len({facts["sid"], os.getsid(supervisor.pid), os.getsid(0)}) == 3
    assert os.getsid(guard_of(server).pid) == os.getsid(supervisor.pid)
    assert facts["ppid"] == supervisor.pid


def test_the_terminals_interrupt_does_not_reach_the_engine(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    driver = Driver(folder=tmp_path, configs=[{"pids_file": str(pids)}])
    main = pids_in(pids)["main"]
    os.killpg(driver.process.pid, signal.SIGINT)  # what a terminal does to the foreground group
    driver.process.wait(10)
    until(gone(pids, 1), PROMISE_S)
    assert (tmp_path / "logs" / ".gitignore").read_text() == "*\n", "logs are nothing to commit"
    log = next((tmp_path / "logs").glob("*.log")).read_text()
    assert "Shutting down" in log, f"{main} was not stopped in order"


def test_an_engine_that_dies_takes_its_children_along_and_check_tells_why(pools: Pools, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    server = pools().get(config(children=1, orphans=1, pids_file=pids))
    server.check()
    os.kill(pids_in(pids)["main"][0], signal.SIGKILL)
    until(gone(pids, 3), PROMISE_S)
    with pytest.raises(ServerDiedError, match="killed by SIGKILL, and not by this session") as died:
        server.check()
    assert str(server.launch.log_path) in str(died.value)


@pytest.mark.parametrize("which", [[guard_of], [supervisor_of], [guard_of, supervisor_of]])
def test_a_killed_guard_or_supervisor_leaves_nothing_either(
    pools: Pools, tmp_path: Path, which: list[Callable[[Server], psutil.Process]]
) -> None:
    pids = tmp_path / "pids"
    secret = {"env": {"HF_TOKEN": "hf_verysecret123"}, "log_secrets": 1}
    server = pools(stop_grace=1.0).get(config(deaf=1, children=1, orphans=1, pids_file=pids, **secret))
    path = server.launch.log_path
    assert path is not None
    assert "hf_verysecret123" in path.read_text()
    for process in [find(server) for find in which]:
        process.kill()
    until(lambda: server.life.ended(0.1))
    with pytest.raises(ServerDiedError, match="supervisor was killed"):
        server.check()
    server.stop()
    assert gone(pids, 3)()
    assert "hf_verysecret123" not in path.read_text()


def test_pytest_and_supervisor_killed_together_leave_nothing(tmp_path: Path) -> None:
    """Behind a wrapper the kernel's word to the engine (PDEATHSIG) reaches the wrapper alone."""
    pids, wrapper = tmp_path / "pids", tmp_path / "wrapper"
    wrapper.write_text('#!/bin/sh\n"$@" & wait\n')
    wrapper.chmod(0o755)
    asked = {"pids_file": str(pids), "children": 1, "child_deaf": 1, "deaf": 1, "orphans": 1}
    secret = {"env": {"HF_TOKEN": "hf_verysecret123"}, "log_secrets": 1}
    driver = Driver(folder=tmp_path, configs=[{**asked, **secret}], command=[str(wrapper), sys.executable, str(FAKE)])
    (guard,) = psutil.Process(driver.process.pid).children()
    guard.children()[0].kill()
    driver.kill()
    until(gone(pids, 3), PROMISE_S)
    guard.wait(PROMISE_S)
    (log,) = (tmp_path / "logs").glob("*.log")
    assert "HF_TOKEN=***" in log.read_text()


@pytest.mark.parametrize("asked", [guard_of, supervisor_of])
def test_a_supervisor_asked_to_end_stops_its_tree(
    pools: Pools, tmp_path: Path, asked: Callable[[Server], psutil.Process]
) -> None:
    pids = tmp_path / "pids"
    server = pools().get(config(children=1, pids_file=pids))
    asked(server).terminate()
    until(gone(pids, 2), PROMISE_S)
    assert server.life.ended(2.0) is not None


def test_a_fork_of_pytest_cannot_stop_its_parents_server(pools: Pools, tmp_path: Path) -> None:
    server = pools().get(config(pids_file=tmp_path / "pids"))
    child = os.fork()
    if child == 0:
        server.stop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    server.check()
    assert len(alive(pids_in(tmp_path / "pids")["main"])) == 1


def test_no_secret_in_the_supervisors_command_line_and_none_of_its_descriptors_in_the_engine(
    pools: Pools, tmp_path: Path
) -> None:
    server = pools().get(config(env={"HF_TOKEN": "hf_verysecret123"}, pids_file=tmp_path / "pids"))
    words = " ".join(supervisor_of(server).cmdline())
    assert "hf_verysecret123" not in words
    assert str(server.launch.endpoint.api_key) not in words
    main = pids_in(tmp_path / "pids")["main"][0]
    links = [str(p.readlink()) for p in Path(f"/proc/{main}/fd").iterdir() if p.is_symlink()]
    assert not [x for x in links if x.startswith("pipe:") or "lock" in x], links
