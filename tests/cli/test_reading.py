"""What a pasted command may hold beside its flags: launchers, scripts, compose files, secrets."""

from __future__ import annotations

import io
import re
import shlex
import sys
from pathlib import Path

import pytest

from pytest_llmperf.cli.main import main
from pytest_llmperf.engines import command_reader
from pytest_llmperf.engines.base import Command
from pytest_llmperf.engines.registry import builtin
from tests.cli.test_marker import found, keywords


def read(command: str) -> dict[str, object]:
    """The keywords of the marker of ``command``."""
    pasted = found(command)
    return dict(command_reader.declared(pasted.engine, pasted.words, pasted.env).keywords)


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("vllm serve m", "vllm serve"),
        ("/opt/vllm/bin/vllm serve m", "/opt/vllm/bin/vllm serve"),
        ("uv run --no-sync vllm serve m", "uv run --no-sync vllm serve"),
        ("taskset -c 0-7 env A=1 python -u -m sglang.launch_server --model m",
         "taskset -c 0-7 python -u -m sglang.launch_server"),
        ("conda run -n vllm vllm serve m", "conda run -n vllm vllm serve"),
        ("sudo -u llm sglang serve --model-path m", "sudo -u llm {env} sglang serve"),
        ("kubectl exec pod-0 -- vllm serve m", "kubectl exec pod-0 -- {env} vllm serve"),
        ("ssh -tt gpu-box 'cd /opt && A=1 vllm serve m'", "ssh -tt gpu-box {env} vllm serve"),
        ("docker exec box python3 -m sglang.launch_server --model m",
         "docker exec box {env} python3 -m sglang.launch_server"),
        ("docker run -it --gpus all vllm/vllm-openai m",
         "docker run --gpus=all --rm --init --network=host --entrypoint= vllm/vllm-openai {env} vllm serve"),
        ("docker run --entrypoint vllm --net host vllm/vllm-openai serve m", "docker run --rm --init --network=host "
         "--entrypoint= vllm/vllm-openai {env} vllm serve"),
        ("podman run -e A=1 vllm:cpu bash -c 'cd / && python3 -m vllm.entrypoints.openai.api_server --model m'",
         "podman run --rm --init --network=host vllm:cpu {env} python3 -m vllm.entrypoints.openai.api_server"),
    ],
)  # fmt: skip
def test_launchers_stand_before_the_program(command: str, program: str) -> None:
    pasted = found(command)
    assert pasted.program == tuple(program.split())
    assert "m" in pasted.words
    assert "A=1" not in command or pasted.env == {"A": "1"}
    assert not any("before it" in note for note in pasted.notes) or "cd /" in command
    assert pasted.settings == ({"remote": True} if command.startswith(("docker", "ssh", "kubectl")) else {})


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("vllm serve --tensor-parallel-size 2 m", {"model": "m", "tp": 2}),
        ("vllm serve --enable-expert-parallel m -tp 2",
         {"model": "m", "tp": 2, "vllm": {"enable_expert_parallel": True}}),
        ("vllm serve m --tensor-parallel 2", {"model": "m", "tp": 2}),
        ("vllm serve m -O2 -ep -q fp8", {"model": "m", "quantization": "fp8",
         "vllm": {"optimization_level": 2, "enable_expert_parallel": True}}),
        ("vllm serve m -O.level=3 -O.pass_config.noop=true -O.pass_config.fuse=false -O.custom_ops+=a,b",
         {"model": "m", "vllm": {"compilation_config": {"level": 3, "pass_config": {"noop": True, "fuse": False},
                                                        "custom_ops": ["a", "b"]}}}),
        ("vllm serve m --max-model-len 32K --revision 1.10 --compilation-config.size 80g --swap-space=0.90",
         {"model": "m", "context_length": 32768,
          "vllm": {"revision": "1.10", "compilation_config": {"size": 80_000_000_000}, "swap_space": 0.9}}),
        ("vllm serve m --num-gpu-blocks-override -1", {"model": "m", "vllm": {"num_gpu_blocks_override": -1}}),
        ("vllm serve m --attention-backend FLASHINFER --seed 0", {"model": "m", "attention_backend": "FLASHINFER",
         "seed": 0}),
        ("sglang serve --model-path m --cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled",
         {"model": "m", "cuda_graph": False}),
        ("sglang serve --model-path m --speculative-algorithm EAGLE3 --speculative-draft-model-path d "
         "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
         {"model": "m", "speculative": {"method": "eagle3", "model": "d", "num_tokens": 3}}),
        # without the tokens it is no declaration of ours, and is not torn in two
        ("sglang serve --model-path m --speculative-algorithm EAGLE3 --speculative-draft-model-path d "
         "--speculative-num-steps 3 --speculative-eagle-topk 1",
         {"model": "m", "sglang": {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "d",
                                   "speculative_num_steps": 3, "speculative_eagle_topk": 1}}),
        ("sglang serve --model-path m --nnodes 1 --node-rank 0",
         {"model": "m", "sglang": {"nnodes": 1, "node_rank": 0}}),
        ("sglang serve --model-path m --base-gpu-id 4", {"model": "m"}),
        ("NCCL_ALGO=Ring NCCL_NTHREADS=512 NCCL_NEWER=x vllm serve m",
         {"model": "m", "nccl": {"algo": "Ring", "nthreads": 512}, "env": {"NCCL_NEWER": "x"}}),
    ],
)  # fmt: skip
def test_flags_and_variables_become_keys(command: str, expected: dict[str, object]) -> None:
    assert read(command) == expected


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("vllm serve --max-num-seqs 8", "names no model"),
        ("vllm serve m --model other", r"names 2 models \(m, other\)"),
        ("vllm serve m -tp 2 --tensor-parallel-size 4", "--tensor-parallel-size 2 and --tensor-parallel-size 4"),
        ("vllm serve m -cc.mode 3 --compilation-config '{\"level\": 3}'", "set the same"),
        ("vllm serve m --hf-overrides '{\"a\": NaN}'", "nan cannot be written"),
        ("vllm serve m --data-parallel-start-rank 2", "one node's part"),
        ("llama-server -m m.gguf -fmoe", "-fmoe"),
        ("llama-server -hf org/m", "names no model"),
        ("docker run --gpus all", "names no image"),
    ],
)
def test_what_has_no_marker_is_said(command: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["marker", "--", command]) == 4
    assert re.search(reason, capsys.readouterr().err)


