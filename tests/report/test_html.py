"""The HTML page: complete, self-contained, and inert whatever it is given. How it looks: test_browser.py."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pytest_llmperf.records.histories import History, HistoryPoint
from pytest_llmperf.records.results import LaunchRecord, LaunchValues, SessionRecord
from pytest_llmperf.report import html, plots, summary, tuning_plots
from pytest_llmperf.report.last_run import LastRun
from pytest_llmperf.report.svg import Scale
from tests.report import samples
from tests.report.hostile import EVIL, hostile


class Page(HTMLParser):
    """What a browser would find: tags with their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join("".join(self.text).split())


def full() -> str:
    return html.page(samples.FULL, [samples.HISTORY], samples.LOGS, samples.BEFORE)


def test_the_page_has_everything() -> None:
    words = Page(full()).words
    for said in (
        "1 error 1 invalid 1 regressed 1 below target 1 inconclusive", "8 x NVIDIA B200",
        "10 metrics gated at alpha 0.10% each",
        "pytest -m perf --engine sglang --engine vllm", "1 result inconclusive", "belongs to no test of this run",
        "3 launches, start-up 212 s, 181 s, 184 s", "vllm Kimi-K2.5 tp=8 did not start (31.2 s): out of GPU memory",
        "Gap of engine over reference",
        "0.771x", "no credible effect", "did not start: unsupported architecture sm_100", "knee at 48 streams",
        "below the band on 2 fresh launches", "What differs from the baseline", "0.5.16", "trtllm_mla accepted",
        "sglang Kimi-K2.5 tp=8, launch f6, died: out of GPU memory",
        "SM clock 480 MHz", "newest launch 3 days old", "pytest tests/perf/test_decode.py::test_single_stream --engine",
        "max_running_requests reset to 48 for speculative decoding", "The server is fired up and ready to roll!",
        "No log was kept with this report.", "warm compile cache", "NCCL_PROTO",
    ):  # fmt: skip
        assert said in words, said


