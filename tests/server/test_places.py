"""Engines behind a prefix: ssh, srun, containers, several nodes."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_llmperf.engines.base import Endpoint, EngineSettings
from pytest_llmperf.errors import LaunchError
from pytest_llmperf.server import places
from pytest_llmperf.server.places import expand
from tests.server.fakes import FAKE, FileInventory, Pools, alive, config, pids_in, until

HERE = Endpoint("127.0.0.1", 1, api_key="sk-launch")
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "multi-node.md"


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_without_a_placeholder_words_stay_as_they_are() -> None:
    assert expand(["srun", "python", "$x"], {"NCCL_PROTO": "LL"}, HERE, "vllm m") == ("srun", "python", "$x")


def test_the_placeholder_carries_the_declared_variables() -> None:
    words = expand(["docker", "run", "image", "{env}", "python"], {"B": "2 3", "A": "1"}, HERE, "vllm m")
    assert words == ("docker", "run", "image", "env", "A=1", "B=2 3", "python")
    assert expand(["docker", "{env}", "python"], {}, HERE, "vllm m") == ("docker", "python")


def test_words_behind_ssh_survive_the_shell_there() -> None:
    model = 'it\'s $(touch x); `y` && "z"'
    words = expand(["/usr/bin/ssh", "-tt", "box", "{env}", "python", model], {"A": "$HOME"}, HERE, "vllm m")
    assert words[:3] == ("/usr/bin/ssh", "-tt", "box")
    assert shlex.split(" ".join(words[3:])) == ["env", "A=$HOME", "python", model]
    shown = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {' '.join(words[5:])}"], check=True, capture_output=True, text=True
    )
    assert shown.stdout == f"python\n{model}\n"


def test_ssh_that_would_drop_variables_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"vllm m: ssh would not carry NCCL_PROTO .* put '{env}'"):
        expand(["ssh", "box", "python"], {"NCCL_PROTO": "LL"}, HERE, "vllm m")
    assert expand(["ssh", "box", "python"], {}, HERE, "vllm m")
    assert expand(["ssh", "-oSendEnv=NCCL_*", "box", "python"], {"NCCL_PROTO": "LL"}, HERE, "vllm m")


@pytest.mark.parametrize(
    "command",
    [
        ["docker", "run", "--rm", "image", "vllm"],
        ["sudo", "-E", "/usr/bin/podman", "run", "image", "vllm"],
        ["nerdctl", "run", "image", "vllm"],
        ["timeout", "600", "kubectl", "exec", "pod", "--", "vllm"],
        ["sshpass", "-e", "/usr/bin/ssh", "box", "vllm"],
        ["sudo", "vllm"],
        ["docker", "run", "-e", "NCCL_ALGO", "--env=OTHER", "image", "vllm"],
    ],
)
def test_launchers_that_would_drop_variables_are_refused(command: list[str]) -> None:
    with pytest.raises(LaunchError, match=r"vllm m: \w+ would not carry NCCL_PROTO to the engine: put '{env}'"):
        expand(command, {"NCCL_PROTO": "LL"}, HERE, "vllm m")
    assert expand(command, {}, HERE, "vllm m")
    assert expand([*command[:-1], "{env}", "vllm"], {"NCCL_PROTO": "LL"}, HERE, "vllm m")


@pytest.mark.parametrize(
    "command",
    [
        ["docker", "run", "-e", "NCCL_PROTO", "image", "vllm"],
        ["podman", "run", "--env=NCCL_PROTO", "image", "vllm"],
        ["podman", "run", "--env-host", "image", "vllm"],
        ["sudo", "-E", "vllm"],
        ["apptainer", "exec", "image.sif", "vllm"],
    ],
)
def test_launchers_that_carry_variables_are_left_alone(command: list[str]) -> None:
    assert expand(command, {"NCCL_PROTO": "LL"}, HERE, "vllm m") == tuple(command)


def test_a_value_that_is_called_like_a_launcher_is_none() -> None:
    argv = ["vllm", "serve", "models/docker"]
    assert expand(argv, {"NCCL_PROTO": "LL"}, HERE, "vllm m", argv[:2]) == tuple(argv)


@pytest.mark.parametrize(
    "ssh",
    [
        ["ssh", "box"],
        ["ssh", "-tt", "-p", "22", "-oUser=me", "-vi", "key", "--", "box"],
        ["sshpass", "-f", "secret", "/usr/bin/ssh", "-J", "jump", "box"],
    ],
)
def test_words_behind_a_host_are_quoted_without_a_placeholder_too(ssh: list[str]) -> None:
    words = ["vllm", "serve", "--speculative-config", '{"method": "ngram"}', "--served-model-name=a b"]
    argv = expand([*ssh, *words], {}, HERE, "vllm m")
    assert list(argv[: len(ssh)]) == ssh
    assert shlex.split(" ".join(argv[len(ssh) :])) == words


def test_what_stands_before_the_placeholder_is_the_other_shells() -> None:
    argv = expand(["ssh", "box", "cd /opt &&", "{env}", "vllm", "a b"], {"A": "1 2"}, HERE, "vllm m")
    assert argv == ("ssh", "box", "cd /opt &&", "env", "'A=1 2'", "vllm", "'a b'")


def test_secrets_do_not_go_into_process_lists() -> None:
    with pytest.raises(LaunchError, match="HF_TOKEN would show in the process lists") as caught:
        expand(["ssh", "box", "{env}", "python"], {"HF_TOKEN": "hf_verysecret123"}, HERE, "vllm m")
    assert "hf_verysecret123" not in str(caught.value)
    assert expand(["ssh", "box", "{env}", "python"], {"VLLM_API_KEY": "sk-launch"}, HERE, "vllm m")


# -- as servers: fake launchers that do what the real ones do with their words


SSH = """#!/bin/sh
while [ "$1" != box ]; do shift; done; shift
cd / && exec env -i PATH="$PATH" HOME=/ sh -c "$*"
"""


def test_a_server_behind_ssh(pools: Pools, tmp_path: Path) -> None:
    ssh = program(tmp_path / "ssh", SSH)
    own = EngineSettings(command=(ssh, "-tt", "box", "{env}", sys.executable, str(FAKE)), remote=True)
    pool = pools(engines={"fake": own})
    asked = config(launch_log=tmp_path / "launches", pids_file=tmp_path / "pids", env={"NCCL_PROTO": "LL 128"})
    server = pool.get(asked)
    assert json.loads((tmp_path / "launches").read_text())["env"]["NCCL_PROTO"] == "LL 128"
    server.check()
    pool.close()
    assert alive(pids_in(tmp_path / "pids")["main"]) == []
    assert pool.notices == []


CLIENT = """#!/bin/sh
# A client of a daemon, which runs the container whatever becomes of the client.
while [ "$1" != image ]; do shift; done; shift
for word; do printf '%s\\n' "$word"; done > "$ASKED.part" && mv "$ASKED.part" "$ASKED"
exec sleep 60
"""


def test_a_container_that_outlives_its_client_is_said(
    pools: Pools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places.still_up, "__defaults__", (0.3,))
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    containers: list[subprocess.Popen[bytes]] = []

    def daemon() -> None:
        until((tmp_path / "asked").exists)
        containers.append(subprocess.Popen((tmp_path / "asked").read_text().splitlines()))

    running = threading.Thread(target=daemon)
    running.start()
    docker = program(tmp_path / "docker", CLIENT)
    own = EngineSettings(command=(docker, "run", "image", "{env}", sys.executable, str(FAKE)), remote=True)
    pool = pools(engines={"fake": own})
    server = pool.get(config())
    running.join()
    pool.close()
    containers[0].kill()
    containers[0].wait()
    assert pool.notices == [
        f"{server.launch.config.label}: {server.launch.endpoint.root_url} still answers with the API key of this "
        "launch after its launcher was stopped: end it where it runs"
    ]


def test_a_lease_reaches_an_engine_behind_a_launcher(pools: Pools, tmp_path: Path) -> None:
    (tmp_path / "gpus.json").write_text(json.dumps({"gpus": ["GPU-a", "GPU-b"]}))
    podman = program(tmp_path / "podman", '#!/bin/sh\nshift 2\nexec env -i PATH="$PATH" "$@"\n')
    asked = config(engine="fakegpu", launch_log=tmp_path / "launches")
    for words in ([], ["{env}"]):
        own = EngineSettings(command=(podman, "run", "image", *words, sys.executable, str(FAKE)))
        pool = pools(FileInventory(tmp_path / "gpus.json"), engines={"fakegpu": own})
        if words:
            pool.get(asked)
        else:
            with pytest.raises(LaunchError, match="podman would not carry CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES"):
                pool.get(asked)
    assert json.loads((tmp_path / "launches").read_text())["env"]["CUDA_VISIBLE_DEVICES"] == "0"


def test_a_remote_server_that_is_not_ours_is_known_by_its_key(pools: Pools) -> None:
    theirs = pools().get(config())
    own = EngineSettings(port=theirs.launch.endpoint.port, remote=True)
    with pytest.raises(LaunchError, match="refuses the API key that was made for this launch"):
        pools(engines={"fake": own}).get(config(start_s=60))


def script_of(page: Path, name: str) -> str:
    """The code block that follows ``name`` in a documentation page."""
    found = re.search(rf"`{re.escape(name)}`[^\n]*:\n+```\w*\n(.*?)```", page.read_text(), re.DOTALL)
    assert found, f"{page} shows no {name}"
    return found.group(1)


SRUN = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
export SLURM_NNODES=2 SLURM_JOB_NODELIST="node-[a-b]"
SLURM_PROCID=1 "$@" & one=$!
SLURM_PROCID=0 "$@" & zero=$!
trap 'kill $zero $one' TERM INT
wait $zero; wait $zero; wait $one
"""
ENGINE = f"""#!/bin/sh
# Like the engines: only rank 0 answers HTTP.
shift 2
for word; do case "$word" in --node-rank=*) rank="${{word#*=}}";; esac; done
[ "$rank" = 0 ] && exec {sys.executable} {FAKE} "$@"
echo "$$" > "$RANKS/$rank"; exec sleep 60
"""


def test_the_documented_template_for_several_nodes(pools: Pools, tmp_path: Path) -> None:
    srun = program(tmp_path / "srun", SRUN)
    node = program(tmp_path / "node.sh", script_of(PAGE, "node.sh"))
    python = program(tmp_path / "python", ENGINE)
    program(tmp_path / "scontrol", '#!/bin/sh\n[ "$*" = "show hostnames node-[a-b]" ] && printf "node-a\\nnode-b\\n"\n')
    own = EngineSettings(
        command=(srun, "--nodes=2", "--ntasks-per-node=1", node, python, "-m", "sglang.launch_server"), remote=True
    )
    pool = pools(engines={"fake": own})
    env = {"RANKS": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    asked = config(launch_log=tmp_path / "launches", pids_file=tmp_path / "pids", env=env)
    server = pool.get(asked)
    argv = json.loads((tmp_path / "launches").read_text())["argv"]
    assert "--nnodes=2" in argv
    assert "--node-rank=0" in argv
    assert "--dist-init-addr=node-a:20000" in argv
    other = int((tmp_path / "1").read_text())
    assert alive([other])
    server.stop()
    assert alive([other, *pids_in(tmp_path / "pids")["main"]]) == []