def test_a_difference_is_found_in_both_directions() -> None:
    engine = builtin()["vllm"]
    words = shlex.split("m --max-num-seqs 8 --enforce-eager --host h")
    made = Command(
        ("vllm", "serve", "m", "--max-num-seqs", "9", "--port", "1", "--seed", "1", "--api-key", "k"), {"B": "2"}
    )
    differs = command_reader.round_trip(engine, words, {"A": "1", "HF_TOKEN": "x"}, made, 2)
    assert differs.lost == ("--max-num-seqs 8", "--enforce-eager", "--seed 1, which was not there", "A=1")
    made = Command(("vllm", "serve", "n", *words[1:], "--enable-prompt-tokens-details"), {})
    differs = command_reader.round_trip(engine, words, {}, made, 2)
    assert (differs.lost, differs.added) == (("model 'm'",), ("--enable-prompt-tokens-details",))


def test_the_verb_prints_a_marker_and_what_stands_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    command = (
        "NCCL_P2P_DISABLE=1 HF_TOKEN=sesame numactl -N 0 vllm serve m -tp 2 --port 1 --api-key sesame --hf-token sesame"
    )
    assert main(["marker", "--", *shlex.split("env " + command)]) == 0
    out = capsys.readouterr().out
    assert keywords(out) == {"model": "m", "tp": 2, "nccl": {"p2p_disable": 1}}
    assert 'command = ["numactl", "-N", "0", "vllm", "serve"]' in out
    assert "sesame" not in out
    assert "the plugin's to set: --port 1, --api-key ***" in out
    for left_out in ("--hf-token ***", "HF_TOKEN"):
        assert left_out in out


def test_a_script_gives_a_marker_for_each_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "serve.sh"
    script.write_text(
        """#!/bin/bash
set -e
source /opt/venv/bin/activate
MODEL=org/model   # the large one
export NCCL_DEBUG=WARN VLLM_X="a b"
TP=${TP:-4}
ARGS=(--max-model-len 4096
      --hf-overrides '{"a": "$no"}')
ARGS+=(--seed "7")
EXTRA="--max-num-seqs 8 --enforce-eager"
CUDA_VISIBLE_DEVICES=0 nohup vllm serve "$MODEL" -tp $TP "${ARGS[@]}" $EXTRA > log 2>&1 &
curl -s localhost:8000/health; echo "vllm serve is up"
if [ -n "$SMALL" ]; then
  MODEL=org/small
fi
vllm serve $MODEL
vllm serve org/other --node-rank 1 --headless
for N in 1 2; do vllm serve org/last --max-num-seqs $N; done
""",
        encoding="utf-8",
    )
    monkeypatch.delenv("TP", raising=False)
    monkeypatch.delenv("N", raising=False)
    monkeypatch.setenv("MODEL", "org/from-outside")
    assert main(["marker", "--file", str(script)]) == 4
    out, err = capsys.readouterr()
    first, second = (part for part in out.split("\n\n") if part)
    assert keywords(first) == {
        "model": "org/model",
        "tp": 4,
        "cuda_graph": False,
        "max_running_requests": 8,
        "context_length": 4096,
        "seed": 7,
        "nccl": {"debug": "WARN"},
        "env": {"VLLM_X": "a b"},
        "vllm": {"hf_overrides": {"a": "$no"}},
    }
    assert "`source /opt/venv/bin/activate` ran" in first
    assert f"{script}:11" in first
    assert keywords(second)["model"] == "org/from-outside"  # what is set under a condition, the environment decides
    assert f"{script}:17: --headless" in err
    assert f"{script}:18: $N has no value" in err


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('vllm serve m "$@" ${X:+--a 1} ${HOME:+--b "$HOME/x"}', ["m", "--b", "/home/u/x"]),
        ('A=(1 \'2 3\'); vllm serve m --a "${A[@]}" "${UNSET[@]}"', ["m", "--a", "1", "2 3"]),
        ("vllm serve m --a \"x y\"'z w'\\ v --b \\\n  2 # not this", ["m", "--a", "x yz w v", "--b", "2"]),
        ("vllm serve m --a ~/x --b x/~/y 2>&1 >log | tee log", ["m", "--a", "/home/u/x", "--b", "x/~/y"]),
        ("X=a; X+=b; (vllm serve m --a $X)", ["m", "--a", "ab"]),
        ("if true; then A+=(--b); fi; vllm serve m ${A[@]}", ["m", "\0${A[@]}\0"]),
        ("vllm serve m --a $(nproc --all) --b `hostname`", ["m", "--a", "\0$(nproc --all)\0", "--b", "\0`hostname`\0"]),
        ("vllm serve m --a \"\" --b ''", ["m", "--a", "", "--b", ""]),
    ],
)
def test_words_are_those_that_a_shell_would_pass(script: str, words: list[str]) -> None:
    assert list(found(script).words) == words


