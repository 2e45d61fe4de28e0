"""Expressions are worked out as Python would, or said to be unknown; never wrong."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.inspection.execution import Choices
from pytest_llmperf.inspection.facts import GpuFacts
from pytest_llmperf.inspection.relevance import Relevance
from pytest_llmperf.inspection.values import Member, Text, Unknown
from tests.inspection.evaluating import in_memory, interpreter, value

_LEAVES = ["0", "1", "2", "7", "True", "False", "None", "'a'", "'fa3'", "''", "[]", "[1, 2]", "('a', 'b')", "{'a': 1}"]
_PATTERNS = [
    *("({0}) and ({1})", "({0}) or ({1})", "not ({0})", "({0}) if ({1}) else ({2})", "({0}) == ({1})"),
    *("({0}) in ({1})", "({0}) is None", "({0}) is not None", "({0}) != ({1})", "({0}) < ({1})", "({0}) + ({1})"),
    *("[({0}), *({1})]", "len({0})", "str({0})", "bool({0})", "any([({0}), ({1})])", "all([({0}), ({1})])"),
    *("({0})[0]", "[x for x in ({0}) if x]", "{{'k': ({0}), **({1})}}", "max(({0}), ({1}))", "int({0})"),
    *("({0}).get('a', ({1}))", "({0}).upper()", "sorted({0})", "isinstance(({0}), (str, list))", "({0})[-1:]"),
]


def _grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda pattern, parts: pattern.format(*parts), st.sampled_from(_PATTERNS), st.tuples(inner, inner, inner)
    )


@settings(max_examples=400, deadline=None)
@given(st.recursive(st.sampled_from(_LEAVES), _grow, max_leaves=8))
def test_a_known_value_is_pythons_value(text: str) -> None:
    mine = value(text)
    if isinstance(mine, Unknown) and mine.truth is None:
        return
    try:
        theirs: Any = eval(text, {"__builtins__": {n: getattr(builtins, n) for n in _USED}})
    except (TypeError, ValueError, LookupError, AttributeError):
        return  # an engine whose code raises there does not start
    if isinstance(mine, Unknown):
        assert mine.truth is bool(theirs)
        return
    assert mine == theirs
    assert type(mine) is type(theirs) or isinstance(mine, Text) or isinstance(theirs, bool) == isinstance(mine, bool)


_USED = ("len", "str", "bool", "any", "all", "max", "int", "sorted", "isinstance", "list")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 if unheard_of or True else 2", 1),
        ("1 if unheard_of and False else 2", 2),
        ("'fa3' in ['fa3', unheard_of]", True),
        ("1 < 2 < 3", True),
        ("{**{'a': 1}, 'b': 2}", {"a": 1, "b": 2}),
        ("f'fa{1 + 2}'", "fa3"),
        ("next(x for x in [1, 2] if x > 1)", 2),
        ("(y := 3) + y", 6),
        ("min([3, 1, 2], key=lambda n: -n)", 3),
        ("[(i, x) for i, x in enumerate('ab'.split('b'))]", [(0, "a"), (1, "")]),
        ("dict(a=1)['a']", 1),
        ("os.environ.get('NOT_SET', 'x')", "x"),
        ("torch.cuda.is_available()", True),
        ("torch.cuda.get_device_capability()[0] == 9", True),
        ("tuple(map(int, torch.version.cuda.split('.')[:2])) >= (12, 8)", True),
    ],
)
def test_known(text: str, expected: Any) -> None:
    assert value(text, "import os\nimport torch\n") == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("unheard_of", "unheard_of"),
        ("unheard_of.attribute", "unheard_of.attribute"),
        ("unheard_of(1)", "unheard_of(1)"),
        ("not unheard_of", "not (unheard_of)"),
        ("unheard_of and True", "unheard_of"),
        ("unheard_of or 'triton'", "unheard_of or 'triton'"),
        ("unheard_of == 1", "unheard_of == 1"),
        ("unheard_of in ['a']", "unheard_of in ['a']"),
        ("'fa3' in [unheard_of]", "'fa3' in [unheard_of]"),
        ("[1, 2][unheard_of]", "[1, 2][unheard_of]"),
        ("'x' if unheard_of else 'y'", "'x' if unheard_of else 'y'"),
        ("(lambda: unheard_of)()", "unheard_of"),
        ("1 / 0", "1 / 0"),
        ("{}['missing']", "{}['missing']"),
    ],
)
def test_unknown_says_what_is_open(text: str, said: str) -> None:
    found = value(text)
    assert isinstance(found, Unknown)
    assert found.text == said


def test_a_string_remembers_its_line() -> None:
    found = value("pick()", "def pick():\n\n    return 'fa3'\n")
    assert isinstance(found, Text)
    assert str(found.at) == "pkg/m.py:3"


_CLASSES = """
from enum import Enum
from typing import NamedTuple

class Kind(str, Enum):
    FAST = "fast"
    SLOW = "slow"

    def shout(self):
        return self.value.upper()

class Pair(NamedTuple):
    major: int
    minor: int = 0

    def whole(self):
        return self.major * 10 + self.minor

class Base:
    limit = 3

    def __init__(self, size=1):
        self.size = size

    @property
    def double(self):
        return self.size * 2

    @classmethod
    def made(cls):
        return cls(5)

    @staticmethod
    def four():
        return 4

class Derived(Base):
    limit = 9

    def __init__(self):
        super().__init__(7)

    def __getattr__(self, name):
        return "got " + name
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Kind.FAST == 'fast'", True),
        ("Kind.FAST.shout()", "FAST"),
        ("Kind['SLOW'].value", "slow"),
        ("[k.name for k in Kind]", ["FAST", "SLOW"]),
        ("Pair(9).whole()", 90),
        ("Pair(9, 0) >= Pair(8, 9)", True),
        ("Pair(1, 2)._asdict()", {"major": 1, "minor": 2}),
        ("Base().double", 2),
        ("Base.made().double", 10),
        ("Derived().size", 7),
        ("Derived().limit", 9),
        ("Derived.four()", 4),
        ("Derived().anything", "got anything"),
        ("isinstance(Derived(), Base)", True),
        ("isinstance('x', Base)", False),
        ("getattr(Base, 'limit', 0)", 3),
    ],
)
def test_classes_of_the_engine(text: str, expected: Any) -> None:
    assert value(text, _CLASSES) == expected


def test_an_enum_member_is_named_where_it_is_mentioned() -> None:
    found = value("Kind.FAST", _CLASSES)
    assert isinstance(found, Member)
    assert found.name == "FAST"


def test_the_gpu_decides_what_torch_says() -> None:
    module = "import torch"
    assert value("torch.version.hip is None", module, GpuFacts("gfx942", "amd", (9, 4))) is False
    assert value("torch.cuda.is_available()", module, GpuFacts("cpu", "cpu")) is False
    assert value("torch.cuda.get_device_capability()", module, GpuFacts("sm_120", "nvidia", (12, 0))) == (12, 0)


def test_imports_are_followed_through_stars_and_relative_names() -> None:

    source = in_memory(
        {
            "__init__.py": "",
            "a/__init__.py": "from .deep import *\n",
            "a/deep.py": "from ..b import LIMIT as TOP\nHERE = TOP + 1\n",
            "b.py": "LIMIT = 41\n",
        }
    )
    made = interpreter(source, Choices(), Relevance(frozenset(), frozenset()))
    assert made.names.member("pkg.a", "HERE") == 42