def test_drawings_are_markup_whichever_import_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pytest that runs another in its process takes back what was imported meanwhile, and some of it is kept."""
    for name in [m for m in sys.modules if m.partition(".")[0] == "markupsafe"]:
        monkeypatch.delitem(sys.modules, name)
    assert "<svg" in full()


def test_each_result_is_linked_and_problems_are_open() -> None:
    page = Page(full())
    targets = {a["href"] for tag, a in page.tags if tag == "a"}
    ids = {f"#{a['id']}" for _, a in page.tags if "id" in a}
    assert targets <= ids
    controls = {f"#{a['id']}" for tag, a in page.tags if tag == "input"}
    assert len(ids - controls) == len(samples.FULL.results) + len(samples.FULL.servers)
    results = [a for tag, a in page.tags if tag == "details" and "result" in str(a["class"])]
    passed = sum(r.verdict == "passed" and not r.weak for r in samples.FULL.results)
    assert sum("open" in a for a in results) == len(results) - passed


def test_weak_passes_are_counted_apart_and_said() -> None:
    """As in the terminal and on GitHub: green, and yet a loss could have passed."""
    weak = [r for r in samples.FULL.results if r.verdict == "passed" and r.weak]
    words = Page(full()).words
    assert words.count(f"{len(weak)} of them weak") == 2, "in the title and among the verdicts"
    for result in weak:
        assert words.count(summary.weak(result)) == 2, "at the top and with the result"
    strong = tuple(replace(r, weak=False) for r in samples.FULL.results)
    assert "weak" not in Page(html.page(replace(samples.FULL, results=strong))).words


def test_the_page_needs_nothing_else() -> None:
    page = Page(full())
    assert not {"script", "img", "iframe", "object", "embed", "form", "base", "video"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "action", "data", "xlink:href"):
            assert str(attributes.get(name, "#")).startswith(("#", "data:,")), (tag, attributes)
    assert "url(" not in full()
    assert "@import" not in full()
    policy = next(str(a["content"]) for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_a_strangers_text_stays_text() -> None:
    """The hostile session gives the same elements and attributes as the same session with harmless texts."""
    evil = hostile()
    harmless = SessionRecord.from_json(_replaced(evil.to_json()))
    history = [replace(samples.HISTORY, test=evil.results[1].test, unit=EVIL, path=EVIL)]
    bad = html.page(evil, history, {x.id: EVIL * 3 for s in evil.servers for x in s.launches})
    good = html.page(harmless, [], {x.id: "log" for s in harmless.servers for x in s.launches})
    assert "pwned" in Page(bad).words
    kinds = {tag for tag, _ in Page(bad).tags}
    assert kinds == {tag for tag, _ in Page(good).tags} - {"path"} | {"path"} & kinds
    assert {n for _, a in Page(bad).tags for n in a} == {n for _, a in Page(good).tags for n in a}
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\ud800-\udfff]", bad)
    bad.encode("utf-8")


def _replaced(value: object) -> object:
    if isinstance(value, str):
        return value.replace(EVIL, "nice")
    if isinstance(value, dict):
        return {str(_replaced(k)): _replaced(v) for k, v in value.items()}
    return [_replaced(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("session", [samples.EMPTY, samples.GREEN], ids=["empty", "green"])
def test_small_sessions(session: SessionRecord) -> None:
    words = Page(html.page(session)).words
    assert ("nothing was measured" in words) == (not session.results)


def test_an_interrupted_session_says_so() -> None:
    session = replace(samples.GREEN, session={**samples.SESSION, "interrupted": True})
    assert "Interrupted: this is what was measured until then." in Page(html.page(session)).words


def test_what_changed_since_the_last_run() -> None:
    words = Page(full()).words
    assert "last run2026-11-02 10:12:09 UTC: 1 below target, 1 improved, 3 passed" in words
    assert "gone since the last run tests/perf/test_decode.py::test_gone (sglang, decode_tok_s)" in words
    assert "Last run: 82.40 tok/s, passed" in words
    last = LastRun.of(samples.FULL, samples.BEFORE)
    assert last.change(samples.REGRESSED) == "-22.8%, was passed"
    assert last.change(samples.PASSED) == "-0.58%"
    assert last.change(samples.NO_BASELINE) == "new"
    assert "since last run" not in Page(html.page(samples.FULL)).words


def test_other_units_give_no_change() -> None:
    was = replace(samples.PASSED, unit="ktok/s", value=0.0804)
    now = SessionRecord({}, results=(samples.PASSED,))
    assert LastRun.of(now, SessionRecord({}, results=(was,))).change(samples.PASSED) == "-"


def test_servers_of_one_test_are_matched_in_their_order() -> None:
    def run(*values: float) -> SessionRecord:
        return SessionRecord({}, results=tuple(replace(samples.PASSED, value=v) for v in values))

    now = run(80.0, 40.0)
    last = LastRun.of(now, run(100.0, 50.0, 25.0))
    assert [last.change(r) for r in now.results] == ["-20.0%", "-20.0%"]
    assert len(last.gone) == 1


def test_waits_have_percentiles_and_histograms() -> None:
    words = Page(full()).words
    assert "msleastp50p90p95p99mostof" in words.replace(" ", "")
    assert "TTFT, by request 138.2 141.0 149.5 160.4 188.0 191.2 15" in words
    assert f"ITL, by token 14.90 15.70 16.10 16.40 17.20 88.10 {samples.WAITS[1].count}" in words
    assert "ITL, by token, in ms, over the launches that decided; 19 more further right, up to 88.10 ms." in words
    drawn = plots.histogram(samples.WAITS[0])
    assert drawn.count('class="bar"') == 3, "two of its five bins are empty"
    assert "138.2 to 148.8 ms: 13 of 15" in drawn


@pytest.mark.parametrize(
    ("edges", "counts"), [((), ()), ((1.0, 2.0), (0,)), ((5.0, 5.0), (3,)), ((float("nan"), 1.0), (1,))], ids=str
)
def test_a_histogram_of_odd_numbers(edges: tuple[float, ...], counts: tuple[int, ...]) -> None:
    odd = replace(samples.WAITS[0], edges=edges, counts=counts, percentiles={})
    drawn = plots.histogram(odd)
    assert "nan" not in drawn
    assert "inf" not in drawn


def test_the_engines_of_a_test_share_a_load_plot() -> None:
    session = replace(
        samples.FULL, curves=(samples.CURVE, samples.ON_VLLM_CURVE, replace(samples.CURVE, test="t::other"))
    )
    page = html.page(session)
    assert page.count("Throughput of tests/perf/test_decode.py::test_peak against concurrency") == 1
    assert page.count("Throughput of t::other against concurrency") == 1
    drawn = tuning_plots.curves([samples.CURVE, samples.ON_VLLM_CURVE])
    assert "sglang: peak 2370 tok/s, knee at 48" in drawn
    assert re.search(r"vllm: peak \d+ tok/s, knee at 64", drawn)
    assert drawn.count('"trend series-0"') == drawn.count('"trend series-1"') == len(samples.CURVE.points) - 1


def test_gap_plots_say_their_metric() -> None:
    gaps = [
        replace(samples.GAP, test="t::test_with_a_name_too_long_for_a_phone", metric=m)
        for m in ("ttft_ms", "itl_p99_ms")
    ]
    drawn = tuning_plots.gaps(gaps)
    assert re.findall(r">[^<>]* (\w+_ms)<", drawn) == ["ttft_ms", "itl_p99_ms"]
    assert "sglang / vllm" not in drawn
    assert "decode_tok_s, llamacpp / vllm" in tuning_plots.gaps([samples.GAP, replace(samples.GAP, engine="llamacpp")])


def test_the_versions_of_a_source_tree(tmp_path: Path) -> None:
    """Without an installed package's metadata, as ``-p pytest_llmperf.plugin`` loads it."""
    code = (
        "import sys, importlib.metadata as m\n"
        "def none(name): raise m.PackageNotFoundError(name)\n"
        "m.version = none\n"
        "import pytest_llmperf; print(pytest_llmperf.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", done.stdout)


