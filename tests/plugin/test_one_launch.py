"""One launch per config and session, whatever the order of the tests and however they are spread."""

from __future__ import annotations

import itertools

import pytest

from pytest_llmperf.session.schedule import groups
from tests.plugin.conftest import Project

A = """
import os, pytest
server = pytest.mark.llm_server

def log(*words):
    with open(os.environ["RUN_LOG"], "a") as file:
        print(os.environ.get("PYTEST_XDIST_WORKER", "main"), *words, file=file)

@pytest.fixture(autouse=True)
def trace(request):
    yield
    log(request.node.name, os.getpid())

@server(model="one")
def test_1(llm_server):
    assert llm_server.effective.model == "one"

@server(model="two")
def test_2(llm_server):
    assert llm_server.effective.model == "two"

def test_plain():
    pass

@server(model="one")
@pytest.mark.xdist_group("mine")
def test_3(llm_server):
    assert llm_server.effective.model == "one"

@server(model="never")
@pytest.mark.skip(reason="not today")
def test_skipped(llm_server):
    pass
"""
B = """
import pytest
from test_a import log, trace
server = pytest.mark.llm_server

@server(model="two")
class TestTwo:
    def test_4(self, llm_server):
        pass

    @server(model="one")
    def test_5(self, llm_server):
        assert llm_server.effective.model == "one"

@server(model="one")
@pytest.mark.parametrize("dtype", [pytest.param("half", marks=server(dtype="half")), "auto"])
def test_6(llm_server, dtype):
    assert llm_server.config.dtype == (None if dtype == "auto" else dtype)
"""


