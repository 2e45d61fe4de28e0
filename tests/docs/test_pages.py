"""Every page: its code is code, the options and commands that it names exist, its links lead somewhere."""

from __future__ import annotations

import ast
import json
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import tomli

from docs import gen_reference
from pytest_llmperf.cli import main
from pytest_llmperf.options import OPTIONS
from tests.docs.pages import DOCS, ROOT, Block, blocks, commands, every_page

PAGES = every_page()
ALL = [block for page in PAGES for block in blocks(page)]
EXAMPLES = sorted((ROOT / "examples").rglob("test_*.py"))
#: pytest's own options that the pages use.
PYTEST = frozenset({"-m", "-k", "-n", "-v", "-q", "-p", "-x", "-ra", "--junitxml", "--dist", "--markers", "--fixtures"})
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?!https?:|mailto:)([^)\s]+)\)")


def of(*languages: str) -> pytest.MarkDecorator:
    found = [b for b in ALL if b.language in languages]
    return pytest.mark.parametrize("block", found, ids=[b.where for b in found])


@of("python")
def test_python_compiles(block: Block) -> None:
    compile(block.text, block.where, "exec")


@of("toml")
def test_toml_parses(block: Block) -> None:
    tomli.loads(block.text)


@of("json")
def test_json_parses(block: Block) -> None:
    json.loads(block.text)


@of("console", "")
def test_options_exist(block: Block) -> None:
    for command in commands(block):
        for words in re.split(r"\s(?:&&|\||;)\s", f" {command}"):
            _check(shlex.split(words, comments=True) if words.count('"') % 2 == 0 else words.split())


def _check(words: list[str]) -> None:
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    own = words[: words.index("--")] if "--" in words else words
    given = {re.split("[= ]", w)[0] for w in own if re.match(r"-{1,2}[a-z]", w)}
    if words[:1] == ["pytest"]:
        assert given <= PYTEST | options(), given - PYTEST - options()
    elif words[:1] == ["llmperf"]:
        assert words[1] in {c.name for c in main.COMMANDS}, words
        # of sub-commands of a sub-command only the names are told
        told = gen_reference.help_of(words[1])
        assert all(name in told for name in given) or "ACTION" in told, (given, told)


@pytest.mark.parametrize("path", EXAMPLES, ids=[p.name for p in EXAMPLES])
def test_options_named_in_examples_exist(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    lines = re.findall(r"^ {4}((?:[A-Z_]+=\S+ )?(?:pytest|llmperf) .*)$", text, re.MULTILINE)
    assert lines, "no command that runs it"
    for line in lines:
        _check(shlex.split(line, comments=True))


@cache
def options() -> frozenset[str]:
    update = {"--update-baselines", "--llmperf-update-baselines"}
    return frozenset({flag for spec in OPTIONS for flag in spec.flags} | update)


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in _LINK.findall(text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        body = written(target)
        assert body is not None, f"{link} leads nowhere"
        assert not anchor or anchor in anchors(body), f"{link}: no such heading"


def written(target: Path) -> str | None:
    """Text of a file, a page that the build generates included; None when there is none."""
    if target.is_relative_to(DOCS) and (made := generated().get(target.relative_to(DOCS).as_posix())):
        return made
    if target.is_dir():
        return ""
    return target.read_text(encoding="utf-8") if target.is_file() else None


@cache
def generated() -> dict[str, str]:
    return gen_reference.pages()


def anchors(text: str) -> set[str]:
    """Of a page's headings, as Python-Markdown's ``toc`` writes them."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1]
    listed = set(re.findall(r"[\w/-]+\.md", nav))
    assert listed == {p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md")} | set(generated())


def test_a_wrong_option_is_found() -> None:
    for command in ("pytest --llmperf-jsn out.json", "llmperf histori", "llmperf export --bogus x"):
        with pytest.raises(AssertionError):
            _check(shlex.split(command))
