"""Launches that compiled are spent where only warm ones count: something else is launched in their place.

A launch that fills the engine's compile cache can be slower for its whole life than those that load from it. So a
recording of several launches keeps warm ones, a comparison compares them, and a baseline of warm launches judges
nothing else. One launch of a server is spent in a session at most: where the cache does not outlive a launch each one
compiles, and all of them count.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_llmperf.baselines.series import StoredLaunch


def spent(cache: str | None, purpose: str, *, unknown_too: bool = False) -> str | None:
    """Why a launch whose compile cache was ``cache`` (as ``Launch`` has it) is spent; None for one that counts.

    ``purpose`` is what happens to warm launches alone (recorded, judged, compared), empty where cold ones count as
    well; ``unknown_too`` spends every launch that does not say that it was warm.
    """
    if cache in ("warm", "none") or not (unknown_too or (purpose and cache == "cold")):
        return None
    return f"{'compiled' if cache == 'cold' else 'may have compiled'}, not {purpose or 'measured'}"


def all_warm(stored: Iterable[StoredLaunch]) -> bool:
    """Whether a baseline of ``stored`` launches is a warm one: as far as their states are known, none compiled."""
    known = {x.cache for x in stored if x.cache}
    return known == {"warm"}
