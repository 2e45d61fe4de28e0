"""Source that means harm or has no end: nothing runs, nothing hangs, nothing grows without bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmperf.inspection.values import Unknown
from tests.inspection.evaluating import outcomes, value


@pytest.mark.parametrize(
    "text",
    [
        "'a' * 10 ** 9",
        "[0] * 10 ** 12",
        "10 ** 10 ** 10",
        "1 << 10 ** 9",
        "list(range(10 ** 12))",
        "'%1000000000d' % 1",
        "'{:1000000000}'.format(1)",
        "'a'.ljust(10 ** 9)",
        "__import__('os').system('true')",
        "eval('1')",
        "exec('1')",
        "open('/etc/passwd').read()",
        "().__class__.__bases__[0].__subclasses__()",
        "(lambda f: f(f))(lambda f: f(f))",
        "globals()['x']",
    ],
)
def test_nothing_happens(text: str) -> None:
    assert isinstance(value(text), Unknown)


def test_no_file_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "made"
    module = f"import os\nopen({str(path)!r}, 'w')\nos.mkdir({str(path)!r})\nX = os.system('touch {path}')\n"
    assert isinstance(value("X", module), Unknown)
    assert not path.exists()


@pytest.mark.parametrize(
    "body",
    [
        "while True:\n        args.other = 1",
        "choose(args)",
        "for a in [1] * 900:\n        for b in [1] * 900:\n            args.other = [c for c in [1] * 900]",
        "x = [0]\n    for i in [1] * 60:\n        x = x + x",
        "x = [0]\n    for i in [1] * 60:\n        x += x",
        "x = [0]\n    for i in [1] * 60:\n        x.extend(x)",
        "x = 'ab'\n    for i in [1] * 60:\n        x = x.replace('a', x)",
        "x = 'ab'\n    for i in [1] * 60:\n        x = f'{x}{x}'",
        "x = 'ab'\n    for i in [1] * 60:\n        x = ''.join([x, x])",
        "x = [0]\n    for i in [1] * 60:\n        x = [*x, *x]",
    ],
)
def test_code_without_end_is_given_up(body: str) -> None:
    found = outcomes(f"def choose(args):\n    {body}\n    args.backend = 'a'\n")
    assert found.notes or found.values("backend") == ["a"]


def test_names_that_refer_to_each_other_end() -> None:
    assert isinstance(value("A", "A = B\nB = A\n"), Unknown)


def test_deeply_nested_source_is_survived() -> None:
    assert value("x", "x = " + "(" * 80 + "1" + ")" * 80) == 1
    deep = (
        "def choose(args):\n"
        + "".join(f"{' ' * i}if args.q{i}:\n" for i in range(1, 60))
        + " " * 60
        + "args.backend = 'a'\n"
    )
    assert "a" in outcomes(deep, most=100).values("backend")
