"""What is open splits the answer in two, where it matters and only there."""

from __future__ import annotations

import pytest

from tests.inspection.evaluating import outcomes, ways


def test_a_settled_answer_names_its_line_and_the_conditions_before_it() -> None:
    found = outcomes(
        "def choose(args):\n    if 1 > 2:\n        args.backend = 'a'\n    elif 2 > 1:\n        args.backend = 'b'\n"
    )
    (only,) = found.all
    assert only.answer == {"backend": "b"}
    assert str(only.places["backend"]) == "pkg/m.py:5"
    assert [(d.text, d.holds, d.at.line) for d in only.because] == [("1 > 2", False, 2), ("2 > 1", True, 4)]
    assert found.complete


def test_an_open_condition_gives_both_sides() -> None:
    found = outcomes(
        "def choose(args):\n    if args.fast:\n        args.backend = 'a'\n    else:\n        args.backend = 'b'\n"
    )
    assert ways(found) == {("args.fast",): "a", ("not args.fast",): "b"}


def test_an_open_condition_that_changes_nothing_is_not_mentioned() -> None:
    found = outcomes("def choose(args):\n    if args.fast:\n        args.other = 1\n    args.backend = 'a'\n")
    assert ways(found) == {(): "a"}


def test_what_an_irrelevant_branch_may_have_set_is_open_afterwards() -> None:
    module = """
def choose(args):
    size = 1
    if args.big:
        size = 64
    if size == 1:
        args.backend = "a"
    else:
        args.backend = "b"
"""
    assert ways(outcomes(module)) == {("size (in choose) == 1",): "a", ("not size (in choose) == 1",): "b"}


def test_a_list_that_an_irrelevant_branch_may_have_changed_is_open_afterwards() -> None:
    module = """
def choose(args):
    reasons = []
    if args.odd:
        reasons.append("odd")
    if reasons:
        args.backend = "a"
    else:
        args.backend = "b"
"""
    assert set(ways(outcomes(module)).values()) == {"a", "b"}


def test_the_same_question_has_one_answer_on_one_way() -> None:
    module = """
def choose(args):
    args.backend = "a" if args.fast else "b"
    if args.fast:
        args.backend = "c"
"""
    assert ways(outcomes(module)) == {("args.fast",): "c", ("not args.fast",): "b"}


def test_the_same_words_about_two_objects_are_two_questions() -> None:
    module = """
import outside

class One:
    def fits(self):
        return outside.probe(self)

class Two(One):
    pass

def choose(args):
    args.backend = "a"
    for kind in [One, Two]:
        if kind().fits():
            args.backend = kind.__name__
"""
    found = outcomes(module)
    assert set(ways(found).values()) == {"a", "One", "Two"}


def test_two_open_conditions_with_one_result_merge() -> None:
    module = """
def choose(args):
    if args.x:
        if args.y:
            args.backend = "a"
        else:
            args.backend = "a"
    else:
        args.backend = "b"
"""
    assert set(ways(outcomes(module)).values()) == {"a", "b"}


def test_a_refusal_is_an_outcome() -> None:
    module = """
def check(args):
    if args.backend == "a":
        raise ValueError(f"no {args.backend} here")

def choose(args):
    args.backend = "a" if args.fast else "b"
    check(args)
"""
    assert ways(outcomes(module)) == {("args.fast",): "ValueError: no a here (pkg/m.py:4)", ("not args.fast",): "b"}


def test_a_check_that_cannot_be_told_is_taken_to_pass() -> None:
    module = "def choose(args):\n    if args.strange:\n        raise ValueError('no')\n    args.backend = 'a'\n"
    assert ways(outcomes(module)) == {(): "a"}


def test_an_exception_finds_its_handler() -> None:
    module = """
def load():
    raise ImportError("not built")

def choose(args):
    try:
        load()
    except (ValueError, ImportError):
        args.backend = "fallback"
    else:
        args.backend = "loaded"
"""
    assert ways(outcomes(module)) == {(): "fallback"}


def test_a_function_that_returns_answers_is_followed_both_ways() -> None:
    module = """
def pick(args):
    if args.fast:
        return "fa3"
    return "triton"

def choose(args):
    args.backend = pick(args)
"""
    found = outcomes(module, answers=("fa3", "triton"))
    assert ways(found) == {("args.fast",): "fa3", ("not args.fast",): "triton"}
    assert {str(o.places["backend"]) for o in found.all} == {"pkg/m.py:4", "pkg/m.py:5"}


def test_a_function_that_returns_no_answer_is_not_split() -> None:
    module = """
def size(args):
    if args.big:
        return 64
    return 1

def choose(args):
    args.page = size(args)
    args.backend = "a"
"""
    assert ways(outcomes(module, answers=("a",))) == {(): "a"}


@pytest.mark.parametrize("most", [1, 3])
def test_more_ways_than_are_followed_is_said(most: int) -> None:
    lines = "".join(f"    if args.q{i}:\n        args.backend = '{i}'\n" for i in range(6))
    found = outcomes(f"def choose(args):\n{lines}", most=most)
    assert len(found.all) <= most
    assert not found.complete


def test_a_loop_that_cannot_be_followed_is_said() -> None:
    found = outcomes("def choose(args):\n    for x in args.many:\n        args.backend = x\n")
    assert any("args.many could not be followed" in note for note in found.notes)
    assert found.values("backend") == ["unknown: args.backend"]


def test_loops_over_known_lists_run() -> None:
    module = """
def choose(args):
    for name in ["a", "b", "c"]:
        if name == "a":
            continue
        args.backend = name
        if name == "b":
            break
"""
    assert ways(outcomes(module)) == {(): "b"}
