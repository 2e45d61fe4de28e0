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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from pytest_llmperf.baselines import store
from pytest_llmperf.baselines.fingerprint import Fingerprint
from pytest_llmperf.baselines.series import Series, StoredLaunch
from pytest_llmperf.baselines.toml_text import parse
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.measure.metrics import METRICS, Metric
from pytest_llmperf.stats import Prior, fit_prior, location, two_groups
from pytest_llmperf.stats.location import log_location

#: Most files a prior is fitted over, chosen by the hash of their path: the same on every machine.
SAMPLE = 100
#: Series that must be in two groups, and more than half of all, for that to be the machine's doing.
FEWEST_BIMODAL = 3
#: Raise it when the fit or this cache changes.
_VERSION = 3


@dataclass(frozen=True)
class Priors:
    """Priors by name of metric, those fitted. ``files`` were read; ``broken`` of them could not be. ``bimodal`` gives,
    by metric, how many series fall into two groups of launches, and of how many."""

    fitted: Mapping[str, Prior]
    files: int = 0
    broken: tuple[str, ...] = ()
    bimodal: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def of(self, metric: Metric, launch_spread: float) -> Prior:
        """The prior of ``metric``; when too little is stored, one of the spread that is usual for the engine
        (``launch_spread``) and the metric."""
        return self.fitted.get(metric.name) or Prior(s0=usual_spread(metric, launch_spread))

    @property
    def findings(self) -> tuple[str, ...]:
        """What is wrong with the machine rather than with a test: a sentence for each metric of which most series
        fall into two groups."""
        return tuple(
            f"{metric}: launches of {count} of {of} stored series fall into two groups, on this machine and engine, "
            "which no prior learns from; find what differs between launches (clocks, NUMA placement, another process, "
            "a cold compile cache) and record again"
            for metric, (count, of) in self.bimodal.items()
            if count >= FEWEST_BIMODAL and 2 * count > of
        )


def fit(
    folder: Path,
    engine: str,
    fingerprint: Fingerprint,
    launch_spread: float,
    cache: Path,
    metrics: Mapping[str, Metric] = METRICS,
) -> Priors:
    """Priors over the stored series of ``engine``, whose launches usually spread by ``launch_spread`` (standard
    deviation of logs), or as ``metrics`` say of one, on the hardware of ``fingerprint``.

    ``cache`` is a private folder outside the repository. A broken file is skipped here and named in ``broken``; it is
    an error of the test that it belongs to. A cache that cannot be read or written costs time, nothing else.
    """
    sample = sorted(store.names(folder, engine, fingerprint.label), key=_hash)[:SAMPLE]
    contents = {folder / name: _bytes(folder / name) for name in sample}
    entry = cache / f"prior-{_hash(str(folder.resolve()), engine, json.dumps(dict(fingerprint.hardware)))}.json"
    spreads = {name: usual_spread(metric, launch_spread) for name, metric in metrics.items()}
    digest = _hash(
        str(_VERSION),
        str((launch_spread, spreads)),
        *(f"{_hash(str(p))}{hashlib.sha256(c).hexdigest()}" for p, c in contents.items()),
    )
    found = _cached(entry, digest)
    if found is None:
        found = _fit(contents, fingerprint, spreads, launch_spread)
        _keep(entry, digest, found)
    return found


@dataclass(frozen=True)
class _Launches:
    """Launch values of one metric of one series on one host, and the ids of these launches."""

    values: list[float]
    ids: frozenset[str]


def _fit(
    contents: Mapping[Path, bytes], fingerprint: Fingerprint, spreads: Mapping[str, float], launch_spread: float
) -> Priors:
    found: defaultdict[str, list[_Launches]] = defaultdict(list)
    broken = []
    for path, content in contents.items():
        try:
            series = parse(content.decode("utf-8", "replace"), str(path))
        except BaselineError:
            broken.append(str(path))
            continue
        if series.fingerprint.hardware == fingerprint.hardware:
            for metric, launches in _by_host(series):
                found[metric].append(launches)
    fitted, bimodal = {}, {}
    for metric, seen in sorted(found.items()):
        usual, values = spreads.get(metric, launch_spread), [x.values for x in seen]
        prior = fit_prior(values, usual=usual, launches=[x.ids for x in seen])
        if prior:
            fitted[metric] = prior
        bimodal[metric] = sum(two_groups(x, usual) for x in values), len(values)
    return Priors(fitted, len(contents), tuple(sorted(broken)), bimodal)


def usual_spread(metric: Metric, launch_spread: float) -> float:
    """Standard deviation (logs) between launches that is usual for a metric, the engine's being ``launch_spread``."""
    return max(launch_spread, metric.launch_spread)


def _by_host(series: Series) -> Iterator[tuple[str, _Launches]]:
    """By metric and host: hosts differ by more than launches do, and have a variance of their own."""
    stored: defaultdict[tuple[str, str], list[StoredLaunch]] = defaultdict(list)
    for launch in series.current.launches:
        for metric in launch.metrics:
            stored[metric, launch.host].append(launch)
    for (metric, _), launches in stored.items():
        yield metric, _Launches(_locations([x.metrics[metric] for x in launches]), frozenset(x.id for x in launches))


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
        fitted = {m: Prior(**p) for m, p in data["priors"].items()}
        bimodal = {m: (count, of) for m, (count, of) in data["bimodal"].items()}
        return Priors(fitted, data["files"], tuple(data["broken"]), bimodal)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _keep(entry: Path, digest: str, priors: Priors) -> None:
    fitted = {m: asdict(p) for m, p in priors.fitted.items()}
    data = {"digest": digest, "priors": fitted, "files": priors.files, "broken": priors.broken}
    data["bimodal"] = priors.bimodal
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
