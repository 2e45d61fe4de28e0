"""How much launches of one engine on one kind of machine usually differ, fitted over the stored series.

The fit is cached outside the repository, keyed by the content of the files it was made from. At most ``SAMPLE`` files
are read: a hundred series fix a prior whose weight is capped anyway, and a session must start quickly.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from pytest_llmperf.baselines import store
from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.series import Series
from pytest_llmperf.baselines.toml_text import parse
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.measure.metrics import Metric
from pytest_llmperf.stats import Prior, fit_prior, location
from pytest_llmperf.stats.location import log_location

#: Most files a prior is fitted over, chosen by the hash of their path: the same on every machine.
SAMPLE = 100
#: Raise it when the fit or this cache changes.
_VERSION = 2


@dataclass(frozen=True)
class Priors:
    """Priors by name of metric, those fitted. ``files`` were read; ``broken`` of them could not be."""

    fitted: Mapping[str, Prior]
    files: int = 0
    broken: tuple[str, ...] = ()

    def of(self, metric: Metric, launch_spread: float) -> Prior:
        """The prior of ``metric``; when too little is stored, one of the spread that is usual for the engine
        (``launch_spread``) and the metric."""
        return self.fitted.get(metric.name) or Prior(s0=max(launch_spread, metric.launch_spread))


def fit(folder: Path, engine: str, fingerprint: Fingerprint, cache: Path) -> Priors:
    """Priors over the stored series of ``engine`` on the hardware of ``fingerprint``.

    ``cache`` is a private folder outside the repository. A broken file is skipped here and named in ``broken``; it is
    an error of the test that it belongs to. A cache that cannot be read or written costs time, nothing else.
    """
    sample = sorted(store.names(folder, engine, fingerprint.label), key=_hash)[:SAMPLE]
    contents = {folder / name: _bytes(folder / name) for name in sample}
    entry = cache / f"prior-{_hash(str(folder.resolve()), engine, json.dumps(dict(fingerprint.hardware)))}.json"
    digest = _hash(str(_VERSION), *(f"{_hash(str(p))}{hashlib.sha256(c).hexdigest()}" for p, c in contents.items()))
    found = _cached(entry, digest)
    if found is None:
        found = _fit(contents, fingerprint)
        _keep(entry, digest, found)
    return found


def _fit(contents: Mapping[Path, bytes], fingerprint: Fingerprint) -> Priors:
    values: defaultdict[str, list[list[float]]] = defaultdict(list)
    broken = []
    for path, content in contents.items():
        try:
            series = parse(content.decode("utf-8", "replace"), str(path))
        except BaselineError:
            broken.append(str(path))
            continue
        if series.fingerprint.hardware == fingerprint.hardware:
            for (_, metric), launches in _by_host(series).items():
                values[metric].append(launches)
    fits = {m: fit_prior(series) for m, series in sorted(values.items())}
    return Priors({m: p for m, p in fits.items() if p}, len(contents), tuple(sorted(broken)))


def _by_host(series: Series) -> Mapping[tuple[str, str], list[float]]:
    """Launch values by (host, metric): hosts differ by more than launches do, and have a variance of their own."""
    launches: defaultdict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
    for launch in series.current.launches:
        for metric, repetitions in launch.metrics.items():
            launches[launch.host, metric].append(repetitions)
    return {key: _locations(values) for key, values in launches.items()}


def _locations(launches: Sequence[Sequence[float]]) -> list[float]:
    """``location`` of each launch; all at once, which is much faster, where they have equally many repetitions."""
    if len({len(x) for x in launches}) > 1:
        return [location(x) for x in launches]
    values: list[float] = np.exp(log_location(np.log(np.asarray(launches, dtype=np.float64)))).tolist()
    return values


def _bytes(path: Path) -> bytes:
    """Empty when unreadable, which then counts as broken."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _cached(entry: Path, digest: str) -> Priors | None:
    try:
        data = json.loads(entry.read_text(encoding="utf-8"))
        if data["digest"] != digest:
            return None
        return Priors({m: Prior(**p) for m, p in data["priors"].items()}, data["files"], tuple(data["broken"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _keep(entry: Path, digest: str, priors: Priors) -> None:
    fitted = {m: asdict(p) for m, p in priors.fitted.items()}
    data = {"digest": digest, "priors": fitted, "files": priors.files, "broken": priors.broken}
    aside = entry.with_suffix(f".{os.getpid()}")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(data), encoding="utf-8")
        aside.replace(entry)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]