@pytest.fixture
def interleaved(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Two modules whose tests alternate between configs ``one`` and ``two``, and one test of ``one half``."""
    monkeypatch.setenv("RUN_LOG", str(project.path / "run.log"))
    (project.path / "test_perf.py").unlink()
    project.suite(A, "test_a.py")
    project.suite(B, "test_b.py")
    return project


def ran(project: Project) -> list[tuple[str, str]]:
    """(worker, test) in the order of their ends."""
    lines = (project.path / "run.log").read_text().splitlines()
    return [(line.split()[0], line.split()[1].partition("[")[0]) for line in lines]


ONE, TWO = {"test_1", "test_3", "test_5"}, {"test_2", "test_4"}


def spread(project: Project) -> dict[str, list[str]]:
    """Worker to what it ran, in order."""
    by_worker: dict[str, list[str]] = {}
    for worker, test in ran(project):
        by_worker.setdefault(worker, []).append(test)
    return by_worker


def assert_neighbours(project: Project) -> None:
    """Each config's tests ran on one worker, one after the other."""
    for group in (ONE, TWO):
        workers = [w for w, test in ran(project) if test in group]
        assert len(set(workers)) == 1
        order = [test in group for test in spread(project)[workers[0]]]
        assert [k for k, _ in itertools.groupby(order)].count(True) == 1, spread(project)


def test_serial(interleaved: Project) -> None:
    result = interleaved.run_here("-v")
    assert result.ret == 0, result.outlines
    result.assert_outcomes(passed=8, skipped=1)
    assert sorted(interleaved.models) == ["one", "one", "two"]  # "one" once more as half
    assert_neighbours(interleaved)
    # otherwise in the order of the files
    assert [t for _, t in ran(interleaved)] == [
        *("test_1", "test_3", "test_5", "test_6", "test_2", "test_4", "test_plain", "test_6"),
    ]  # fmt: skip
    servers = {s["config"]["model"]: s for s in interleaved.report["servers"]}
    assert [len(s["launches"]) for s in interleaved.report["servers"]] == [1, 1, 1]
    assert "never" not in servers


@pytest.mark.parametrize(
    "args",
    [
        ("-n", "4", "--dist", "load"),
        ("-n", "2", "--dist", "loadscope"),
        ("-n", "4", "--dist", "loadgroup"),
        ("-n", "2", "--dist", "worksteal"),
    ],
    ids=" ".join,
)
def test_under_xdist(interleaved: Project, args: tuple[str, ...]) -> None:
    result = interleaved.run(*args)
    assert result.ret == 0, result.outlines
    result.assert_outcomes(passed=8, skipped=1)
    assert sorted(interleaved.models) == ["one", "one", "two"]
    assert_neighbours(interleaved)
    assert len(spread(interleaved)) > 1


@pytest.mark.parametrize(
    ("args", "models"),
    [
        (("-p", "no:xdist"), ["one", "one", "two"]),
        (("-k", "test_2 or test_4"), ["two"]),
        (("-k", "test_skipped or test_plain"), []),
        (("--deselect", "test_a.py::test_1"), ["one", "one", "two"]),
        (("test_b.py::TestTwo::test_5", "test_a.py::test_2", "test_a.py::test_3"), ["one", "two"]),
        (("-p", "no:terminal"), ["one", "one", "two"]),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_selections(interleaved: Project, args: tuple[str, ...], models: list[str]) -> None:
    result = interleaved.run_here(*args)
    assert result.ret == 0, result.outlines
    assert sorted(interleaved.models) == models


def test_a_server_stops_when_its_last_test_ends(interleaved: Project) -> None:
    """At no time do more servers run than the test that runs needs."""
    interleaved.suite(
        """
import os, pytest
from tests_conftest import running

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    with open("alive.log", "a") as file:
        print(item.name, running(), file=file)
    return (yield)
""",
        "conftest.py",
    )
    interleaved.suite(
        """
import os
from pathlib import Path

def running():
    pids = Path(os.environ["FAKE_PIDS_FILE"])
    found = [int(line.split()[1]) for line in pids.read_text().splitlines()] if pids.exists() else []
    return sum(Path(f"/proc/{pid}").exists() for pid in found)
""",
        "tests_conftest.py",
    )
    interleaved.base.pytester.syspathinsert()
    assert interleaved.run_here().ret == 0
    seen = [line.split() for line in (interleaved.path / "alive.log").read_text().splitlines()]
    # before its setup a test sees the server of the test before it only when it will use that same one
    assert seen == [
        ["test_1[sglang]", "0"],
        ["test_3[sglang]", "1"],
        ["test_5[sglang]", "1"],
        ["test_6[sglang-auto]", "1"],
        ["test_2[sglang]", "0"],
        ["test_4[sglang]", "1"],
        ["test_plain", "0"],
        ["test_skipped[sglang]", "0"],
        ["test_6[sglang-half]", "0"],
    ]


def test_exit_on_the_first_failure_leaves_nothing(interleaved: Project) -> None:
    interleaved.suite("import pytest\n@pytest.mark.llm_server(model='one')\ndef test_0(llm_server): assert 0\n",
                      "test_0.py")  # fmt: skip
    result = interleaved.run_here("-x")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)
    assert interleaved.models == ["one"]
    interleaved.wait_until_nothing_runs()


def test_last_failed_runs_with_its_own_order(interleaved: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """--lf and --ff choose and reorder after everyone else, and still no config is launched twice."""
    interleaved.suite(
        """
import os, pytest
@pytest.mark.llm_server(model="one")
def test_x(llm_server):
    assert "HEALED" in os.environ
@pytest.mark.llm_server(model="two")
def test_y(llm_server):
    assert "HEALED" in os.environ
""",
        "test_c.py",
    )
    interleaved.run_here().assert_outcomes(passed=8, skipped=1, failed=2)
    monkeypatch.setenv("HEALED", "1")
    for log in ("fake-launches.jsonl", "run.log"):
        (interleaved.path / log).unlink()
    interleaved.run_here("--ff").assert_outcomes(passed=10, skipped=1)
    assert sorted(interleaved.models) == ["one", "one", "two"]
    assert_neighbours(interleaved)
    monkeypatch.delenv("HEALED")
    interleaved.run_here("test_c.py", "-k", "test_y").assert_outcomes(failed=1, deselected=1)
    monkeypatch.setenv("HEALED", "1")
    (interleaved.path / "fake-launches.jsonl").unlink()
    result = interleaved.run_here("--lf")
    result.assert_outcomes(passed=1)
    assert interleaved.models == ["two"]
    assert "unused" not in interleaved.messages


SEVERAL = """
import pytest

@pytest.mark.llm_server(model="one")
@pytest.mark.llm_servers(half={"dtype": "half"}, other={"engine": "vllm"}, same={})
def test_several(llm_server, llm_servers):
    assert set(llm_servers) == {"half", "other", "same"}
    assert llm_servers["other"].config.engine == "vllm"
    assert llm_servers["same"].launch_id == llm_server.launch_id
    for server in llm_servers.values():
        assert server.client.models.list().data[0].id == server.model
    assert llm_servers["half"].client.completions.create(model="one", prompt="x", max_tokens=2).choices[0].text

@pytest.mark.llm_server(model="one", dtype="half")
def test_half(llm_server):
    pass

@pytest.mark.llm_server(model="one", engine="vllm")
def test_vllm(llm_server):
    pass
"""


def test_several_servers_at_once(project: Project) -> None:
    project.suite(SEVERAL)
    result = project.run_here("--engine", "vllm", "-k", "not test_several or sglang")
    assert result.ret == 0, result.outlines
    result.assert_outcomes(passed=4, deselected=1)
    # one, one half, one on vllm, and one half on vllm for test_half
    assert project.launches == 4


def test_each_runs_everything_everywhere(project: Project) -> None:
    """--dist each asks for that: two workers, two launches."""
    project.suite("import pytest\n@pytest.mark.llm_server(model='one')\ndef test_x(llm_server): pass\n")
    result = project.run("-n", "2", "--dist", "each")
    assert result.ret == 0, result.outlines
    assert project.launches == 2


def test_other_tests_keep_the_users_dist(interleaved: Project) -> None:
    """Where a group's tests go is ours to say; a module's fixtures are the user's reason for loadscope."""
    for name in ("test_p.py", "test_q.py"):
        body = "".join(f"def test_{i}(): log('{name}')\n" for i in range(6))
        interleaved.suite(f"from test_a import log\n{body}", name)
    result = interleaved.run("-n", "2", "--dist", "loadfile", "-k", "test_p or test_q or test_1")
    assert result.ret == 0, result.outlines
    by_module: dict[str, set[str]] = {}
    for worker, name in [line.split()[:2] for line in (interleaved.path / "run.log").read_text().splitlines()]:
        by_module.setdefault(name, set()).add(worker)
    assert len(by_module["test_p.py"]) == len(by_module["test_q.py"]) == 1


SPELLED = """
import pytest
server = pytest.mark.llm_server

@server(model="one", sglang={"stream_interval": 2})
def test_plain(llm_server):
    assert llm_server.config.flags == {"stream_interval": 2}

@server(model="one", sglang={"--stream-interval": "2"})
def test_pasted(llm_server):
    assert llm_server.config.flags == {"stream_interval": 2}
"""


def test_configs_that_differ_by_spelling_only_share_a_launch(project: Project) -> None:
    project.suite(SPELLED)
    result = project.run_here()
    result.assert_outcomes(passed=2)
    assert project.launches == 1


def test_groups_are_what_shares_a_server() -> None:
    needs = {"a": ["x"], "b": ["y"], "c": ["y", "z"], "d": ["z"], "e": ["w"]}
    found = groups(needs)
    assert found["a"] != found["b"]
    assert found["b"] == found["c"] == found["d"]
    assert found["e"] not in (found["a"], found["b"])
