"""Reference pages out of the code: options, markers, presets, fixtures, metrics, guards, hooks and the
``llmperf`` command.

mkdocs runs it as a hook while it builds. What the code does not say in words (the meaning of a key) is written here; a
key without a meaning, or a meaning without its key, ends the build.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest_llmperf
from pytest_llmperf import hookspecs, options, plugin
from pytest_llmperf.cli import main
from pytest_llmperf.engines.base import EngineSettings
from pytest_llmperf.measure.limits import Limits
from pytest_llmperf.measure.metrics import METRICS, OF_THE_ENGINE
from pytest_llmperf.measure.run import Run
from pytest_llmperf.server_config import ServerConfig
from pytest_llmperf.session.ab_fixture import Ab, AbPlan, AbResult
from pytest_llmperf.session.llm_server import LlmServer
from pytest_llmperf.session.perf_marker import Perf
from pytest_llmperf.session.verdicts import Baseline
from pytest_llmperf.tuning.presets import Preset, load_presets

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

PACKAGE = Path(pytest_llmperf.__file__).parent

PERF = {
    "metric": "the metric, or several, that this test gates; see [metrics](metrics.md)",
    "target": "value to reach, in the metric's unit; a dict for several metrics",
    "max_regression": "loss that must not go unseen, as a fraction; a pass that would not have seen it is *weak*",
    "min_effect": "smallest change that matters, as a fraction; over `--llmperf-min-effect`",
    "precision": "repeat until the launch's mean has this relative standard error (0.005)",
    "repetitions": "least number of measured requests (5)",
    "max_repetitions": "most of them (20)",
}
SERVER = {
    "engine": "engine or engines that the test is for; without it, every `--engine`",
    "model": "path or name, as the engine takes it; `tiny` is made on the spot",
    "tokenizer": "tokenizer, when it is not the model's",
    "tp": "tensor-parallel size; leases that many GPUs",
    "dp": "data-parallel size",
    "pp": "pipeline-parallel size",
    "dtype": "type of weights and activations",
    "quantization": "quantisation method",
    "load_format": "how weights are loaded; `dummy` makes them up",
    "attention_backend": "attention backend; one that the engine replaces is an error",
    "cuda_graph": "whether decoding runs in captured graphs",
    "custom_all_reduce": "whether the engine's own all-reduce is used",
    "prefix_cache": "whether prompts are looked up in the KV cache",
    "max_running_requests": "requests decoded at once",
    "context_length": "longest prompt and output together, in tokens",
    "speculative": "speculative decoding; see [engines](engines.md#speculation)",
    "seed": "the engine's random seed",
    "nccl": "NCCL variables without their prefix, for the server only; see [engines](engines.md#nccl)",
    "env": "further variables of the server",
    "flags": "in the engine's name, as `sglang={...}`: its [own flags](engines.md#engine-only-flags), verbatim",
    "startup_timeout": "seconds without progress before a start is given up; not part of the identity",
    "allow_mismatch": "effective-config fields whose difference is a note, not an error; not part of the identity",
}
COMMAND = """\
# The `llmperf` command

Exit codes: 0 well, 1 failed or something is worse, 2 wrong usage, and of `compare` that something could not be
compared (another unit, definition or workload, a test that is gone), 4 misconfigured, 130 interrupted. `--json` prints
what a verb lists as JSON: the values that tables are made of, with all their digits. Tables fit the terminal
(`COLUMNS` says another width); characters that it cannot show are escaped.

