"""Sweeps and presets at collection: what they come to, and what is wrong with them. Nothing is launched."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import SUITE, Project

HEAD = "import pytest\nfrom pytest_llmperf import perf\n"
SERVER = "@pytest.mark.llm_server(model='m')\n"
#: What is written above a test, its fixture, and what must be said of it.
MISUSES = {
    "unknown knob": (SERVER + "@pytest.mark.llm_sweep(atention_backend=['fa3', 'triton'])", "llm_server",
                     "llm_sweep: llm_server has no 'atention_backend' (did you mean 'attention_backend'?)"),
    "wrong value": (SERVER + "@pytest.mark.llm_sweep(tp=[2, 'four'])", "llm_server",
                    "llm_sweep: llm_server(tp='four') must be a whole number"),
    "engine's no": (SERVER + "@pytest.mark.llm_sweep(attention_backend=['warp'])", "llm_server",
                    "llm_sweep: sglang has no attention_backend='warp'*"),
    "nccl": (SERVER + "@pytest.mark.llm_sweep(nccl__porto=['LL'])", "llm_server",
             "llm_sweep: llm_server: nccl={'porto': ...} is not a variable of NCCL (did you mean 'proto'?)*"),
    "preset": (SERVER + "@pytest.mark.llm_sweep(nccl=['ll-rnig'])", "llm_server",
               "llm_sweep: no preset 'll-rnig' for nccl (did you mean 'll-ring'?)"),
    "no list": (SERVER + "@pytest.mark.llm_sweep(tp=2)", "llm_server",
                "llm_sweep(tp=2) must be a list of values; base= takes single ones"),
    "no knob": (SERVER + "@pytest.mark.llm_sweep(launches=3)", "llm_server", "llm_sweep varies nothing; name a knob*"),
    "positional": (SERVER + "@pytest.mark.llm_sweep('tp')", "llm_server",
                   "llm_sweep takes keywords only, like tp=?4, 8?, not ('tp',)"),
    "same server": (SERVER + "@pytest.mark.llm_sweep(startup_timeout=[30])", "llm_server",
                    "llm_sweep: startup_timeout=30 is the same server as base; leave it out"),
    "engine": (SERVER + "@pytest.mark.llm_sweep(engine=['vllm'])", "llm_server",
               "llm_sweep: engine=vllm is the same server as base; leave it out"),
    "other engine's knob": (SERVER + "@pytest.mark.llm_sweep(vllm__enforce_eager=[True])", "llm_server",
                            "llm_sweep has no knob for sglang: *"),
    "base": (SERVER + "@pytest.mark.llm_sweep(base={'tpp': 2}, tp=[2])", "llm_server",
             "llm_sweep: llm_server has no 'tpp' (did you mean 'tp'?)"),
    "no server": ("@pytest.mark.llm_sweep(tp=[2])", "tmp_path", "llm_sweep needs the fixture llm_server in its test"),
    "several servers": (SERVER + "@pytest.mark.llm_servers(a={})\n@pytest.mark.llm_sweep(tp=[2])", "llm_servers",
                        "llm_sweep varies the one server of llm_server: use no llm_servers in its test"),
    "server preset": ("@pytest.mark.llm_server(model='m', nccl='ll-rnig')", "llm_server",
                      "llm_server: no preset 'll-rnig' for nccl (did you mean 'll-ring'?)"),
    "preset elsewhere": ("@pytest.mark.llm_server(model='m', sglang=['ll-ring'])", "llm_server",
                         "llm_server: no preset 'll-ring' for sglang; there are: *"),
}  # fmt: skip
#: Stands in for a server: the test sees what was declared, and nothing is launched.
DECLARED = """
import pytest
from pytest_llmperf.session.selection import PLUGIN

@pytest.fixture
def llm_server(engine):
    return None

@pytest.fixture
def found(request, llm_server):
    return request.config.pluginmanager.get_plugin(PLUGIN).session.tests[request.node.nodeid]
"""
OWN = """
[tool.llmperf.presets.nccl.mine]
reason = "Measured here."
values = { algo = "Tree", max_nchannels = 4 }

