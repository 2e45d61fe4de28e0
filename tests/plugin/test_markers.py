"""Markers: what is wrong with them is told at collection, all of it, with test, key and the right name."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project

HEAD = "import pytest\nfrom pytest_llmperf import perf\n"
#: What is written above ``def test_x(llm_server, baseline)``, and what must be said of it.
MISUSES = {
    "unknown key": ("@pytest.mark.llm_server(model='m', atention_backend='fa3')",
                    "llm_server has no 'atention_backend' (did you mean 'attention_backend'?)"),
    "no model": ("@pytest.mark.llm_server(tp=2)", "llm_server needs a model, like*"),
    "no marker": ("", "uses a server, and no @pytest.mark.llm_server(model=...) declares one"),
    "count": ("@pytest.mark.llm_server(model='m', tp='2')", "llm_server(tp='2') must be a whole number"),
    "zero": ("@pytest.mark.llm_server(model='m', tp=0)", "llm_server(tp=0) must be a whole number"),
    "switch": ("@pytest.mark.llm_server(model='m', cuda_graph='no')",
               "llm_server(cuda_graph='no') must be True or False"),
    "text": ("@pytest.mark.llm_server(model='m', dtype=16)", "llm_server(dtype=16) must be text"),
    "dict": ("@pytest.mark.llm_server(model='m', nccl=7)", "llm_server(nccl=7) must be a dict"),
    "env": ("@pytest.mark.llm_server(model='m', env={'A': []})", "llm_server(env={'A': ?*}) must be a dict of texts"),
    "flags": ("@pytest.mark.llm_server(model='m', vllm=7)",
              "llm_server(vllm=7) must be a dict of the engine's own flags"),
    "visible GPUs": ("@pytest.mark.llm_server(model='m', env={'CUDA_VISIBLE_DEVICES': '4,5'})",
                     "env={'CUDA_VISIBLE_DEVICES': ...} is the plugin's to set: a server sees the GPUs*"),
    "short flag": ("@pytest.mark.llm_server(model='m', sglang={'-dcp': 4})",
                   "sglang={'-dcp': ...} is a short name that this plugin does not know: write the long one*"),
    "timeout": ("@pytest.mark.llm_server(model='m', startup_timeout=True)",
                "llm_server(startup_timeout=True) must be seconds above 0"),
    "engine": ("@pytest.mark.llm_server(model='m', engine=3)",
               "llm_server(engine=3) must be a name or a list of names"),
    "unknown engine": ("@pytest.mark.llm_server(model='m', engine='sglan')",
                       "no engine 'sglan' (did you mean 'sglang'?)"),
    "profile": ("@pytest.mark.llm_server('kimmy')",
                "llm_server names no profile of ?tool.llmperf.profiles?: 'kimmy' (did you mean 'kimi'?)"),
    "nccl name": ("@pytest.mark.llm_server(model='m', nccl={'porto': 'LL'})",
                  "llm_server: nccl={'porto': ...} is not a variable of NCCL (did you mean 'proto'?)*"),
    "nccl value": ("@pytest.mark.llm_server(model='m', nccl={'proto': 'LL12'})",
                   "llm_server: nccl={'proto': 'LL12'}: 'LL12' is not one of LL, LL128, SIMPLE*"),
    "mismatch": ("@pytest.mark.llm_server(model='m', allow_mismatch=['attention_bakend'])",
                 "llm_server(allow_mismatch=...) names no field of the effective config: 'attention_bakend' "
                 "(did you mean 'attention_backend'?)"),
    "positional": ("@pytest.mark.llm_server(model='m')\n@pytest.mark.perf(82.5)",
                   "@perf takes keywords only, like @perf(target=82.5), not (82.5,)"),
    "perf key": ("@pytest.mark.llm_server(model='m')\n@perf(targt=3)",
                 "@perf has no 'targt' (did you mean 'target'?)"),
    "metric": ("@pytest.mark.llm_server(model='m')\n@perf(metric='decode')", "@perf names no known metric: 'decode'*"),
    "no metric": ("@pytest.mark.llm_server(model='m')\n@perf(metric=())",
                  "@perf(metric=()) must name at least one metric, each once"),
    "metric type": ("@pytest.mark.llm_server(model='m')\n@perf(metric=7)", "@perf names no known metric: 7*"),
    "target": ("@pytest.mark.llm_server(model='m')\n@perf(target='fast')",
               "@perf(target='fast') must be a number above 0, in the metric's unit"),
    "target zero": ("@pytest.mark.llm_server(model='m')\n@perf(target=0)", "@perf(target=0) must be a number above 0*"),
    "target of another": ("@pytest.mark.llm_server(model='m')\n@perf(metric='ttft_ms', target={'decode_tok_s': 3})",
                          "@perf(target=...) is for 'decode_tok_s', which metric=('ttft_ms',) does not gate"),
    "percent": ("@pytest.mark.llm_server(model='m')\n@perf(max_regression=5)",
                "@perf(max_regression=5) must be a fraction below 1 (0.05 is 5 %)"),
    "effect": ("@pytest.mark.llm_server(model='m')\n@perf(min_effect=float('nan'))",
               "@perf(min_effect=nan) must be a fraction below 1 (0.05 is 5 %)"),
    "repetitions": ("@pytest.mark.llm_server(model='m')\n@perf(repetitions=2.5)",
                    "@perf(repetitions=2.5) must be a whole number from 1"),
}  # fmt: skip
PROFILES = """
[tool.llmperf.profiles.kimi]
model = "profile-model"
tp = 8
nccl = { proto = "LL", algo = "Ring" }
sglang = { num_continuous_decode_steps = 4 }
"""


def test_gpus_chosen_in_the_engines_own_table_are_refused(project: Project) -> None:
    project.config("\n[tool.llmperf.engines.sglang.env]\nCUDA_VISIBLE_DEVICES = '4,5'\n")
    result = project.run_here()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*env in ?tool.llmperf.engines.sglang? sets CUDA_VISIBLE_DEVICES, which is the plugin's*"]
    )
    assert project.launches == 0


def test_every_misuse_is_told_at_once(project: Project) -> None:
    project.config(PROFILES)
    tests = [f"{above}\ndef test_{i}(llm_server, baseline): pass\n" for i, (above, _) in enumerate(MISUSES.values())]
    project.suite(HEAD + "\n".join(tests))
    result = project.run_here()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "Traceback" not in str(result.stderr) + str(result.stdout)
    for i, (name, (_, said)) in enumerate(MISUSES.items()):
        engine = "sglan" if name == "unknown engine" else "sglang"
        result.stderr.fnmatch_lines([f"*test_perf.py::test_{i}?{engine}?: {said}"])
    assert project.launches == 0


def test_every_problem_of_one_test_is_told(project: Project) -> None:
    project.suite(HEAD + "@pytest.mark.llm_server(modle='m', tp='2')\n@perf(targt=3, metric='x')\n"
                         "def test_x(llm_server): pass")  # fmt: skip
    result = project.run_here()
    said = str(result.stderr)
    assert all(word in said for word in ("'modle'", "tp='2'", "needs a model", "'targt'", "metric: 'x'"))


def test_a_misuse_of_many_tests_is_told_once(project: Project) -> None:
    body = "".join(f"def test_{i}(llm_server): pass\n" for i in range(5))
    project.suite(f"{HEAD}pytestmark = pytest.mark.llm_server(model='m', tpp=2)\n{body}")
    result = project.run_here()
    [line] = [line for line in result.errlines if "tpp" in line]
    assert line == (
        "ERROR: test_perf.py::test_0[sglang], test_perf.py::test_1[sglang], test_perf.py::test_2[sglang] and "
        "2 more tests: llm_server has no 'tpp' (did you mean 'tp'?)"
    )


def test_a_key_that_an_engine_cannot_honour(project: Project) -> None:
    project.suite(HEAD + "@pytest.mark.llm_server(model='tiny', custom_all_reduce=False, nccl={'proto': 'LL'})\n"
                         "def test_x(llm_server): pass")  # fmt: skip
    result = project.run_here(engine="llamacpp")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([
        "*test_perf.py::test_x?llamacpp?: llamacpp cannot honour custom_all_reduce=False*",
        "test_perf.py::test_x?llamacpp?: llamacpp cannot honour nccl=*",
    ])  # fmt: skip
    assert project.run_here("--collect-only").ret == 0


def test_misuses_under_xdist(project: Project) -> None:
    """Found by the workers, told by the controller: a usage error as in a serial run, and no internal one."""
    project.suite(HEAD + "@pytest.mark.llm_server(model='m', tpp=2)\ndef test_x(llm_server): pass\n"
                         "@pytest.mark.llm_server('kimi')\ndef test_y(llm_server): pass\n"
                         "def test_z(): pass\n")  # fmt: skip
    result = project.run(workers=2)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = str(result.stderr)
    assert "test_perf.py::test_x[sglang]: llm_server has no 'tpp' (did you mean 'tp'?)" in said
    assert "test_perf.py::test_y[sglang]: llm_server names no profile of [tool.llmperf.profiles]: 'kimi'" in said
    assert "INTERNAL" not in said + str(result.stdout)
    assert "Traceback" not in said + str(result.stdout)


def test_llm_servers_misuses(project: Project) -> None:
    project.suite(
        HEAD
        + """
