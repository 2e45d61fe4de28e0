"""``llmperf inspect`` as a person and as a script meet it."""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pytest_llmperf.cli.main import main
from tests.inspection.engines import DEEPSEEK, NEW_SGLANG, OLD_SGLANG, VLLM, folder, wheel


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for here is the text, not where a narrow terminal breaks it."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def sglang(tmp_path: Path) -> Path:
    return wheel(tmp_path, "sglang", "0.5.99", NEW_SGLANG)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "deepseek"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(DEEPSEEK))
    return path


def test_the_answer_its_reason_and_its_line_are_on_the_page(
    sglang: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["inspect", "--engine", "sglang", "--source", str(sglang), "--model", str(model), "--gpu", "sm_100"])
    text = capsys.readouterr().out
    assert code == 0
    assert "sglang 0.5.99" in text
    assert "trtllm_mla" in text
    assert "sglang/srt/arg_groups/overrides.py:" in text
    assert "is: is_sm100() and cfg.attention_backend is None" in text
    assert "Assuming no environment variable" in text
    assert "--stream-interval" in text


def test_both_sides_of_an_open_question_are_on_the_page(sglang: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["inspect", "--engine", "sglang", "--source", str(sglang), "--gpu", "cpu"])
    text = capsys.readouterr().out
    assert "if torch.cpu._is_amx_tile_supported()" in text
    assert "if not (torch.cpu._is_amx_tile_supported())" in text


def test_json_says_the_same(sglang: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["inspect", "--engine", "sglang", "--source", str(sglang), "--model", str(model), "--gpu", "sm_100", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["engine"], found["version"]) == (1, "sglang", "0.5.99")
    default = found["defaults"][0]
    assert default["fields"] == ["attention_backend", "prefill_attention_backend"]
    (outcome,) = default["outcomes"]
    assert outcome["values"]["attention_backend"] == "trtllm_mla"
    assert outcome["at"]["attention_backend"].startswith("sglang/srt/arg_groups/overrides.py:")
    assert outcome["refused"] is None
    assert {c["flag"] for c in found["choices"]} >= {"--attention-backend"}


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_any_width(
    sglang: Path, columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["inspect", "--engine", "sglang", "--source", str(sglang), "-v"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= int(columns)


def test_what_the_source_says_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = OLD_SGLANG["srt/server_args.py"].replace("100%% fair", "\\x1b[31mred [bold]bold[/bold]\\x07")
    main(
        [
            "inspect",
            "--engine",
            "sglang",
            "--source",
            str(folder(tmp_path, "sglang", {**OLD_SGLANG, "srt/server_args.py": text})),
        ]
    )
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "[bold]bold[/bold]" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--source", "/gone.whl"], "no such file or folder"),
        (["--python", "/gone"], "no such program"),
        (["--source", "SGLANG", "--gpu", "voodoo2"], "not a GPU this can reason about"),
        (["--source", "SGLANG", "--model", "/gone"], "nothing is downloaded"),
        (["--source", "SGLANG", "--set", "oops"], "write FLAG=VALUE"),
        (["--source", "SGLANG", "--set", "oops=1"], "has no such launch flag"),
        (["--source", "SGLANG", "--running", "ftp://x"], "use http://host:port"),
        (["--source", "SGLANG", "--running", "http://127.0.0.1:1"], "no answer"),
    ],
)
def test_what_cannot_be_done_is_one_message_and_exit_code_4(
    sglang: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["inspect", "--engine", "sglang", *(str(sglang) if w == "SGLANG" else w for w in words)])
    shown = capsys.readouterr()
    assert code == 4
    assert message in shown.err
    assert "Traceback" not in shown.err


def test_an_engine_without_a_reader_is_refused_with_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["inspect", "--engine", "llamacpp"])
    assert "sglang" in capsys.readouterr().err


class _SGLang(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        info = {"version": "0.5.17", "attention_backend": "fa3", "max_running_requests": 48, "api_key": "hush"}
        body = json.dumps(info if self.path == "/server_info" else {}).encode()
        self.send_response(200 if self.path in ("/server_info", "/health") else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        return


@pytest.fixture
def running() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _SGLang) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_live_server_adds_what_it_resolved_to(sglang: Path, running: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["inspect", "--engine", "sglang", "--source", str(sglang), "--gpu", "sm_90", "--running", running]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert f"Running at {running}" in text
    assert "fa3" in text.split("What it takes by default")[0]
    assert "hush" not in text
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["running"]
    assert found["settings"]["attention_backend"] == "fa3"
    assert found["settings"]["max_running_requests"] == "48"
    assert found["sources"]["attention_backend"] == "/server_info"


def test_the_parser_can_be_made_by_anyone() -> None:
    from pytest_llmperf.cli import cmd_inspect

    parser = argparse.ArgumentParser()
    cmd_inspect.add(parser)
    args = parser.parse_args(["--engine", "vllm", "--set", "a=1", "--set", "b=2"])
    assert args.set == ["a=1", "b=2"]


def test_vllm_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--engine", "vllm", "--source", str(wheel(tmp_path, "vllm", "0.99.1", VLLM))]) == 0
    text = capsys.readouterr().out
    assert "TRITON_MLA" in text
    assert "vllm/platforms/cuda.py:" in text