[tool.llmperf.profiles.base]
nccl = "ll-ring"
"""


def test_every_misuse_is_told_with_its_test(project: Project) -> None:
    tests = (f"{above}\ndef test_{i}({fixture}): pass\n" for i, (above, fixture, _) in enumerate(MISUSES.values()))
    project.suite(HEAD + "\n".join(tests))
    result = project.run_here()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "Traceback" not in str(result.stderr) + str(result.stdout)
    for i, (_, fixture, said) in enumerate(MISUSES.values()):
        where = f"test_{i}" if fixture == "tmp_path" else f"test_{i}?sglang?"
        result.stderr.fnmatch_lines([f"*test_perf.py::{where}: {said}"])


def test_a_server_that_is_up_cannot_be_swept(project: Project) -> None:
    project.suite(f"{HEAD}{SERVER}@pytest.mark.llm_sweep(tp=[2])\ndef test_x(llm_server): pass\n")
    result = project.run_here("--llmperf-url", "http://127.0.0.1:9")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_x?sglang?: llm_sweep launches servers of its own: leave out --llmperf-url*"])


def test_presets_are_merged_like_what_they_stand_for(project: Project) -> None:
    """In profiles and markers, layer by layer, one's own beside the shipped."""
    project.config(OWN)
    (project.path / "conftest.py").write_text(DECLARED)
    project.suite(
        HEAD
        + """
pytestmark = pytest.mark.llm_server("base", model="m")
SIX = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS", "NCCL_MAX_NCHANNELS": "16",
       "NCCL_BUFFSIZE": "16777216", "NCCL_NTHREADS": "512"}

def test_profile(found):
    assert found.config.canonical()["nccl"] == SIX

@pytest.mark.llm_server(nccl={"proto": "LL128"})
def test_over_a_preset(found):
    assert found.config.nccl == {**SIX, "NCCL_PROTO": "LL128"}

@pytest.mark.llm_server(nccl=["mine", {"nthreads": 256}], sglang="single-stream")
def test_own(found):
    assert found.config.nccl == {**SIX, "NCCL_ALGO": "Tree", "NCCL_MAX_NCHANNELS": "4", "NCCL_NTHREADS": "256"}
    assert found.config.flags["disable_custom_all_reduce"] is True

@pytest.mark.llm_servers(other={"nccl": "mine"})
def test_several(found, llm_servers):
    assert found.named["other"].nccl["NCCL_ALGO"] == "Tree"
"""
    )
    (project.path / "conftest.py").write_text(DECLARED + "\n@pytest.fixture\ndef llm_servers(engine): pass\n")
    project.run_here().assert_outcomes(passed=4)


def test_a_sweep_is_the_markers_of_its_test_and_its_engine(project: Project) -> None:
    """Class and function are merged, knobs of another engine are its own affair."""
    project.config(OWN)
    (project.path / "conftest.py").write_text(DECLARED)
    project.suite(
        HEAD
        + """
@pytest.mark.llm_sweep(base={"nccl__proto": "LL128"}, nccl=["mine", "simple"], tp=[2], launches=1)
@pytest.mark.llm_server(model="m", nccl={"proto": "LL"})
class TestX:
    @pytest.mark.llm_sweep(tp=None, vllm__enforce_eager=[True], sglang__stream_interval=[4])
    @pytest.mark.parametrize("size", [1, 2])
    def test_x(self, found, size):
        own = {"sglang": "sglang.stream_interval=4", "vllm": "vllm.enforce_eager=true"}[found.engine]
        assert list(found.members) == ["base", "nccl=mine", "nccl=simple", own]
        assert found.members["base"].nccl == {"NCCL_PROTO": "LL128"}
        assert found.members["nccl=mine"].nccl == {"NCCL_ALGO": "Tree", "NCCL_MAX_NCHANNELS": "4"}
        assert [s.name for s in found.order] == ["base", "nccl=mine", "base", "nccl=simple", own, "base"]
        assert found.plan.base_settings["nccl"] == "ll128"  # a preset's values, by its name
        with open("seen", "a") as file:
            print(found.nodeid, file=file)
"""
    )
    project.run_here("--engine", "vllm", "-k", "not 2")
    # no measurement, so each ends with its first launch
    assert (project.path / "seen").read_text().split() == [
        "test_perf.py::TestX::test_x[sglang-1]",
        "test_perf.py::TestX::test_x[vllm-1]",
    ]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('nccl.x]\nvalues = { proto = "LL" }', "presets: preset nccl.x needs a table of values and a reason"),
        ('nclc.x]\nreason = "r"\nvalues = {}', "presets are for * a table, not 'nclc' (did you mean 'nccl'?)"),
    ],
    ids=["no reason", "no key"],
)
def test_a_preset_of_another_shape(project: Project, table: str, said: str) -> None:
    project.config(f"[tool.llmperf.presets.{table}\n")
    project.suite(SUITE)
    result = project.run_here()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{said}"])


def test_the_marker_is_registered(project: Project) -> None:
    result = project.run_here("--markers", engine=None)
    result.stdout.fnmatch_lines(["@pytest.mark.llm_sweep(base={}, full=False, name=None, launches=2, *knobs=*"])
