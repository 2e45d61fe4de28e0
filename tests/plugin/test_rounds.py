"""Rounds: a suspect is confirmed on fresh launches, together with the others of its server, and reported once."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.plugin.conftest import SUITE, Project

#: Speeds of the launches: the first is suspect, the others are not; or all are.
NOISE, LOSS = "0.79,1,1", "0.79,0.79,0.79"
ANOTHER = """

@perf(repetitions=3, max_repetitions=3)
def test_{name}(llm_server, baseline):
    run = llm_server.stream(output_tokens=24, prompt_tokens=16)
    assert run.decode_tok_s in baseline
"""
HEALTHY = """

@perf(repetitions=1, max_repetitions=1, target=1)
def test_healthy(llm_server, baseline):
    assert llm_server.stream(output_tokens=24, prompt_tokens=16).decode_tok_s in baseline
"""


def roles(result: dict[str, object]) -> list[str]:
    return [x["role"] for x in result["launches"]]  # type: ignore[attr-defined]


def test_a_suspect_that_is_not_confirmed_passes(wobbly: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LAUNCH_FACTORS", NOISE)
    wobbly.suite(SUITE.replace("(llm_server, baseline)", "(llm_server, baseline, record_property)")
                 .replace("    run =", "    record_property('mine', 'once')\n    run ="))  # fmt: skip
    result = wobbly.run_here("-v", "--junitxml", "junit.xml")
    assert result.ret == 0, result.outlines
    result.stdout.fnmatch_lines([
        "test_perf.py::test_decode?sglang? SUSPECT *",
        "test_perf.py::test_decode?sglang? MEASURED *",
        "test_perf.py::test_decode?sglang? PASSED *",
        "*1 passed*1 suspect*",
    ])  # fmt: skip
    assert wobbly.launches == 3
    assert wobbly.result["verdict"] == "passed"
    assert roles(wobbly.result) == ["screen", "confirm", "confirm"]
    assert len({x["id"] for x in wobbly.result["launches"]}) == 3
    [server] = wobbly.report["servers"]
    assert [x["id"] for x in server["launches"]] == [x["id"] for x in wobbly.result["launches"]]
    [case] = ElementTree.parse(wobbly.path / "junit.xml").iter("testcase")
    properties = [(p.get("name"), p.get("value")) for p in case.iter("property")]
    assert properties.count(("mine", "once")) == 1
    assert ("llmperf.decode_tok_s.verdict", "passed") in properties
    assert len(dict(properties)) == len(properties)


@pytest.mark.parametrize("args", [(), ("-n", "2", "-x")], ids=["serial", "xdist -x"])
def test_suspects_share_the_launches_that_confirm_them(
    wobbly: Project, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    monkeypatch.setenv("FAKE_LAUNCH_FACTORS", LOSS)
    wobbly.suite(SUITE + ANOTHER.format(name="also") + HEALTHY)
    wobbly.clone("test_perf.py::test_also")
    result = (wobbly.run if args else wobbly.run_here)(*args)
    # with -x xdist ends by an interruption of its own
    assert result.ret == (pytest.ExitCode.INTERRUPTED if args else pytest.ExitCode.TESTS_FAILED), result.outlines
    assert not wobbly.report["session"]["interrupted"]
    assert wobbly.launches == 3
    assert wobbly.verdicts == {
        "test_decode[sglang]": "regressed",
        "test_also[sglang]": "regressed",
        "test_healthy[sglang]": "passed",
    }
    by_name = {r["nodeid"]: r for r in wobbly.results}
    first, also, healthy = by_name.values()
    assert roles(first) == roles(also) == ["screen", "confirm", "confirm"]
    assert [x["id"] for x in first["launches"]] == [x["id"] for x in also["launches"]]
    assert roles(healthy) == ["screen"]
    said = str(result.stdout)
    assert "FAILED test_perf.py::test_decode[sglang]" in said
    assert "2 suspect" in said
    assert "launches  1 screened, 2 confirming, against 3 stored" in said
    if not args:
        result.stdout.fnmatch_lines(["test_perf.py SS.mmFF *"])


def test_the_last_word_of_the_summary_is_of_each_suspect(wobbly: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-x`` stops after the group whose test has failed: every measured test of it has its verdict by then."""
    monkeypatch.setenv("FAKE_LAUNCH_FACTORS", NOISE)
    wobbly.suite(SUITE + "\n\ndef test_broken(llm_server):\n    assert 0\n" + HEALTHY)
    wobbly.suite(
        "import pytest\n@pytest.mark.llm_server(model='other')\ndef test_more(llm_server): pass\n", "test_z.py"
    )
    result = wobbly.run_here("-x")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["test_perf.py SFm.*", "*stopping after 1 failures*"])
    assert wobbly.verdicts == {"test_decode[sglang]": "passed", "test_healthy[sglang]": "error"}
    assert wobbly.launches == 3


def test_several_launches_from_the_start(recorded: Project) -> None:
    """Each test runs on each launch; the verdict rests on all of them."""
    recorded.suite(SUITE + HEALTHY)
    result = recorded.run_here("--launches", "2")
    assert result.ret == 0, result.outlines
    result.stdout.fnmatch_lines(["test_perf.py mm..*"])
    assert recorded.launches == 2
    assert [roles(r) for r in recorded.results] == [["screen"] * 2] * 2


