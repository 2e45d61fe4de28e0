"""The generated reference holds everything there is, and refuses to be built when words and code part."""

from __future__ import annotations

import pytest

from docs import gen_reference
from pytest_llmperf import options
from pytest_llmperf.cli import main
from pytest_llmperf.measure.metrics import METRICS
from pytest_llmperf.session.llm_server import LlmServer


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return gen_reference.pages()


def test_everything_is_there(pages: dict[str, str]) -> None:
    assert all(flag in pages["reference/options.md"] for spec in options.OPTIONS for flag in spec.flags)
    assert all(f"| `{name}` |" in pages["reference/metrics.md"] for name in METRICS)
    assert all(f"usage: llmperf {c.name}" in pages["reference/command.md"] for c in main.COMMANDS)
    members = [name for name in vars(LlmServer) if not name.startswith("_")]
    assert {"stream", "load", "client", "effective"} <= set(members)
    assert all(f"### `.{name}" in pages["reference/fixtures.md"] for name in members)


def test_only_what_can_be_called_is_documented(pages: dict[str, str]) -> None:
    assert "self" not in "".join(x for x in pages["reference/fixtures.md"].splitlines() if x.startswith("###"))


@pytest.mark.parametrize("words", [{"tp": "x"}, {"tp": "x", "dp": "y", "pp": "z"}], ids=["missing", "too many"])
def test_words_must_match_the_code(words: dict[str, str]) -> None:
    with pytest.raises(LookupError, match=r"llm_server: words and code differ in [dp]p"):
        gen_reference.matched(words, ["tp", "dp"], "llm_server")


def test_a_guard_of_an_unknown_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gen_reference.GUARDS, "drift", "more than `no_such_limit`")
    with pytest.raises(LookupError, match="no_such_limit"):
        gen_reference.pages()