Completion in the shell comes from `argcomplete` (`pip install 'pytest-llmperf[completion]'`):
`eval "$(register-python-argcomplete llmperf)"` in the shell's start-up file.
"""
AB = {
    "a": "keys of `llm_server` that this side overrides; `command`, a list of words, starts another build",
    "b": "the same for the other side",
    "metric": "what decides; see [metrics](metrics.md)",
    "budget": "most launches of each side",
    "min_effect": "a difference certain to be smaller than this fraction is none, and ends it",
}
#: What makes a guard trip; quoted names are limits.
GUARDS = {
    "client cpu": "this process used more than `client_cpu_stream` or `client_cpu_load` of a core",
    "client delay": "chunks were read late: p99 above `client_delay` of an inter-token gap",
    "drift": "the decode rate moved by more than `drift` over the repetitions, with p below `drift_p`",
    "server starved": "the server's most delayed thread waited for a CPU longer than `starved_cpu` or `starved_gpu`",
    "host load": "where waiting is not told: the machine was busier than `host_busy`, others took `others_busy`",
    "other traffic": "the server ran requests before, or generated more tokens than were received",
    "one server": "an attached server: its answers came from several, or its counter moved less than our tokens",
    "preemptions": "the engine preempted or retracted requests",
    "captured graphs": "decode batches ran outside captured graphs, or a GPU had none captured, undeclared",
    "queueing": "not all streams of a load were ever decoding at once",
    "gpu clock": "median SM clock below `clock_share` of its maximum",
    "gpu clock swing": "the SM clock moved by more than `clock_swing`",
    "gpu slowdown": "thermal, hardware or power-brake slowdown in more than `throttled` of the samples",
    "gpu temperature": "the slowdown temperature was reached",
    "gpu ecc": "uncorrected memory errors during the measurement",
    "gpu power limit": "the power limit was changed during the measurement",
    "gpu foreign processes": "another process used the GPU",
}


def pages() -> dict[str, str]:
    """Path below docs/ to Markdown. Raises ``LookupError`` when code and the words above disagree."""
    return {
        "reference/options.md": _options(),
        "reference/markers.md": _markers(),
        "reference/presets.md": _presets(),
        "reference/fixtures.md": _fixtures(),
        "reference/metrics.md": _metrics(),
        "reference/guards.md": _guards(),
        "reference/hooks.md": _hooks(),
        "reference/command.md": _command(),
    }


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The mkdocs hook."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def matched(words: Mapping[str, str], names: Iterable[str], what: str) -> list[tuple[str, str]]:
    """Each of ``names`` with its words."""
    names = list(names)
    if set(words) != set(names):
        raise LookupError(f"{what}: words and code differ in {', '.join(sorted(set(words) ^ set(names)))}")
    return [(name, words[name]) for name in names]


def _options() -> str:
    def row(spec: options.Option) -> tuple[str, ...]:
        names = "<br>".join(f"`{f}{'' if spec.type is bool else ' ' + (spec.metavar or 'VALUE')}`" for f in spec.flags)
        choices = f" ({', '.join(spec.choices)})" if spec.choices else ""
        default = (
            "none"
            if spec.default in (None, ())
            else f"`{str(spec.default).lower() if spec.type is bool else spec.default}`"
        )
        return names, f"`{spec.name}`", default, spec.help + choices

    settings = [(f"`{f.name}`", _default(f)) for f in fields(EngineSettings)]
    return f"""# Options

Each is read from the command line, else pytest's ini (`llmperf_<key>`), else `[tool.llmperf]` of pyproject.toml (or the
whole of llmperf.toml), else it has its default. The settings are those of the nearest folder that has some, from where
pytest or `llmperf` runs upward (from the root folder of the tests, where pytest runs outside of it); their paths start
there. What a test's own marker says (`min_effect`, `startup_timeout`) goes before all of them. A short flag that
another plugin already owns is left to it; the `--llmperf-` one always works.

{table(("option", "key", "default", "meaning"), map(row, options.OPTIONS))}
`--update-baselines` (`--llmperf-update-baselines`) records new baselines and agreeing launches, and starts a new epoch
after an improvement. Where `CI` is set it is refused unless written `--update-baselines=force`. It has no key:
recording is never a default.

`--engine`, or `-m` with `perf` in it, opts in. Without either no server is started and these tests are deselected.

## Tables of `[tool.llmperf]`

`[tool.llmperf.profiles.<name>]` holds keys of `llm_server`, used as `@pytest.mark.llm_server("<name>", ...)`.

