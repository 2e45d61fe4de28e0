"""A series as TOML text and back.

tomli_w writes every scalar (it knows how to quote); arrays are written here, because it breaks each array over several
lines and a baseline must diff as one line per metric. Launches of one engine build share most of their provenance: it
is written once, at the end, and each launch names it by its hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import tomli
import tomli_w

from pytest_llmperf.baselines.fingerprint import WORKLOAD, Fingerprint
from pytest_llmperf.baselines.series import Epoch, Series, StoredLaunch, seconds, utc
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.measure.workloads import HOW_LONG

SCHEMA = 1
#: Provenance that changes from one recording to the next: written with its launch, so that the rest can be shared.
_OWN = "commit"
_HEAD = "# Accepted launches of one test on one kind of machine. Commit this file; write it with --update-baselines.\n"
_CONFLICT = ("<<<<<<< ", ">>>>>>> ")
_RESOLVE = (
    "keep one side (git checkout --ours FILE) and add the other's launches with `llmperf baselines merge`, or record "
    "again with --update-baselines"
)
_REPAIR = "restore it from version control, or delete it and record again with --update-baselines"


def dump(series: Series) -> str:
    """The text of ``series``: the same text for equal series.

    Raises ``BaselineError`` for a launch that must not be stored, or a name that is no UTF-8.
    """
    faults = [launch.fault for epoch in series.epochs for launch in epoch.launches if launch.fault]
    if faults:
        raise BaselineError(f"{series.test} cannot be stored: {faults[0]}")
    text = _HEAD + "".join(_lines(series))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BaselineError(f"{series.test!r} cannot be stored ({error.reason}); rename it") from error
    return text


def _lines(series: Series) -> Iterator[str]:
    shared: dict[str, Mapping[str, str]] = {}
    yield tomli_w.dumps({"schema": SCHEMA, "test": series.test, "engine": series.engine})
    yield "\n" + tomli_w.dumps({"fingerprint": series.fingerprint.fields})
    for epoch in series.epochs:
        yield "\n[[epochs]]\n" + tomli_w.dumps({"reason": epoch.reason})
        for launch in epoch.launches:
            common = {k: v for k, v in launch.provenance.items() if k != _OWN}
            name = _name(common)
            shared[name] = common
            head = {"id": launch.id, "recorded": launch.recorded, "host": launch.host, "cache": launch.cache}
            head |= {_OWN: launch.provenance.get(_OWN), "provenance": name}
            yield "\n[[epochs.launches]]\n" + tomli_w.dumps({k: v for k, v in head.items() if v})
            yield "[epochs.launches.metrics]\n"
            for name, values in launch.metrics.items():
                key = tomli_w.dumps({name: 0}).removesuffix(" = 0\n")
                yield f"{key} = [{', '.join(map(repr, values))}]\n"
    for name, facts in sorted(shared.items()):
        yield f"\n[provenance.{name}]\n" + tomli_w.dumps(facts)


def _name(facts: Mapping[str, str]) -> str:
    """8 hex digits after a letter, so that it is a bare TOML key that no reader takes for a number."""
    text = json.dumps(facts, sort_keys=True)
    return "p" + hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]


def parse(text: str, where: str) -> Series:
    """The series in ``text``. Raises ``BaselineError`` that names ``where``, what is wrong and what to do."""
    if not text.strip():
        raise BaselineError(f"{where} is empty; {_REPAIR}")
    try:
        data = tomli.loads(text)
    except (ValueError, RecursionError) as error:  # a TOMLDecodeError is one, and so is a number of too many digits
        if any(line.startswith(_CONFLICT) for line in text.splitlines()):
            raise BaselineError(f"{where} holds the marks of a git conflict; {_RESOLVE}") from error
        raise BaselineError(f"{where} is not valid TOML ({error}); {_REPAIR}") from error
    if type(data.get("schema")) is not int or data["schema"] != SCHEMA:
        raise BaselineError(
            f"{where} has schema {data.get('schema')!r} and this version reads {SCHEMA}; "
            "install the version that wrote it, or delete it and record again with --update-baselines"
        )
    try:
        return _series(data)
    except MalformedError as error:
        raise BaselineError(f"{where}: {error}; {_REPAIR}") from error


class MalformedError(Exception):
    """Valid TOML that is not a baseline."""


def _series(data: Mapping[str, Any]) -> Series:
    _only(data, "the file", {"schema", "test", "engine", "fingerprint", "epochs", "provenance"})
    tables = _table(data, "provenance", "the file")
    shared = {name: _texts(tables, name, "provenance") for name in tables}
    epochs = tuple(_epoch(x, shared) for x in _tables(data, "epochs", "the file"))
    ids = [launch.id for epoch in epochs for launch in epoch.launches]
    twice = sorted({x for x in ids if ids.count(x) > 1})
    if twice:
        raise MalformedError(f"launch {twice[0]} is stored twice")
    fields = _texts(data, "fingerprint", "the file")
    for name in HOW_LONG:  # once part of it
        fields.pop(f"{WORKLOAD}{name}", None)
    return Series(_text(data, "test", "the file"), _text(data, "engine", "the file"), Fingerprint(fields), epochs)


def _epoch(data: Mapping[str, Any], shared: Mapping[str, Mapping[str, str]]) -> Epoch:
    _only(data, "an epoch", {"reason", "launches"})
    launches = tuple(_launch(x, shared) for x in _tables(data, "launches", "an epoch"))
    return Epoch(_text(data, "reason", "an epoch"), launches)


def _launch(data: Mapping[str, Any], shared: Mapping[str, Mapping[str, str]]) -> StoredLaunch:
    id_ = _text(data, "id", "a launch")
    where = f"launch {id_}"
    _only(data, where, {"id", "recorded", "host", "cache", _OWN, "metrics", "provenance"})
    recorded = _text(data, "recorded", where)
    try:
        canonical = utc(seconds(recorded))
    except ValueError:
        canonical = ""
    if canonical != recorded:
        raise MalformedError(f"{where}: recorded = {recorded!r} is not a time like '2026-05-01T12:00:00Z'")
    metrics = {name: _numbers(values, f"{where}: {name}") for name, values in _table(data, "metrics", where).items()}
    cache = _text(data, "cache", where) if "cache" in data else None
    name = _text(data, "provenance", where)
    if name not in shared:
        raise MalformedError(f"{where}: its provenance {name!r} is not in the file")
    facts = {**shared[name], **({_OWN: _text(data, _OWN, where)} if _OWN in data else {})}
    launch = StoredLaunch(id_, recorded, _text(data, "host", where), cache, metrics, facts)
    if launch.fault:
        raise MalformedError(launch.fault)
    return launch


def _only(data: Mapping[str, Any], where: str, known: set[str]) -> None:
    unknown = sorted(data.keys() - known)
    if unknown:
        raise MalformedError(f"{where} has an unknown key {unknown[0]!r} (known: {', '.join(sorted(known))})")


def _text(data: Mapping[str, Any], key: str, where: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value:
        raise MalformedError(f"{where} needs {key} as text, not {value!r}")
    return value


def _table(data: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise MalformedError(f"{where} needs a table {key}, not {value!r}")
    return value


def _texts(data: Mapping[str, Any], key: str, where: str) -> dict[str, str]:
    table = _table(data, key, where)
    bad = sorted(k for k, v in table.items() if not isinstance(v, str))
    if bad:
        raise MalformedError(f"{where}: {key}.{bad[0]} must be text, not {table[bad[0]]!r}")
    return dict(table)


def _tables(data: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    value = data.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(x, dict) for x in value):
        raise MalformedError(f"{where} holds no {key}")
    return value


def _numbers(values: Any, where: str) -> tuple[float, ...]:
    if not isinstance(values, list) or not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        raise MalformedError(f"{where} must be a list of numbers, not {values!r}")
    try:
        return tuple(float(v) for v in values)
    except OverflowError:
        raise MalformedError(f"{where} holds a number beyond any measurement") from None
