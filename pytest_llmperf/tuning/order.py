"""The order in which a sweep launches its configs: mirrored, with returns to the base between.

Machines drift while a sweep runs (temperature, clocks, neighbours). Launched config after config, a drift looks like an
effect of whatever came last. Each *round* therefore runs forth and back: base, some variations, base, ..., then all of
it in reverse. Over a round every config, the base included, has the same mean position in time, so a linear drift
cancels from every ratio exactly; steps and curves are averaged. The price is two launches of each variation, which its
interval needs anyway.

Every variation is compared with the one base, whose launches are therefore worth more: per pass the base is launched
about the square root of the number of variations times, the allocation that makes the intervals shortest for a given
number of launches (Dunnett 1955, JASA 50:1096, section 6), spread evenly, which is also what shows a drift.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_llmperf.tuning.plan import BASE


@dataclass(frozen=True)
class Slot:
    """One launch: ``name`` of the config (``base`` or a variation's), ``repeat`` counts its launches from 1."""

    name: str
    repeat: int


def launch_order(variations: Sequence[str], launches: int = 2) -> tuple[Slot, ...]:
    """Every launch of a sweep, in order: ``launches`` of each variation, more of the base.

    With an even number a linear drift cancels from every ratio to the base. With an odd one the last pass has no
    counterpart; it runs base to base, so that a drift at least shows. Raises ``ValueError`` for nothing to do.
    """
    if not variations or launches < 1 or len(set(variations)) < len(variations) or BASE in variations:
        raise ValueError("a launch order needs variations of distinct names and at least one launch of each")
    forth = _pass(variations)
    names: list[str] = []
    for turn in range(launches):
        names += forth if turn % 2 == 0 else forth[::-1]
    if launches % 2:
        names.append(BASE)
    counts: dict[str, int] = {}
    slots = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        slots.append(Slot(name, counts[name]))
    return tuple(slots)


def _pass(variations: Sequence[str]) -> list[str]:
    """One way through: the base first and then evenly between the variations."""
    returns = max(1, round(math.sqrt(len(variations))))
    blocks = [variations[i * len(variations) // returns : (i + 1) * len(variations) // returns] for i in range(returns)]
    return [name for block in blocks for name in (BASE, *block)]