def test_history_page() -> None:
    words = Page(html.history_page([samples.HISTORY])).words
    assert "11 launches" in words
    assert "+14.4% trtllm_mla accepted" in words
    assert "2026-08-03 09:00" in words
    assert "No baseline was found." in Page(html.history_page([])).words


def test_history_beside_a_result_draws_the_band_that_it_was_held_to() -> None:
    """Confirming launches have another limit than one alone, and this run may have been recorded since."""
    result = next(r for r in samples.FULL.results if r.band and r.baseline and r.value)
    held = replace(result, band=(61.25, 63.75))
    assert "61.25, 63.75" in plots.history(samples.HISTORY, held)
    assert "61.25, 63.75" not in plots.history(samples.HISTORY)


def test_log_tails(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "a.log"
    log.parent.mkdir()
    log.write_bytes(b"".join(b"line %d \xff\x1b[31m\n" % i for i in range(50_000)) + b"x" * 5000 + b"\nlast")
    server = replace(
        samples.SGLANG,
        launches=(LaunchRecord("a", 1.0, log="logs/a.log"), LaunchRecord("b", 1.0, log="logs/gone.log"),
                  LaunchRecord("c", 1.0, log="nul\0"), LaunchRecord("d", 1.0)),
    )  # fmt: skip
    tails = html.tails(SessionRecord({}, (server,)), tmp_path)
    assert list(tails) == ["a"]
    lines = tails["a"].split("\n")
    assert len(lines) == html.TAIL_LINES
    assert lines[-1] == "last"
    assert lines[-2] == "x" * html.TAIL_WIDTH + " …"
    assert lines[-3] == "line 49999 \ufffd"


def test_every_line_of_a_log_is_a_line() -> None:
    page = html.page(samples.FULL, logs={samples.SGLANG.launches[0].id: "one\r\n<two>\n\x1b[1mthree"})
    assert '<pre class="log">one\n&lt;two&gt;\nthree</pre>' in page


@pytest.mark.parametrize(
    "values", [(), (float("nan"),), (1.0,), (1.0, 1.0), (1e-9, 1e9), (5.0, float("inf")), (0.0,)], ids=str
)
def test_plots_take_any_numbers(values: tuple[float, ...]) -> None:
    launch = LaunchValues("id", values, values[0] if values else float("nan"))
    result = replace(samples.REGRESSED, launches=(launch,), value=launch.value, band=None, target=None)
    past = History("t", "e", "m", "u", True, tuple(HistoryPoint(str(i), "2026-01-01", v) for i, v in enumerate(values)))
    for drawing in (plots.repetitions(result), plots.meter(result), plots.history(past, result), plots.history(past)):
        assert "nan%" not in drawing
        assert "inf" not in drawing


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [(0, 10, "0 2 4 6 8 10"), (79.8, 80.3, "79.8 79.9 80.0 80.1 80.2 80.3"), (63, 85, "65 70 75 80 85"),
     (0.744, 1.31, "0.8 1.0 1.2"), (0.98, 1.02, "0.98 0.99 1.00 1.01 1.02"), (-0.5, 1200, "0 500 1000")],
)  # fmt: skip
def test_ticks_are_round(low: float, high: float, labels: str) -> None:
    assert " ".join(label for _, label in Scale(low, high).ticks()) == labels


def test_without_jinja2_the_error_says_what_to_install() -> None:
    """In a fresh interpreter where jinja2 cannot be imported; the rest of the reports still can."""
    code = (
        "import sys; sys.modules['jinja2'] = sys.modules['markupsafe'] = None\n"
        "from pytest_llmperf.records import jsonfile, results\n"
        "from pytest_llmperf.report import export, github, html, junit, terminal\n"
        "html.page(results.SessionRecord({}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ConfigError: an HTML report needs jinja2: python -m pip install 'pytest-llmperf[report]'" in done.stderr


def _contrast(a: str, b: str) -> float:
    """WCAG 2 contrast ratio of two ``#rrggbb`` colours."""

    def luminance(colour: str) -> float:
        full_form = colour[1:] if len(colour) == 7 else "".join(c * 2 for c in colour[1:])
        parts = (int(full_form[i : i + 2], 16) / 255 for i in (0, 2, 4))
        r, g, b = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_is_readable_in_both_schemes() -> None:
    schemes = re.findall(r":root \{(.*?)\}", full(), re.S)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]+)", scheme))
        for ground in ("page", "card"):
            for ink in ("ink", "faint", "accent", "bad", "doubt", "good", "better"):
                assert _contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground, colours[ink])
