"""Sessions that found a test slower than its baseline: remembered, so that running again until it is green records
nothing.

They are kept beside the repository, in the per-user state folder: gating writes no baseline, and what git checks out
or resets (a bisection does) must not take the memory along.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from pytest_llmperf.errors import BaselineError
from pytest_llmperf.records import jsonfile

#: Attempts kept of one baseline, the newest.
MOST = 100
#: What launches are recorded as that were neither proven slower nor cleared.
SUSPECT = "suspect"


@dataclass(frozen=True)
class Attempt:
    """One session. ``source`` is what was under test (``provenance.source``), ``when`` UTC as ``series.utc`` writes it,
    ``found`` what it found, in words."""

    source: str
    when: str
    found: str


#: Attempts, oldest first, by the path of the baseline (below the folder of all).
Attempts: TypeAlias = "Mapping[str, tuple[Attempt, ...]]"


def read(folder: Path, state: Path) -> Attempts:
    """What is remembered of the baselines in ``folder``. Raises ``BaselineError`` for a file that cannot be read."""
    path = _place(folder, state)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {name: tuple(Attempt(**one) for one in found) for name, found in data.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise BaselineError(f"{path} holds the failed attempts and cannot be read ({error}); remove it") from error


def write(folder: Path, state: Path, attempts: Attempts) -> None:
    """Remember ``attempts``, the newest ``MOST`` of each baseline. The caller holds the folder's lock."""
    kept = {name: [asdict(x) for x in found[-MOST:]] for name, found in sorted(attempts.items()) if found}
    jsonfile.write(_place(folder, state), json.dumps(kept, indent=1), "failed attempts in the state folder")


def _place(folder: Path, state: Path) -> Path:
    name = hashlib.sha256(str(folder.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return state / f"attempts-{name}.json"
