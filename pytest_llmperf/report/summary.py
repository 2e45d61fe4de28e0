"""What every report says in words: grouping, counts, one result's headline. Sentences are plain text, cleaned."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_llmperf.records.results import MESSAGE_KINDS, OLD_DAYS, VERDICTS, Result, ServerRecord, SessionRecord
from pytest_llmperf.records.text import WORDS, clean, interval, number, percent, plural, seconds

#: States of a result, worst first: its verdict, or ``recorded`` for a first recording, which is no failure.
STATES = (*VERDICTS[:-1], "recorded", VERDICTS[-1])
#: States that need no explanation.
FINE = frozenset({"recorded", "passed"})

#: Config keys that the server's label already says.
IN_LABEL = frozenset({"engine", "model", "tp"})


def groups(session: SessionRecord) -> list[tuple[ServerRecord, list[Result]]]:
    """Each server with its results, in the session's order; results of an unknown server come under a bare record."""
    servers = {s.key: s for s in session.servers}
    for r in session.results:
        servers.setdefault(r.server, ServerRecord(r.server, r.engine, {"engine": r.engine}, {}))
    return [(s, [r for r in session.results if r.server == key]) for key, s in servers.items()]


def label(server: ServerRecord) -> str:
    """``sglang Kimi-K2.5 tp=8``."""
    model = str(server.config.get("model", "")).rstrip("/").rsplit("/", 1)[-1]
    tp = server.config.get("tp", 1)
    return clean(" ".join(filter(None, (server.engine, model, f"tp={tp}" if tp != 1 else ""))))


def launches(server: ServerRecord) -> str:
    """``2 launches, start-up 212 s (spent), 208 s``; a reused launch says so."""
    if not server.launches:
        return "no launch"
    times = (
        ("reused" if x.reused else seconds(x.startup_s)) + (" (spent)" if x.spent else "") for x in server.launches
    )
    return f"{plural(len(server.launches), 'launch')}, start-up {', '.join(times)}"


def short_names(nodeids: Iterable[str]) -> dict[str, str]:
    """Node ids shortened as far as they stay distinct: test, else file::test, else the whole id. Cleaned."""
    ids = list(dict.fromkeys(nodeids))
    for shorten in (short_name, _file_and_test):
        names = {i: clean(shorten(i)) for i in ids}
        if len(set(names.values())) == len(ids):
            return names
    return {i: clean(i) for i in ids}


def short_name(nodeid: str) -> str:
    """The test without its file, cleaned."""
    return clean(nodeid.partition("::")[2] or nodeid)


def _file_and_test(nodeid: str) -> str:
    path, sep, test = nodeid.partition("::")
    return path.rsplit("/", 1)[-1] + sep + test


def state(result: Result) -> str:
    """One of ``STATES``."""
    first = result.verdict == "no_baseline" and result.launches and all(x.role == "record" for x in result.launches)
    return "recorded" if first else result.verdict


def worst_first(results: Iterable[Result]) -> list[Result]:
    """Sorted by state; a verdict that is not ours counts as worst."""
    return sorted(results, key=lambda r: STATES.index(state(r)) if state(r) in STATES else 0)


def counts(results: Iterable[Result]) -> list[tuple[str, int]]:
    """(state, how many), worst first, zeros left out."""
    seen = Counter(map(state, results))
    return [(s, seen[s]) for s in STATES if seen[s]]


def tally(results: Iterable[Result]) -> str:
    """``1 regressed, 2 inconclusive, 5 passed, 1 of them weak``."""
    results = list(results)
    weak = sum(is_weak(r) for r in results)
    said = ", ".join(f"{n} {WORDS[v]}" for v, n in counts(results)) or "nothing was measured"
    return said + (f", {weak} of them weak" if weak else "")


#: What the gate says of a screened launch that looks better.
FASTER = "faster, unconfirmed"


def is_weak(result: Result) -> bool:
    """A pass that would not have seen much."""
    return result.verdict == "passed" and result.weak


def verdict(result: Result) -> str:
    """The state's word; a pass that would not have seen much is marked ``weak``."""
    return word(result) + (" (weak)" if is_weak(result) else "")


def word(result: Result) -> str:
    """The state's word alone."""
    return WORDS.get(state(result), clean(result.verdict))


def title(result: Result) -> str:
    """``regressed: tests/test_decode.py::test_stream (sglang, decode_tok_s)``."""
    return f"{verdict(result)}: {clean(result.nodeid)} ({clean(result.engine)}, {clean(result.metric)})"