def test_without_confirmation_one_look_decides(wobbly: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SLOWDOWN", "0.5")
    result = wobbly.run_here("--llmperf-confirm", "0")
    result.assert_outcomes(failed=1)
    assert wobbly.launches == 1
    assert (wobbly.result["verdict"], roles(wobbly.result)) == ("regressed", ["screen"])


def test_what_fails_for_another_reason_is_never_run_again(wobbly: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LAUNCH_FACTORS", NOISE)
    wobbly.suite(SUITE + "    assert 0, 'for another reason'\n")
    for args in ((), ("--launches", "3")):
        result = wobbly.run_here(*args)
        result.assert_outcomes(failed=1)
        assert "suspect" not in result.outlines[-1]
    assert wobbly.launches == 2
    # it was about to be confirmed, and is not called a regression
    assert wobbly.verdicts == {"test_decode[sglang]": "error"}
    assert wobbly.result["reasons"][0] == "AssertionError: for another reason"


def test_failing_while_being_confirmed_is_no_verdict(wobbly: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LAUNCH_FACTORS", LOSS)
    wobbly.suite(SUITE.replace("    run =", "    import pathlib\n    seen = pathlib.Path('seen')\n"
                               "    assert not seen.exists(), 'broken'\n    seen.touch()\n    run ="))  # fmt: skip
    result = wobbly.run_here()
    result.assert_outcomes(failed=1)
    assert wobbly.launches == 2
    assert wobbly.result["verdict"] == "error"
    assert wobbly.result["reasons"][0] == "AssertionError: broken"
    assert "not confirmed on fresh launches" in wobbly.result["reasons"][1]


def test_not_judging_while_being_confirmed_is_no_pass(wobbly: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LAUNCH_FACTORS", LOSS)
    wobbly.suite(SUITE.replace("    run =", "    import pathlib\n    seen = pathlib.Path('seen')\n"
                               "    if seen.exists(): return\n    seen.touch()\n    run ="))  # fmt: skip
    result = wobbly.run_here()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*declares decode_tok_s and has not judged it*"])
    assert wobbly.result["verdict"] == "error"


def test_a_launch_that_fails_in_the_confirmation_is_an_error(wobbly: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LAUNCH_FACTORS", LOSS)
    monkeypatch.setenv("FAKE_CRASH", "oom@2")
    wobbly.suite(SUITE + ANOTHER.format(name="also"))
    wobbly.clone("test_perf.py::test_also")
    result = wobbly.run_here()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["test_perf.py SSEE*", "*out of memory*", "llmperf: 2 error;*"])
    assert set(wobbly.verdicts.values()) == {"error"}
    assert wobbly.launches == 2  # and no third one: a config that cannot be started is not tried again


FIXTURES = """
import pytest

def log(*words):
    with open("fixtures.log", "a") as file:
        print(*words, file=file)

@pytest.fixture(scope="session")
def whole():
    log("+whole"); yield; log("-whole")

@pytest.fixture(scope="module")
def module(request, whole):
    log("+" + request.module.__name__); yield; log("-" + request.module.__name__)

@pytest.fixture(scope="class")
def group(module):
    log("+class"); yield; log("-class")

@pytest.fixture
def single(request, llm_server):
    log("+" + request.node.name); yield; log("-" + request.node.name)
"""
BODY = """
    @perf(repetitions=3, max_repetitions=3)
    def test_{name}(self, {fixtures}, llm_server, baseline):
        run = llm_server.stream(output_tokens=24, prompt_tokens=16)
        assert run.decode_tok_s in baseline
"""


def test_wide_fixtures_live_through_all_rounds(wobbly: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """One test, three rounds: its own fixture thrice, all others once. Nothing of them outlives its scope."""
    monkeypatch.setenv("FAKE_LAUNCH_FACTORS", NOISE)
    head = "import pytest\nfrom pytest_llmperf import perf\npytestmark = pytest.mark.llm_server(model='fake-model')\n"
    wobbly.suite(FIXTURES, "conftest.py")
    wobbly.suite(head + "class TestA:\n" + BODY.format(name="a", fixtures="group, single"))
    wobbly.suite("def test_last(module): pass\n", "test_z.py")
    wobbly.clone("test_perf.py::TestA::test_a")
    assert wobbly.run_here().ret == 0
    assert wobbly.launches == 3
    own = ["+test_a[sglang]", "-test_a[sglang]"]
    assert (wobbly.path / "fixtures.log").read_text().split() == [
        *("+whole", "+test_perf", "+class", *own, *own, *own, "-class", "-test_perf"),
        *("+test_z", "-test_z", "-whole"),
    ]


def test_fixtures_of_two_modules_that_share_a_server(wobbly: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set up and torn down in turn, in every round, and never two modules' at once. A failing end is an error."""
    monkeypatch.setenv("FAKE_LAUNCH_FACTORS", NOISE)
    head = "import pytest\nfrom pytest_llmperf import perf\npytestmark = pytest.mark.llm_server(model='fake-model')\n"
    wobbly.suite(FIXTURES.replace('log("-whole")', 'log("-whole"); assert 0, "cannot end"'), "conftest.py")
    (wobbly.path / "test_perf.py").unlink()
    for name in "ab":
        wobbly.suite(head + "class TestX:\n" + BODY.format(name=name, fixtures="group, single"), f"test_{name}.py")
        wobbly.clone(f"test_{name}.py::TestX::test_{name}")
    result = wobbly.run_here()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*cannot end*"])
    assert wobbly.launches == 3
    turn = [
        word
        for x in "ab"
        for word in (f"+test_{x}", "+class", f"+test_{x}[sglang]", f"-test_{x}[sglang]", "-class", f"-test_{x}")
    ]
    assert (wobbly.path / "fixtures.log").read_text().split() == ["+whole", *turn * 3, "-whole"]
    assert set(wobbly.verdicts.values()) == {"passed"}
