"""``llmperf marker``: the marker that it prints starts the pasted command, for commands of public reports."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.cli import cmd_marker
from pytest_llmperf.cli.launch_command import Pasted, taken_apart
from pytest_llmperf.cli.shell_script import simple_commands
from pytest_llmperf.engines import command_reader
from pytest_llmperf.engines.base import EngineSettings
from pytest_llmperf.engines.registry import builtin
from pytest_llmperf.errors import ConfigError

ENGINES = builtin()
#: Words of a pasted command that a made one need not hold: what the plugin owns, and a count of one.
OWNED = ("--host", "--port", "--api-key", "--admin-api-key", "--served-model-name")


@dataclass(frozen=True)
class Report:
    engine: str
    source: str
    script: str
    refused: str | None


def reports() -> Iterator[Report]:
    text = (Path(__file__).parent / "launch_commands.txt").read_text(encoding="utf-8")
    for entry in text.split("\n== ")[1:]:
        head, _, script = entry.partition("\n")
        who, _, source = head.partition(", ")
        engine, _, refused = who.partition(" refused: ")
        yield Report(engine, source, script, refused or None)


REPORTS = list(reports())


def found(script: str) -> Pasted:
    (one,) = (p for c in simple_commands(script, {"HOME": "/home/u"}) if (p := taken_apart(c, list(ENGINES.values()))))
    return one


def keywords(marker: str) -> dict[str, Any]:
    """What Python reads in the source that was printed."""
    call = ast.parse("\n".join(line for line in marker.splitlines() if not line.startswith("#"))[1:], mode="eval").body
    assert isinstance(call, ast.Call)
    return {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}


def leaves(words: tuple[str, ...]) -> set[str]:
    """Values out of a command line by a way of their own: no grouping of flags, JSON down to its entries."""
    out: set[str] = set()
    for word in words:
        value = word.partition("=")[2] if word.startswith("-") and "=" in word else word
        if re.match(r"-+[A-Za-z]", value):
            continue
        try:
            data = json.loads(value)
        except ValueError:
            data = value
        held = [data]
        for item in held:
            held += list(item.values()) if isinstance(item, dict) else item if isinstance(item, list) else []
        out |= {str(item).lower().lstrip("0") for item in held if not isinstance(item, (dict, list))}
    return out


def test_the_reports_are_many_and_of_both_engines() -> None:
    counts = [sum(r.engine == engine and not r.refused for r in REPORTS) for engine in ("vllm", "sglang")]
    assert min(counts) >= 20
    assert sum(counts) >= 40


@pytest.mark.parametrize("report", [r for r in REPORTS if not r.refused], ids=lambda r: f"{r.engine}-{r.source}")
def test_a_reported_command_comes_back(report: Report) -> None:
    pasted = found(report.script)
    assert pasted.engine.name == report.engine
    marker = cmd_marker.marker(pasted, "", ENGINES)
    given = keywords(marker)
    command = command_reader.made(pasted.engine, given, EngineSettings(command=pasted.program), frozenset(ENGINES))
    assert command.argv[: len(pasted.program)] == pasted.program
    (launch,) = (
        c for c in simple_commands(report.script, {"HOME": "/home/u"}) if taken_apart(c, list(ENGINES.values()))
    )
    before = launch.words[: -len(pasted.words)]
    told = [*pasted.program, *pasted.notes, *pasted.env, *pasted.env.values(), "env -e --env -it -dit --net=host"]
    lost = [w for w in before if w.split("=")[-1] not in " ".join(told) and w not in OWNED]
    assert not lost or launch.words[-2] == "-c", lost
    owned = {w for i, w in enumerate(pasted.words) if i and pasted.words[i - 1] in OWNED}
    missing = leaves(tuple(w for w in pasted.words if w not in owned)) - leaves(command.argv)
    # a count of one is what there is without it, and -O3 brings its number
    assert missing <= {"1"}, marker
    assert not {"CUDA_VISIBLE_DEVICES", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} & set(command.env)
    assert {n for n in pasted.env if n.startswith(("VLLM_", "SGL", "NCCL_"))} <= set(command.env)


@pytest.mark.parametrize("report", [r for r in REPORTS if r.refused], ids=lambda r: f"{r.engine}-{r.source}")
def test_what_no_marker_starts_is_refused_by_its_flag(report: Report) -> None:
    with pytest.raises(ConfigError, match=re.escape(str(report.refused))):
        cmd_marker.marker(found(report.script), "", ENGINES)


def test_the_source_is_formatted_as_ruff_has_it(tmp_path: Path) -> None:
    markers = [cmd_marker.marker(found(r.script), "", ENGINES) for r in REPORTS if not r.refused]
    file = tmp_path / "test_markers.py"
    tests = "\n\n\n".join(f"{marker}\ndef test_{i}(): ..." for i, marker in enumerate(markers))
    file.write_text(f"import pytest\n\n\n{tests}\n", encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff", "format", "--isolated", "--diff", str(file)]
    done = subprocess.run(ruff, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