def worse(result: Result) -> str:
    """What getting worse is called for this metric: ``drop`` or ``rise``."""
    return "drop" if result.higher_is_better else "rise"


def with_unit(value: float | None, unit: str) -> str:
    """``82.50 tok/s``."""
    return f"{number(value)} {clean(unit)}".rstrip() if value is not None else number(value)


def behind(result: Result) -> str:
    """Launches behind the baseline: ``5``; ``prior`` for a single one, whose band has the prior's width alone."""
    if result.baseline is None:
        return number(None)
    return "prior" if result.baseline.prior_only else str(result.baseline.launches)


def age(result: Result) -> str:
    """``newest launch 12 days old``; empty within a day and where it is not known."""
    days = result.baseline.age_days if result.baseline is not None else None
    return f"newest launch {plural(round(days), 'day')} old" if days is not None and 1 <= days < 1e6 else ""


def detectable(result: Result) -> str:
    """The smallest detectable change; a ``!`` where it is over what the test allows."""
    return percent(result.mde) + ("!" if result.weak else "")


def headline(result: Result) -> str:
    """One sentence with every number of the verdict: measured, change, band, target, launches on both sides, MDE; of an
    error without a value, why."""
    if _is_bare_error(result):
        return clean(result.reasons[0])
    value = "no value" if result.value is None else with_unit(result.value, result.unit)
    said = [f"{value} over {plural(len(result.launches), 'launch')}"]
    if result.baseline is not None:
        ref = result.baseline
        prior = " (band prior-only)" if ref.prior_only else ""
        said.append(
            f"{percent(result.change, signed=True)} against the baseline's {with_unit(ref.value, result.unit)} "
            f"over {plural(ref.launches, 'launch')}{prior}"
        )
    if result.band is not None:
        said.append(f"band {interval(result.band)}")
    if result.target is not None:
        said.append(f"target {with_unit(result.target, result.unit)}")
    if result.mde is not None:
        said.append(f"smallest {worse(result)} it could have seen {percent(result.mde)}")
    return ", ".join(said)


def _is_bare_error(result: Result) -> bool:
    return result.verdict == "error" and result.value is None and bool(result.reasons)


def outdated(results: Iterable[Result]) -> list[str]:
    """Which passes are against a baseline that is old or of another engine version, a line for each such baseline."""
    by_baseline: dict[str, list[str]] = {}
    for result in results:
        if result.verdict != "passed" or result.baseline is None:
            continue
        days = result.baseline.age_days
        said = [f"{days:.0f} days old"] if days is not None and days > OLD_DAYS else []
        versions = [d for d in result.differences if d.name == "engine version"]
        said += [f"of engine version {clean(d.baseline)} ({clean(d.now)} here)" for d in versions]
        if said:
            by_baseline.setdefault(" and ".join(said), []).append(result.nodeid)
    names = short_names(nodeid for found in by_baseline.values() for nodeid in found)
    return [f"{listed(names[n] for n in ids)}: passed against a baseline {said}" for said, ids in by_baseline.items()]


#: Names that a line lists before it counts the others.
_LISTED = 5