`[tool.llmperf.presets.<key>.<name>]` holds [presets](../how-to/sweep.md#presets) of one's own.

`[tool.llmperf.engines.<name>]` says how that engine is started on this machine;
[what each key means](../how-to/engine-elsewhere.md). Its keys:

{table(("key", "default"), settings)}
## Variables

| variable | meaning |
|---|---|
| `LLMPERF_API_KEY` | API key for `--llmperf-url` |
| `LLMPERF_STATE_DIR` | folder of GPU locks and kept servers; all runs that share GPUs must use the same |
| `CI` | recording is refused, progress lines are plain |
| `GITHUB_STEP_SUMMARY` | a Markdown summary is appended to that file |
| `CUDA_VISIBLE_DEVICES`, `ROCR_VISIBLE_DEVICES`, `HIP_VISIBLE_DEVICES` | GPUs that may be leased |
"""


def _default(field: Any) -> str:
    if field.default is not MISSING:
        return "none" if field.default is None else f"`{field.default}`"
    return "required" if field.default_factory is MISSING else "empty"


def _markers() -> str:
    perf = (
        {"metric": "`'decode_tok_s'`"}
        | {f.name: _default(f) for f in fields(Perf) if f.name != "metrics"}
        | {"target": "none"}
    )
    server = {f.name: _default(f) for f in fields(ServerConfig)} | {"engine": "every `--engine`"}
    compared = {f.name: _default(f) for f in fields(AbPlan)} | {"a": "as declared", "b": "as declared"}
    head = ("key", "default", "meaning")
    signatures = "\n".join(f"- `{m.split(':')[0]}`" for m in plugin.MARKERS)
    return f"""# Markers

{signatures}

Markers on module, class and function are merged key by key, the inner one over the outer; `None` clears what an outer
one said. An unknown or ill-typed key is an error at collection that names the test.

## `perf`

`from pytest_llmperf import perf` gives the same as `pytest.mark.perf`.

{table(head, ((f"`{k}`", perf[k], text) for k, text in matched(PERF, perf, "@perf")))}
## `llm_server`

Positional arguments name profiles. What each key becomes on each engine is on the page [engines](engines.md).

{table(head, ((f"`{k}`", server[k], text) for k, text in matched(SERVER, server, "llm_server")))}
## `llm_servers`

`@pytest.mark.llm_servers(name={{...}}, other={{...}})` declares several servers at once, each the declared `llm_server`
with these keys in place of its own. The fixture `llm_servers` holds them by name.

## `llm_sweep`

Its keywords are `base`, `full`, `name`, `launches`, and knobs: keys of `llm_server`, each with a list of values; `__`
reaches into a mapping. [Sweep a knob](../how-to/sweep.md) says what becomes of them.

## `llm_ab`

The two sides of the fixture `ab`, launched by turns; see [find the gap](../how-to/find-the-gap.md).

{table(head, ((f"`{k}`", compared[k], text) for k, text in matched(AB, compared, "llm_ab")))}"""


def _presets() -> str:
    def row(preset: Preset) -> tuple[str, ...]:
        values = " ".join(f"`{k}={v}`" for k, v in preset.values.items())
        why = " ".join(f"{preset.reason} {preset.caution}".split())
        return f'`{preset.key}="{preset.name}"`', values, why

    return f"""# Presets

Names that stand for values in `llm_server`, `llm_servers`, `llm_sweep` and profiles. One's own:
[sweep a knob](../how-to/sweep.md#presets).

{table(("preset", "values", "why, and what it may cost"), map(row, load_presets().values()))}"""


def _fixtures() -> str:
    tree = ast.parse((PACKAGE / "fixtures.py").read_text(encoding="utf-8"))
    found = [
        (node.name, ast.get_docstring(node) or "")
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(d).startswith("pytest.fixture") for d in node.decorator_list)
    ]
    parts = "".join(f"## `{name}`\n\n{_prose(text)}\n\n" for name, text in found)
    return (
        f"# Fixtures\n\n{parts}"
        + _members("The server: what `llm_server` gives", LlmServer)
        + _members("The baseline: what `baseline` gives", Baseline)
        + _members("An A/B: what `ab` gives", Ab)
        + f"{_prose(inspect.getdoc(AbResult) or '')}\n\n"
        + _members("A run: what `.stream()` and `.load()` give", Run)
    )


def _members(title: str, kind: type) -> str:
    out = f"## {title}\n\n{_prose(inspect.getdoc(kind) or '')}\n\n"
    for name, member in vars(kind).items():
        if name.startswith("_") and name != "__contains__":
            continue
        wrapped = getattr(member, "fget", None) or getattr(member, "func", None)
        if wrapped is not None:
            out += f"### `.{name}`\n\n{_prose(inspect.getdoc(wrapped) or '')}\n\n"
        elif inspect.isfunction(member):
            signature = str(inspect.signature(member)).replace("'", "").replace("(self, ", "(").replace("(self)", "()")
            shown = "value in baseline" if name == "__contains__" else f".{name}{signature}"
            out += f"### `{shown}`\n\n{_prose(inspect.getdoc(member) or '')}\n\n"
    return out


def _prose(docstring: str) -> str:
    """A docstring as Markdown: double backquotes are single ones."""
    return textwrap.dedent(docstring).strip().replace("``", "`")


def _metrics() -> str:
    rows = ((f"`{m.name}`", m.unit, "higher" if m.higher_is_better else "lower", m.what) for m in METRICS.values())
    return f"""# Metrics

Names are attributes of a run (`run.decode_tok_s`) and values of `@perf(metric=...)`. `.stream()` gives all but the two
throughputs of a load; those of speculation only where the engine counts drafts. How tokens are counted and times are
taken is on the page [measurement](../concepts/measurement.md).

{table(("metric", "unit", "better", "definition"), rows)}"""


def _guards() -> str:
    unknown = {w for text in GUARDS.values() for w in re.findall("`(.+?)`", text)} - {f.name for f in fields(Limits)}
    if unknown:
        raise LookupError(f"guards: no limits of these names: {', '.join(sorted(unknown))}")
    rows = ((f"`{name}`", text) for name, text in matched(GUARDS, sorted(guard_names()), "guards"))
    values = Limits()
    limits = (
        (f"`{name}`", f"{getattr(values, name):g}", _prose(" ".join(why.split()))) for name, why in _limit_words()
    )
    return f"""# Guards and limits

A guard looks at what could have disturbed a measurement. One that trips for a cause outside the server makes the
verdict *inconclusive* and says why; `--llmperf-ignore-guard NAME` shows it without that, and then every report of the
session, and each launch that it records, names what was ignored. What the engine does to itself
({", ".join(sorted(OF_THE_ENGINE))}) explains a loss and never excuses it: it is said beside the verdict. A guard
whose source is missing (no NVML, no counters) is silent.

{table(("guard", "trips when"), rows)}
## Limits

Times are seconds, shares are fractions.

{table(("limit", "value", "why"), limits)}"""


def guard_names() -> set[str]:
    """First arguments of every ``Guard(...)`` in the measuring room."""
    calls = (
        node
        for file in (PACKAGE / "measure").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Guard" and node.args
    )
    return {ast.literal_eval(call.args[0]) for call in calls}


def _limit_words() -> Iterator[tuple[str, str]]:
    """Each limit with the text under it in the source, if any."""
    tree = ast.parse(inspect.getsource(Limits))
    body = tree.body[0].body  # type: ignore[attr-defined]
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            yield ast.unparse(node.target), str(said)


def _hooks() -> str:
    found = [f for name, f in vars(hookspecs).items() if name.startswith("pytest_llmperf_")]
    parts = ""
    for f in found:
        prose, example = hook_words(f)
        signature = str(inspect.signature(f)).replace("'", "")
        parts += f"## `{f.__name__}{signature}`\n\n{_prose(prose)}\n\n```python\n{example}```\n\n"
    return f"""# Hooks

For plugins and for the conftest.py at the root. Installable as a plugin is `examples/third_party_engine/`; see
[write an engine adapter](../how-to/write-an-engine.md).

{parts}"""


def hook_words(hook: Callable[..., Any]) -> tuple[str, str]:
    """What a hook's docstring says, and its worked example. Raises ``LookupError`` where it has none."""
    prose, colons, example = (inspect.getdoc(hook) or "").partition("::\n\n")
    if not colons:
        raise LookupError(f"{hook.__name__}: its docstring has no worked example")
    return f"{prose}:", f"{textwrap.dedent(example).strip()}\n"


def _command() -> str:
    os.environ["COLUMNS"] = "100"  # argparse wraps to the terminal
    parts = "".join(f"## `llmperf {c.name}`\n\n```text\n{help_of(c.name)}```\n\n" for c in main.COMMANDS)
    return f"{COMMAND}\n{parts}"


def help_of(name: str) -> str:
    """What ``llmperf NAME --help`` prints."""
    parser = main._parser(name)
    commands = next(a for a in parser._actions if a.choices and name in a.choices)
    text: str = commands.choices[name].format_help()  # type: ignore[index, call-overload]
    return text


if __name__ == "__main__":
    for path, content in pages().items():
        print(f"<!-- {path} -->\n{content}")
