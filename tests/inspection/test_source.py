"""Finding an engine's source wherever it lies, without importing or unpacking it."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.inspection import open_source
from tests.inspection.engines import OLD_SGLANG, VLLM, folder, sdist, wheel


def test_a_wheel_is_read_where_it_is(tmp_path: Path) -> None:
    path = wheel(tmp_path, "sglang", "0.5.9.post1", OLD_SGLANG)
    found = open_source("sglang", source=path)
    assert found.version == "0.5.9.post1"
    assert "class ServerArgs" in found.text("sglang/srt/server_args.py")
    assert list(tmp_path.iterdir()) == [path]  # nothing unpacked


@pytest.mark.parametrize("inner", ["python/", "src/", ""])
def test_an_sdist_is_read_in_any_layout(tmp_path: Path, inner: str) -> None:
    found = open_source("sglang", source=sdist(tmp_path, "sglang", "0.5.9", OLD_SGLANG, inner))
    assert found.version == "0.5.9"
    assert found.tree("sglang/srt/server_args.py") is not None


@pytest.mark.parametrize("below", ["", "python", "sglang"])
def test_site_packages_a_checkout_and_the_package_itself_are_folders(tmp_path: Path, below: str) -> None:
    folder(tmp_path / ("python" if below == "python" else ""), "sglang", OLD_SGLANG)
    found = open_source("sglang", source=tmp_path / "sglang" if below == "sglang" else tmp_path)
    assert found.version == "0.4.9"
    assert "sglang/srt/probes.py" in found.files


def test_the_version_of_an_installed_folder_is_its_metadata(tmp_path: Path) -> None:
    (folder(tmp_path, "vllm", VLLM) / "vllm-0.33.0.dist-info").mkdir()
    assert open_source("vllm", source=tmp_path).version == "0.33.0"


def test_a_version_is_read_from_the_code_when_there_is_no_metadata(tmp_path: Path) -> None:
    assert open_source("vllm", source=folder(tmp_path, "vllm", VLLM)).version == "0.99.1"


def _interpreter(tmp_path: Path, site: Path) -> str:
    """An interpreter of another environment: this Python with that folder on its path."""
    script = tmp_path / "engine-python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def test_another_environment_is_asked_where_the_engine_lies_and_never_imports_it(tmp_path: Path) -> None:
    site = folder(tmp_path / "site", "sglang", {**OLD_SGLANG, "__init__.py": "open('imported', 'w')\nraise SystemExit"})
    found = open_source("sglang", python=_interpreter(tmp_path, site))
    assert found.origin == str(site / "sglang")
    assert found.tree("sglang/srt/server_args.py") is not None
    assert not list(Path("/").glob("imported"))
    assert not list(tmp_path.rglob("imported"))


def test_the_working_folder_does_not_stand_in_for_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder(tmp_path, "sglang", OLD_SGLANG))
    with pytest.raises(ConfigError, match=r"sglang is not installed for .*--source"):
        open_source("sglang", python=sys.executable)


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("/no/such/python", "no such program"),
        ("false", "is not a usable Python 3 interpreter"),
        ("echo", "is not a usable Python 3 interpreter"),
    ],
)
def test_what_is_no_interpreter_is_said(python: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_source("sglang", python=python)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file or folder"):
        open_source("sglang", source=tmp_path / "gone.whl")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not really", b"\x1f\x8b not really", bytes(range(256))])
def test_a_broken_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "sglang-0.5.9-py3-none-any.whl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"cannot be read|no Python package"):
        open_source("sglang", source=path)


def test_the_wheel_of_another_engine(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no Python package named sglang"):
        open_source("sglang", source=wheel(tmp_path, "vllm", "0.9", VLLM))


def test_names_that_climb_out_are_not_part_of_the_package(tmp_path: Path) -> None:
    files = {**OLD_SGLANG, "../../evil.py": "x = 1", "srt/../../evil.py": "x = 1"}
    found = open_source("sglang", source=wheel(tmp_path, "sglang", "1", files))
    assert not [name for name in found.files if "evil" in name]


def test_a_file_that_does_not_parse_is_as_if_absent(tmp_path: Path) -> None:
    found = open_source("sglang", source=wheel(tmp_path, "sglang", "1", {**OLD_SGLANG, "srt/broken.py": "def ("}))
    assert found.tree("sglang/srt/broken.py") is None
    assert found.tree("sglang/srt/probes.py") is not None