def test_standard_input_is_a_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("vllm serve m \\\n  -tp 2\n"))
    assert main(["marker", "--file", "-"]) == 0
    assert keywords(capsys.readouterr().out) == {"model": "m", "tp": 2}


@pytest.mark.parametrize("arguments", [[], ["--file", "nowhere.sh"], ["--", "ls", "-l"], ["--file", "x", "--", "vllm"]])
def test_what_is_no_launch_command_is_a_wrong_argument(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["marker", *arguments]) == 4
    assert capsys.readouterr().err.startswith("llmperf: error: ")


COMPOSE = """
services:
  sglang:
    container_name: sglang
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              device_ids: ['0', '1', '2', '3']
              capabilities: [gpu]
    environment: {NCCL_P2P_DISABLE: 1, PRICE: "$$5", HF_TOKEN: "${HF_TOKEN}"}
    volumes:
      - /path/to/Qwen2-57B-A14B-Instruct:/model:ro
    restart: always
    healthcheck: {test: [CMD, "true"]}
    ulimits:
      memlock: -1
      stack: {soft: 1, hard: 2}
    ports:
      - 10086:8000
    ipc: host
    image: lmsysorg/sglang:${VERSION:-v0.2.13-cu121}
    command:
      python3 -m sglang.launch_server
      --model-path /model
      --host 0.0.0.0 --port 8000 --tp-size 4
  vllm:
    image: vllm/vllm-openai
    gpus: all
    environment: [VLLM_X=1, PASSED]
    command: [--model, m, --hf-overrides, '{"a": 1}']
  page:
    image: webui
"""


def test_a_compose_file_gives_a_marker_for_each_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first service is that of sgl-project/sglang issue 1117."""
    file = tmp_path / "compose.yml"
    file.write_text(COMPOSE, encoding="utf-8")
    monkeypatch.delenv("VERSION", raising=False)
    assert main(["marker", "--file", str(file)]) == 0
    sglang, vllm = (part for part in capsys.readouterr().out.split("\n\n") if part)
    assert keywords(sglang) == {"model": "/model", "tp": 4, "nccl": {"p2p_disable": 1}, "env": {"PRICE": "$5"}}
    assert keywords(vllm) == {"model": "m", "env": {"VLLM_X": "1"}, "vllm": {"hf_overrides": {"a": 1}}}
    assert (
        'command = ["docker", "run", "--volume=/path/to/Qwen2-57B-A14B-Instruct:/model:ro", "--ipc=host", '
        '"--ulimit=memlock=-1", "--ulimit=stack=1:2", "--gpus=\\"device=0,1,2,3\\"", "--rm", "--init", '
        '"--network=host", "lmsysorg/sglang:v0.2.13-cu121", "{env}", "python3", "-m", "sglang.launch_server"]'
    ) in sglang
    for said in ("--name sglang", "--restart always", "--publish 10086:8000", "healthcheck"):
        assert said in sglang
    assert '"--env=PASSED"' in vllm


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("services: [", "is no YAML"),
        ("image: x", "no table `services`"),
        ("services: {a: {image: vllm, credential_spec: x}}", "credential_spec"),
    ],
)
def test_what_is_no_compose_file_is_said(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text(text, encoding="utf-8")
    assert main(["marker", "--file", str(file)]) == 4
    assert reason in capsys.readouterr().err


def test_a_missing_yaml_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "compose.yml"
    file.write_text(COMPOSE, encoding="utf-8")
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert main(["marker", "--file", str(file)]) == 4
    assert "pip install 'pytest-llmperf[compose]'" in capsys.readouterr().err