def listed(names: Iterable[str]) -> str:
    """``a, b, c``; of many the first few, each once."""
    found = list(dict.fromkeys(names))
    more = len(found) - _LISTED
    return ", ".join(found[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def weak(result: Result) -> str:
    """What a weak pass would not have seen, and what mends it."""
    needed = result.required_launches
    here = " of this host" if result.host_known is False else ""
    cure = (
        f"{plural(needed, 'stored launch')}{here} would see less"
        if needed
        else ("more stored launches would not mend that")
    )
    return f"weak: passed, but a {worse(result)} below {percent(result.mde)} would not have been seen; {cure}"


def remarks(result: Result) -> list[str]:
    """Reasons, tripped guards with their advice, and notes: each one cleaned line, nothing said twice."""
    out = [clean(r) for r in result.reasons[int(_is_bare_error(result)) :]]

    def told(subject: str) -> bool:
        return any(re.match(rf"{re.escape(subject)}( \(|:)", reason) for reason in out)

    for guard in result.guards:
        name = clean(guard.get("name", "guard"))
        if guard.get("ignored"):
            out.append(clean(f"{name}, ignored: {guard.get('evidence', 'tripped')}"))
        elif guard.get("tripped") and not told(name):
            advice = f" ({guard['advice']})" if guard.get("advice") else ""
            out.append(clean(f"{name}: {guard.get('evidence', 'tripped')}{advice}"))
    if result.host_known is False and not told("other host"):
        out.append("other host: the baseline has no launch on this machine, so its band is wider; recording here helps")
    if is_weak(result) and not told("underpowered"):
        out.append(weak(result))
    return [*out, *(clean(n) for n in result.notes)]


def gating(session: SessionRecord) -> str:
    """``12 metrics gated at alpha 0.08% each (1.0% for the session)``; empty when the session does not say."""
    gated, alpha, level = (session.session.get(k) for k in ("gated", "alpha", "level"))
    if gated is None:
        return ""
    out = f"{plural(int(gated), 'metric')} gated"
    if alpha is not None and gated:
        out += f" at alpha {percent(alpha)} each"
        out += f" ({percent(level)} for the session)" if level is not None else ""
    return out


def ignored(session: SessionRecord) -> str:
    """``guards ignored: drift, host load``: what a green session was not held to; empty where that is nothing."""
    names = session.session.get("ignored_guards")
    return clean(f"guards ignored: {', '.join(names)}") if names else ""


def messages(session: SessionRecord) -> list[tuple[str, str]]:
    """(kind, cleaned text), most pressing first; a bare string counts as a note."""
    out = []
    for m in session.session.get("messages") or ():
        kind, text = (m.get("kind", "note"), m.get("text", "")) if isinstance(m, Mapping) else ("note", m)
        out.append((kind if kind in MESSAGE_KINDS else "note", clean(text)))
    return sorted(out, key=lambda m: MESSAGE_KINDS.index(m[0]))


def hints(session: SessionRecord) -> list[str]:
    """How to go on, once per verdict that asks for it and whose reasons do not say so already."""
    seen = {state(r) for r in session.results if not any("--update-baselines" in reason for reason in r.reasons)}
    out = []
    faster = short_names(r.nodeid for r in session.results if FASTER in r.reasons)
    if faster:
        names = listed(faster.values())
        out.append(f"looks faster, unconfirmed: {names}; pytest --update-baselines confirms it on fresh launches")
    if "no_baseline" in seen:
        out.append("record what is missing: pytest --update-baselines --launches 3")
    if "improved" in seen:
        out.append("keep an improvement: pytest --update-baselines")
    if "regressed" in seen:
        out.append("accept a slower result on purpose: pytest --update-baselines --accept-regression REASON")
    return out


def gap_notes(session: SessionRecord) -> list[str]:
    """What is to be known about gaps, each thing once, with the tests it holds for unless that is all of them."""
    noted: dict[str, list[str]] = {}
    for gap in session.gaps:
        if gap.note:
            noted.setdefault(clean(gap.note), []).append(gap.test)
    names = short_names(g.test for g in session.gaps)
    everywhere = len(session.gaps)
    return [
        note if len(tests) == everywhere else f"{', '.join(dict.fromkeys(names[t] for t in tests))}: {note}"
        for note, tests in noted.items()
    ]


def reproduce(result: Result, session: SessionRecord) -> str:
    """A shell command that runs this one test as it was run here."""
    fresh = sum(1 for x in result.launches if x.role != "confirm")
    parts = ["pytest", clean(result.nodeid), "--engine", clean(result.engine)]
    if fresh > 1:
        parts += ["--launches", str(fresh)]
    pool = result.fingerprint.get("runner_pool")
    if pool:
        parts += ["--llmperf-runner-pool", clean(pool)]
    return " ".join(shlex.quote(p) for p in parts)


def place(result: Result) -> tuple[str, int | None]:
    """(file, line) of the test: from ``location``, else the node id's file and no line."""
    path, sep, line = (result.location or "").rpartition(":")
    if sep and re.fullmatch(r"[0-9]{1,9}", line):
        return clean(path), int(line)
    return clean(result.nodeid.partition("::")[0]), None


def when(session: SessionRecord) -> str:
    """``2026-11-03 10:14:31 UTC``, when the session began; empty where it is not known."""
    return clean(session.session.get("started") or "").replace("T", " ").replace("Z", " UTC")


def hardware(session: SessionRecord) -> str:
    """``8 x NVIDIA B200, 2 x AMD EPYC 9575F``-like line: GPUs, CPU, memory, as far as recorded."""
    info: Mapping[str, Any] = session.session.get("hardware") or {}
    gpus = Counter(str(g.get("name", "GPU")) for g in info.get("gpus") or ())
    said = [f"{n} x {name}" for name, n in gpus.items()]
    if info.get("cpu"):
        said.append(f"{info['cpu']}" + (f", {info['cores']} cores" if info.get("cores") else ""))
    if info.get("memory_gb"):
        said.append(f"{info['memory_gb']:.0f} GB memory")
    return clean(", ".join(said))