@pytest.mark.llm_server(model='m')
def test_none(llm_servers): pass

@pytest.mark.llm_server(model='m')
@pytest.mark.llm_servers(a=5)
def test_type(llm_servers): pass

@pytest.mark.llm_server(model='m')
@pytest.mark.llm_servers(a={'tpp': 2}, b={'engine': 'vlm'})
def test_key(llm_servers): pass
"""
    )
    result = project.run_here()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([
        "*test_none?sglang?: llm_servers needs @pytest.mark.llm_servers(name={...overrides}, ...)",
        "*test_type?sglang?: llm_servers takes a dict of overrides for each name, like *",
        "*test_key?sglang?: llm_server has no 'tpp'*",
    ])  # fmt: skip


def test_markers_are_merged_inner_over_outer(project: Project) -> None:
    """Key by key, dicts one level down, profiles first; None clears; another engine's flags are ignored."""
    project.config(PROFILES)
    project.suite(
        HEAD
        + """
pytestmark = [pytest.mark.llm_server("kimi", tp=4, nccl={"proto": "LL128"}), perf(target=1, repetitions=2)]

def declared(server):
    return server.config.canonical()

@pytest.mark.llm_server(dtype="bfloat16", env={"A": 1})
class TestInner:
    @pytest.mark.llm_server(tp=None, nccl={"algo": None}, vllm={"enforce_eager": True}, sglang={"log_level": "info"})
    @perf(repetitions=1, metric="ttft_ms")
    def test_x(self, llm_config):
        config, perf = llm_config
        assert config.canonical() == {
            "engine": "sglang", "model": "profile-model", "dtype": "bfloat16", "env": {"A": "1"},
            "nccl": {"NCCL_PROTO": "LL128"}, "flags": {"num_continuous_decode_steps": 4, "log_level": "info"},
        }
        assert (perf.names, perf.repetitions) == (("ttft_ms",), 1)
        assert perf.target == ()  # it was for the outer marker's metric
        open("inner", "x").close()

def test_outer(llm_config):
    config, perf = llm_config
    assert config.tp == 4
    assert dict(config.nccl) == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128"}
    assert (perf.target, perf.repetitions) == ((("decode_tok_s", 1.0),), 2)
    open("outer", "x").close()
"""
    )
    # what the markers come to, without a launch: a stand-in for llm_server that only says what was declared
    (project.path / "conftest.py").write_text("""
import pytest
from pytest_llmperf.session.selection import PLUGIN

@pytest.fixture
def llm_server(engine):
    return None

@pytest.fixture
def llm_config(request, llm_server):
    test = request.config.pluginmanager.get_plugin(PLUGIN).session.tests[request.node.nodeid]
    return test.config, test.perf
""")
    result = project.run_here()
    assert (project.path / "inner").exists(), result.outlines
    assert (project.path / "outer").exists(), result.outlines
    assert "declares ttft_ms and has not judged it" in str(result.stdout)  # green for nothing is red
